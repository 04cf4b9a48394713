"""The local executor: worker processes on this machine, each with its share of the cores."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from restack.errors import RestackError
from restack.sweep import memory
from restack.sweep.executor import ALL, Died, Ended, Event, Told
from restack.sweep.work import Job

_MOST_STILLBORN = 10
_HEADROOM = 0.9  # of the memory that is free when the pool starts


@dataclass(slots=True)
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    link: Connection
    log: Path
    ready: bool = False
    job: Job | None = None
    memory: int = 0


@dataclass(slots=True)
class LocalPool:
    """Worker processes. One that dies is replaced, and what it was doing is told as `Died`."""

    workers: int
    folder: Path
    """Where workers write what libraries say."""
    threads: int | None = None
    """Of each worker; by default the cores are divided among them."""
    kind: str = "local"
    _all: list[_Worker] = field(default_factory=list)
    _budget: int | None = field(default_factory=memory.available)
    _stillborn: int = 0
    _closing: bool = False

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise RestackError(f"{self.workers} workers", hint="Give 1 or more.")

    def has_room(self, size: int) -> bool:
        """Whether a job that takes so many bytes can start now. One job always can."""
        busy = [worker for worker in self._all if worker.job is not None]
        if len(busy) >= self.workers:
            return False
        taken = sum(worker.memory for worker in busy)
        room = ALL - 1 if self._budget is None else _HEADROOM * self._budget
        return not busy or taken + size <= room

    def submit(self, job: Job, size: int) -> None:
        """Give a job to a free worker."""
        free = next((worker for worker in self._all if worker.job is None), None)
        worker = free or self._started()
        worker.job, worker.memory = job, size
        with suppress(OSError):  # it is dead, which `events` will find
            worker.link.send(("job", job))

    def events(self, seconds: float) -> list[Event]:
        """What has happened; waits so long for something to happen."""
        found: list[Event] = []
        links = {worker.link: worker for worker in self._all}
        if not links:
            time.sleep(seconds)
        for link in wait(list(links), seconds) if links else ():
            found += self._read(links[link])  # type: ignore[index]
        return found

    def stop(self) -> None:
        """Ask all trials to save where they are and to end."""
        for worker in self._all:
            with suppress(OSError):
                worker.link.send(("stop", None))

    def close(self) -> None:
        """End all workers."""
        self._closing = True
        for worker in self._all:
            _kill(worker)
            with suppress(OSError):
                if not worker.log.stat().st_size:  # libraries had nothing to say
                    worker.log.unlink()
        self._all.clear()

    def pids(self) -> list[int]:
        """The processes of the workers."""
        return [worker.process.pid for worker in self._all]

    def _started(self) -> _Worker:
        number = next(n for n in range(len(self._all) + 1) if all(w.number != n for w in self._all))
        ours, theirs = socket.socketpair()
        log = self.folder / f"worker-{number}.log"
        with log.open("wb") as said:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "restack.sweep.worker"),
                    *(str(theirs.fileno()), str(os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=[theirs.fileno()],
                env=worker_environment(self.threads or max(1, memory.cores() // self.workers)),
                start_new_session=True,  # Ctrl-C in a terminal goes to the driver alone
            )
        theirs.close()
        worker = _Worker(number, process, Connection(ours.detach()), log)
        self._all.append(worker)
        return worker

    def _read(self, worker: _Worker) -> list[Event]:
        try:
            what, content = worker.link.recv()
        except (EOFError, OSError):
            return self._buried(worker)
        job = worker.job
        if what == "ready":
            worker.ready, self._stillborn = True, 0
        elif job is not None and what == "told":
            return [Told(key, content) for key in job.keys]
        elif job is not None and what == "ended":
            worker.job = None
            return [Ended(content, place=f"worker {worker.number}")]
        return []

    def _buried(self, worker: _Worker) -> list[Event]:
        self._all.remove(worker)
        _kill(worker)
        code = worker.process.wait()
        how = f"ended with code {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        said = _last_line(worker.log)
        if not worker.ready:
            self._stillborn += 1
            if self._stillborn >= _MOST_STILLBORN and not self._closing:
                raise RestackError(
                    f"workers do not start: the last one {how}{f': {said}' if said else ''}",
                    hint=f"See {worker.log}.",
                )
        if worker.job is None:
            return []
        if code == -signal.SIGKILL:
            how += ", as the system does when memory runs out"
        elif said:
            how += f" ({said})"
        return [Died(worker.job.keys, f"its worker {how}", worker.ready)]


def worker_environment(threads: int) -> dict[str, str]:
    """The environment of a worker: its threads, silence, and where Python finds modules."""
    count = str(threads)
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "RAYON_NUM_THREADS": count,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONPATH": path,
    }


def _kill(worker: _Worker) -> None:
    with suppress(OSError):
        worker.process.kill()
    worker.process.wait()
    worker.link.close()


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:300] if lines else ""
