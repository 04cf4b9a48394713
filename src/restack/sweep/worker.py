"""A worker process: takes jobs from its driver, carries them out, and ends when the driver ends."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from restack.sweep.work import Job, perform

_TELL_SECONDS = 1.0


def main(descriptor: int, parent: int) -> None:
    """Serve the driver at the other end of a socket until it closes it."""
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's, which asks us to stop
    link = Connection(descriptor)
    jobs: queue.Queue[Job] = queue.Queue()
    stop = threading.Event()
    sending = threading.Lock()

    def listen() -> None:
        """Orders come while a trial runs, and so does the end of the driver."""
        try:
            while True:
                order, what = link.recv()
                if order == "stop":
                    stop.set()
                else:
                    jobs.put(what)
        except (EOFError, OSError):
            os._exit(0)

    def send(*message: Any) -> None:
        with sending, suppress(OSError):  # a driver that is gone is noticed by `listen`
            link.send(message)

    threading.Thread(target=listen, daemon=True).start()
    send("ready", None)
    while True:
        job = jobs.get()
        last = 0.0

        def tell(part: float) -> None:
            nonlocal last
            if time.monotonic() - last >= _TELL_SECONDS:
                last = time.monotonic()
                send("told", part)

        send("ended", perform(job, stop.is_set, tell))


def _die_with(parent: int) -> None:
    """On Linux, be killed when the driver is, even in the midst of a long computation."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it died before we asked
            os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
