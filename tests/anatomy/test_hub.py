"""The Hub, played by a small server: what is asked of it, and what its answers become.

Each question runs in a process of its own, for huggingface_hub reads its environment once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = 4_000_000  # bytes of weights in each model

ASK = """
import json, sys
from restack.anatomy.checkpoint import fetch_checkpoint, open_checkpoint
from restack.anatomy.fingerprint import fingerprint
from restack.errors import CheckpointError

def answer(how, location, revision=None):
    opener = {"open": open_checkpoint, "fetch": fetch_checkpoint}[how]
    try:
        found = opener(location, revision=revision)
    except CheckpointError as error:
        return {"error": error.message, "hint": error.hint}
    places = {name: [t.dtype, t.shape, t.shard, t.start, t.end]
              for name, t in found.tensors.items()}
    return {"tensors": places, "directory": found.directory and str(found.directory),
            "others": found.other_files, "sizes": found.sizes, "commit": found.commit,
            "config": found.config, "location": found.location, "print": fingerprint(found)}

print(json.dumps([answer(*question) for question in json.loads(sys.argv[1])]))
"""


@dataclass
class Hub:
    """The repositories by name with their files, and what was asked."""

    repositories: dict[str, dict[str, bytes]]
    ranges: bool = True  # whether the server knows range requests
    port: int = 0
    sent: dict[str, int] = field(default_factory=dict)  # body bytes by file
    tokens: set[tuple[str, str | None]] = field(default_factory=set)  # (place, authorization)

    @property
    def weights_sent(self) -> int:
        return sum(count for name, count in self.sent.items() if name.endswith(".safetensors"))


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            place = "cdn" if path.startswith("/cdn/") else "hub"
            hub.tokens.add((place, self.headers.get("Authorization")))
            if found := re.fullmatch(r"/api/models/(.+?)(?:/revision/(.+))?", path):
                if tree := re.fullmatch(r"(.+)/tree/.+", found[1]):
                    self.tree(hub.repositories[tree[1]])
                else:
                    self.info(found[1], found[2] or "main")
            elif found := re.fullmatch(r"/(?:cdn/)?(.+)/resolve/[^/]+/(.+)", path):
                self.file(found[1], found[2], place)
            else:
                self.answer(404)

        def info(self, name: str, revision: str) -> None:
            if name == "o/broken":
                self.answer(500)
            elif name not in hub.repositories:
                self.answer(401, {"X-Error-Code": "RepoNotFound"})
            elif revision not in ("main", COMMIT):
                self.answer(404, {"X-Error-Code": "RevisionNotFound"})
            else:
                siblings = [{"rfilename": file} for file in hub.repositories[name]]
                info = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings}
                self.answer(200, {}, json.dumps(info).encode())

        def tree(self, files: dict[str, bytes]) -> None:
            entries = [
                {"type": "file", "path": file, "size": len(data), "oid": "0" * 40}
                for file, data in files.items()
            ]
            self.answer(200, {}, json.dumps(entries).encode())

        def file(self, repository: str, name: str, place: str) -> None:
            if repository == "o/gated":
                self.answer(403, {"X-Error-Code": "GatedRepo"})
                return
            data = hub.repositories[repository].get(name)
            if data is None:
                self.answer(404, {"X-Error-Code": "EntryNotFound"})
                return
            about = {
                "ETag": f'"{hashlib.sha1(data).hexdigest()}"',
                "X-Repo-Commit": COMMIT,
                "Accept-Ranges": "bytes",
            }
            if name.endswith(".safetensors") and place == "hub":
                # as on the Hub large files lie on another host, which must not see the token
                target = f"http://localhost:{hub.port}/cdn{self.path}"
                size = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": about["ETag"]}
                self.answer(302, about | size | {"Location": target})
                return
            part, status = data, 200
            if hub.ranges and (found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.range())):
                start, stop = int(found[1]), min(int(found[2] or len(data)) + 1, len(data))
                part, status = data[start:stop], 206
                about["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            self.answer(status, about, part, name)

        def range(self) -> str:
            return self.headers.get("Range") or ""

        def answer(
            self,
            status: int,
            about: dict[str, str] | None = None,
            body: bytes = b"",
            name: str = "",
        ) -> None:
            self.send_response(status)
            for key, value in (about or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            try:
                for start in range(0, len(body), 65536):
                    self.wfile.write(body[start : start + 65536])
                    hub.sent[name] = hub.sent.get(name, 0) + len(body[start : start + 65536])
            except OSError:  # the other side has read enough
                self.close_connection = True

    return Handler


def model(sharded: bool = False, many: int = 0) -> dict[str, bytes]:
    """The files of a model; `many` more tiny tensors make its header long."""
    big = {"embed": np.zeros(WEIGHTS // 4, np.float32)}
    small = {f"layer.{number}.a.rather.long.name": np.zeros(1) for number in range(many or 2)}
    files = {
        "config.json": b'{"model_type": "bert"}',
        "tokenizer.json": b"{}",
        "README.md": b"# model",
        "pytorch_model.bin": bytes(1000),
        "onnx/model.onnx": bytes(1000),
        "consolidated.safetensors": bytes(WEIGHTS),
    }
    if not sharded:
        return files | {"model.safetensors": safetensors.numpy.save(big | small)}
    index = {
        "weight_map": dict.fromkeys(big, "1.safetensors") | dict.fromkeys(small, "2.safetensors")
    }
    return files | {
        "1.safetensors": safetensors.numpy.save(big),
        "2.safetensors": safetensors.numpy.save(small),
        "model.safetensors.index.json": json.dumps(index).encode(),
    }


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub({"o/plain": model(), "o/sharded": model(sharded=True), "o/gated": model()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(hub)) as server:
        hub.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield hub
        server.shutdown()
        thread.join()


def ask_all(
    hub: Hub, cache: Path, questions: Sequence[tuple[str, ...]], **more: str
) -> list[dict[str, Any]]:
    """Answers to questions `(open or fetch, location, revision)`, in a fresh process."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.port}",
        "HF_HOME": str(cache),
        "HF_TOKEN": "hf_secret",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(questions)],
        env=environment,
        cwd=cache,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def ask(hub: Hub, cache: Path, how: str, location: str, **more: str) -> dict[str, Any]:
    (answer,) = ask_all(hub, cache, [(how, location)], **more)
    return answer


