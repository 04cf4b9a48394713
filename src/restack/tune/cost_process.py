"""Processes that measure one model each, seen from the one that asks them."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

from restack.errors import RestackError
from restack.tune.cost_worker import Facts, Subject, Workload, serve
from restack.tune.interrupts import Stopped

_LOOK_SECONDS = 0.5  # between two looks at whether to stop

Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that has loaded its model and waits for calls."""

    subject: Subject
    facts: Facts
    pipe: Any
    stop: Stop

    def call(self, name: str, *arguments: Any) -> Any:
        """What a method of `Runner` gives. Raises `Stopped` as soon as `stop` says so."""
        return _answer(self.pipe, self.subject, self.stop, (name, arguments))


@contextmanager
def started(subject: Subject, load: Workload, stop: Stop) -> Iterator[Worker]:
    """A process with a model in it, until the block is left."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, subject, load), daemon=True)
    with _deaf_to_ctrl_c():
        process.start()
    theirs.close()
    try:
        yield Worker(subject, _answer(ours, subject, stop), ours, stop)
    finally:
        ours.close()
        process.kill()  # it has nothing to save, and may be amid a measurement
        process.join()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started in here do not hear Ctrl-C, which a terminal sends to all.

    Each would print a traceback, and the process that asks them ends them anyway.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # where it is started later, that unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(pipe: Any, subject: Subject, stop: Stop, call: Any = None) -> Any:
    try:
        if call is not None:
            pipe.send(call)
        while not stop():
            if pipe.poll(_LOOK_SECONDS):
                break
        else:
            raise Stopped("it was stopped while costs were measured")
        answer = pipe.recv()
    except (EOFError, OSError) as error:
        raise RestackError(
            f"{subject.label}: the process that measured it came to an end, as it does when memory "
            "runs out",
            hint="Measure fewer models at once, or smaller batches.",
        ) from error
    if isinstance(answer, BaseException):
        raise answer
    return answer
