"""A headless Chromium, driven through its DevTools protocol: as much as the tests of pages need."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

CHROMIUM = shutil.which("chromium")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)
_PATIENCE = 60.0


class Page:
    """A tab, and everything that it said, asked for or failed at."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._sent = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that come meanwhile are noted."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        self._socket.send(json.dumps(message))
        while True:
            got = json.loads(self._socket.recv(timeout=_PATIENCE))
            if got.get("id") == self._sent:
                assert "error" not in got, f"{method}: {got['error']}"
                return got["result"]
            self._note(got)

    def _note(self, event: dict[str, Any]) -> None:
        kind, about = event["method"], event["params"]
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(about["exceptionDetails"])[:600])
        elif kind == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(about["args"])[:600])
        elif kind == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(about["entry"]["text"])
        elif kind == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])

    def look(self, width: int, height: int = 900, dark: bool = False, touch: bool = False) -> None:
        """Set the window and the preferred colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> float:
        """Open a file and wait until it has loaded; the seconds that took."""
        start = time.perf_counter()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")
        return time.perf_counter() - start

    def js(self, expression: str) -> Any:
        """The value of an expression (DevTools may evaluate where the page may not)."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + _PATIENCE
        while not self.js(f"!!({expression})"):
            assert time.monotonic() < end, f"still not: {expression}"
            time.sleep(0.02)

    def hover(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Press and release the left button."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, key: str, code: int = 0, text: str = "") -> None:
        """Press and release a key."""
        about: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """A PNG of the page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@contextmanager
def chromium() -> Iterator[Page]:
    """A new browser with an empty profile, and its one tab."""
    from websockets.sync.client import connect

    assert CHROMIUM, "there is no chromium"
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            address = _address(Path(profile, "DevToolsActivePort"), process)
            with connect(address, max_size=None, proxy=None) as browser:
                tab = _tab(browser, address)
            with connect(tab, max_size=None, proxy=None) as socket, Page(socket) as page:
                yield page
        finally:
            process.terminate()
            process.wait(20)


def _address(file: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, f"chromium ended with {process.returncode}"
        if file.exists() and len(lines := file.read_text().split("\n")) > 1:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    raise AssertionError("chromium did not start")


def _tab(browser: Any, address: str) -> str:
    browser.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
    targets = json.loads(browser.recv(timeout=_PATIENCE))["result"]["targetInfos"]
    page = next(target for target in targets if target["type"] == "page")
    return f"{address.partition('/devtools')[0]}/devtools/page/{page['targetId']}"