def save(files: dict[str, bytes], directory: Path) -> None:
    for name, data in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)


@pytest.mark.parametrize("name", ["o/plain", "o/sharded"])
def test_headers_come_by_range_and_say_what_the_files_would(
    hub: Hub, tmp_path: Path, name: str
) -> None:
    save(hub.repositories[name], tmp_path / "files")
    found, same = ask_all(hub, tmp_path, [("open", name), ("open", str(tmp_path / "files"))])
    assert "error" not in found, found
    assert found["directory"] is None
    assert found["commit"] == COMMIT
    assert set(found["others"]) == {"tokenizer.json", "README.md"}
    assert 0 < hub.weights_sent < WEIGHTS / 10
    assert not list((tmp_path / "hub").rglob("*.safetensors"))
    for key in ("tensors", "sizes", "config", "print"):
        assert found[key] == same[key]


def test_the_token_goes_to_the_hub_and_not_to_its_storage(hub: Hub, tmp_path: Path) -> None:
    ask(hub, tmp_path, "open", "o/plain")
    assert ("hub", "Bearer hf_secret") in hub.tokens
    assert {token for place, token in hub.tokens if place == "cdn"} == {None}


def test_a_long_header_takes_a_second_request(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["o/many"] = model(many=3000)
    found = ask(hub, tmp_path, "open", "o/many")
    assert len(found["tensors"]) == 3001
    assert hub.weights_sent < WEIGHTS / 4


def test_a_server_without_ranges_is_not_read_to_the_end(hub: Hub, tmp_path: Path) -> None:
    hub.ranges = False
    for many in (2, 3000):
        tensors = {"w": np.zeros(64 << 20, np.uint8)} | {f"x{n}": np.zeros(1) for n in range(many)}
        saved = safetensors.numpy.save(tensors)
        hub.repositories[f"o/{many}"] = model() | {"model.safetensors": saved}
    found = ask_all(hub, tmp_path, [("open", "o/2"), ("open", "o/3000")])
    assert [len(answer["tensors"]) for answer in found] == [3, 3001]
    assert hub.weights_sent < 60 << 20  # of 128 MB: what fits into the buffers of 3 connections


def test_fetching_takes_what_belongs_together_and_then_works_offline(
    hub: Hub, tmp_path: Path
) -> None:
    found = ask(hub, tmp_path, "fetch", "o/sharded")
    assert found["location"] == "o/sharded"
    assert found["commit"] == COMMIT
    assert {path.name for path in Path(found["directory"]).rglob("*") if path.is_file()} == {
        "config.json",
        "model.safetensors.index.json",
        "1.safetensors",
        "2.safetensors",
        "tokenizer.json",
        "README.md",
    }
    hub.sent.clear()
    both = [("open", "o/sharded"), ("fetch", "o/sharded")]
    assert ask_all(hub, tmp_path, both) == [found, found]
    assert ask_all(hub, tmp_path, both, HF_HUB_OFFLINE="1") == [found, found]
    assert not hub.weights_sent


def test_a_config_alone_in_the_cache_is_no_checkpoint(hub: Hub, tmp_path: Path) -> None:
    ask(hub, tmp_path, "fetch", "o/plain")
    (snapshot,) = tmp_path.rglob("snapshots/*")
    (snapshot / "model.safetensors").unlink()
    assert ask(hub, tmp_path, "open", "o/plain")["directory"] is None


def test_a_fetch_without_the_hub_takes_the_cache(hub: Hub, tmp_path: Path) -> None:
    found = ask(hub, tmp_path, "fetch", "o/plain")
    hub.port = 9  # nobody listens there
    assert ask(hub, tmp_path, "fetch", "o/plain") == found


def test_refusals_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    expected = {
        ("o/none",): ("neither a directory nor a model on the Hub", "private"),
        ("none",): ("neither a directory nor a model on the Hub", "private"),
        ("o/gated",): ("o/gated is gated", "Accept its terms"),
        ("o/plain", "v9"): ("no revision 'v9'", "branch"),
        ("o/broken",): ("answered 500", "later"),
    }
    questions = [(how, *place) for place in expected for how in ("open", "fetch")]
    for question, found in zip(questions, ask_all(hub, tmp_path, questions), strict=True):
        problem, advice = expected[question[1:]]
        assert problem in found["error"]
        assert advice in found["hint"]


def test_no_connection(hub: Hub, tmp_path: Path) -> None:
    hub.port = 9  # nobody listens there
    for found in ask_all(hub, tmp_path, [("open", "o/plain"), ("fetch", "o/plain")]):
        assert "could not be fetched" in found["error"]
        assert "connection" in found["hint"]


def test_offline_and_not_in_the_cache(hub: Hub, tmp_path: Path) -> None:
    found = ask(hub, tmp_path, "open", "o/plain", HF_HUB_OFFLINE="1")
    assert "out of reach" in found["error"]
    assert "HF_HUB_OFFLINE" in found["hint"]


def test_damage_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    sound = model()["model.safetensors"]
    damages: dict[str, dict[str, bytes | None]] = {
        "only 0 bytes": {"model.safetensors": b""},
        "the format allows": {"model.safetensors": b"<html>not found</html>"},
        "the file holds": {"model.safetensors": sound[:-1]},
        "not sound JSON": {"config.json": b"{"},
        "pickled weights only": {"model.safetensors": None},
        "no config.json": {"config.json": None},
    }
    for number, change in enumerate(damages.values()):
        files = model() | change
        hub.repositories[f"o/damaged{number}"] = {
            name: data for name, data in files.items() if data is not None
        }
    questions = [("open", f"o/damaged{number}") for number in range(len(damages))]
    for number, found in enumerate(ask_all(hub, tmp_path, questions)):
        assert list(damages)[number] in found["error"]
        assert f"o/damaged{number}" in found["error"]


def test_a_directory_of_that_name_wins(hub: Hub, tmp_path: Path) -> None:
    save(model(), tmp_path / "o" / "plain")
    assert ask(hub, tmp_path, "open", "o/plain")["directory"] == "o/plain"
