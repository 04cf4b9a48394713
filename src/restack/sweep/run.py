"""The driver of a sweep: what is not done yet is given to an executor, what ends is entered.

`run` may be called again and again with the same trials: finished ones are skipped, by key.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from restack.errors import RestackError
from restack.sweep import memory
from restack.sweep.executor import ALL, Died, Ended, Event, Executor, Told
from restack.sweep.kinds import ALONE, Input, find_kind
from restack.sweep.local import LocalPool
from restack.sweep.opening import StoreError
from restack.sweep.rows import Row
from restack.sweep.stacking import configuration, groups_of
from restack.sweep.store import TRIALS, WORK, Store
from restack.sweep.trial import Trial
from restack.sweep.work import KEPT, Job, Outcome, Part, sync_directory

_PATIENCE = 30.0  # seconds for trials to save where they are when a sweep is stopped
_TELL_SECONDS = 2.0
_MOST_DEATHS = 2


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a sweep is, for whoever shows it."""

    total: int
    done: int
    """Finished trials, earlier ones included."""
    failed: int
    running: int
    ran: int
    """Trials that were finished by this run."""
    seconds: float
    news: str = ""
    """What has just happened, if it is worth a line."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run of a sweep came to."""

    total: int
    done: int
    failed: int
    ran: int
    """Trials that were finished by this run."""
    left: int
    seconds: float
    stopped: bool = False
    corrupt: int = 0
    """Finished trials whose files were missing or damaged, so that they were run again."""
    failures: Sequence[tuple[str, str]] = ()
    """Key and reason."""

    def to_json(self) -> dict[str, Any]:
        names = ("total", "done", "failed", "ran", "left", "seconds", "stopped", "corrupt")
        failures = [{"key": key, "reason": reason} for key, reason in self.failures]
        return {name: getattr(self, name) for name in names} | {"failures": failures}


Progress = Callable[[Standing], None]


class More(Protocol):
    """Trials that come about only while others are done, such as those of a search."""

    @property
    def total(self) -> int:
        """How many there will be in all."""

    def more(self, store: Store) -> Sequence[Trial]:
        """What can begin now and could not before."""


def run(
    trials: Sequence[Trial],
    store: Store | str | os.PathLike[str],
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    device: str = "cpu",
    together: int = 1,
    retry_failed: bool = False,
    more: More | None = None,
    progress: Progress | None = None,
    stop: Callable[[], object] = lambda: False,
) -> Summary:
    """Run all trials that are not done, and enter each result into the store as it comes.

    Without an executor, `workers` processes of this machine do the work (one a core, at most one a
    trial). `together` trains up to so many seeds of one configuration at once, where that gives
    the same numbers within rounding. Failed trials are left alone unless `retry_failed`. `more` is
    asked for further trials at the beginning and whenever some have ended.
    """
    begun = time.monotonic()
    with ExitStack() as held:
        if not isinstance(store, Store):
            store = held.enter_context(Store.open(store, write=True))
        driver = _Driver(store, device, together, retry_failed, more, progress, begun)
        driver.enter(trials)
        driver.extend()
        if not driver.waiting:
            if executor is not None:
                executor.close()
            return driver.summary(False)
        if executor is None:
            count = workers or min(memory.cores(), len(driver.waiting))
            executor = LocalPool(count, store.directory / WORK)
        held.callback(executor.close)
        stopped = driver.work(executor, stop)
        return driver.summary(stopped)


@dataclass(slots=True)
class _Driver:
    store: Store
    device: str
    together: int
    retry_failed: bool
    source: More | None
    progress: Progress | None
    begun: float
    waiting: dict[str, Trial] = field(default_factory=dict)
    """To be run, in this order."""
    running: dict[str, Job] = field(default_factory=dict)
    all: dict[str, Trial] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    keep: dict[str, frozenset[str]] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)
    parts: dict[str, float] = field(default_factory=dict)
    peaks: dict[Any, int] = field(default_factory=dict)
    configurations: dict[str, str | None] = field(default_factory=dict)
    apart: dict[str, str] = field(default_factory=dict)
    """Configurations whose seeds cannot be trained together, and why."""
    ran: int = 0
    corrupt: int = 0
    session: int = 0
    seconds: float = 0.0

    def enter(self, trials: Sequence[Trial]) -> None:
        """Take trials in: those that are done are skipped, the others wait."""
        before = set(self.all)
        for trial in trials:
            find_kind(trial.kind)
            self.all.setdefault(trial.key, trial)
        self._complete()
        new = {key: trial for key, trial in self.all.items() if key not in before}
        self.store.add([*trials, *new.values()])
        self._want([*trials, *new.values()])
        known = {row.key: row for row in self.store.rows(once=True) if row.key in new}
        for key, trial in new.items():
            row = known[key]
            if row.status == "done" and self._sound(row):
                self.done.add(key)
            elif row.status == "failed" and not self.retry_failed:
                self.failed[key] = row.error or ""
            else:
                self.waiting[key] = trial
                if row.status in ("done", "failed"):
                    self.store.forget(key)
        for key in self.done & set(new):  # a driver may have been killed before it tidied up
            shutil.rmtree(self.store.directory / WORK / key, ignore_errors=True)

    def extend(self) -> None:
        """Take in what can begin now that others have ended."""
        while self.source is not None and (more := self.source.more(self.store)):
            self.enter(more)

    def _complete(self) -> None:
        """Bring in trials that others need and that are in the store alone."""
        missing = [key for trial in self.all.values() for key in trial.needs if key not in self.all]
        while missing:
            key = missing.pop()
            row = self.store.row(key)
            if row is None or row.key != key:
                needing = next(t.key for t in self.all.values() if key in t.needs)
                raise RestackError(
                    f"trial {needing[:10]} needs trial {key[:10]}, which is nowhere",
                    hint="Give it in the same sweep, or run it in this store before.",
                )
            self.all[key] = row.trial
            missing += [need for need in row.trial.needs if need not in self.all]
        self._refuse_circles()

    def _refuse_circles(self) -> None:
        """A key is made of the keys it needs, so only a made-up one could lead back to itself."""
        open_keys, done = set(self.all), set[str]()
        while ready := {k for k in open_keys if not open_keys & set(self.all[k].needs)}:
            done |= ready
            open_keys -= ready
        if open_keys:
            raise RestackError(f"trials {', '.join(k[:10] for k in open_keys)} need each other")

    def _want(self, trials: Sequence[Trial]) -> None:
        """Note what is to be kept: what was asked for, and models that other trials begin with."""
        for trial in trials:
            self.keep[trial.key] = self.keep.get(trial.key, frozenset()) | {*trial.keep}
            if trial.model is not None and trial.model.trial is not None:
                made = trial.model.trial
                self.keep[made] = self.keep.get(made, frozenset()) | {"model"}

    def _sound(self, row: Row) -> bool:
        """Whether all files of a finished trial are as they were written, and none is lacking."""
        bad = self.store.verify(row)
        if bad:
            self.corrupt += 1
            self._say(f"trial {row.key[:10]} runs again: {bad[0]} is missing or damaged")
        have = {kept.name.partition("/")[0] for kept in row.artefacts}
        return not bad and self.keep[row.key] <= have

    # the loop

    def work(self, executor: Executor, stop: Callable[[], object]) -> bool:
        """Until nothing is left; whether it was stopped before."""
        self.session = self.store.begin_session(executor.workers, executor.kind)
        last = time.monotonic()
        while self.waiting or self.running:
            if stop():
                self._wind_up(executor)
                return True
            self._submit(executor)
            events = executor.events(0.5)
            for event in events:
                self._hear(event)
            if any(isinstance(event, Ended | Died) for event in events):
                self.extend()
            if self.parts and time.monotonic() - last > _TELL_SECONDS:
                self.store.tell(self.parts)
                self.parts, last = {}, time.monotonic()
                self._say("")
        return False

    def _submit(self, executor: Executor) -> None:
        if not self.waiting or not executor.has_room(0):
            return
        # a look at all that waits is only for finding seeds that go together
        most = executor.workers if self.together == 1 else len(self.waiting)
        ready = itertools.islice(self._ready(), most)
        for keys in groups_of(ready, self.together, self._configuration):
            size = max(self._size(self.all[key]) for key in keys) * len(keys)
            timed = any(self.all[key].kind in ALONE for key in keys)
            if timed or any(self.deaths[key] for key in keys):
                size = ALL  # what died may have died for lack of memory
            if not executor.has_room(size):
                return
            threads = memory.cores() if timed and executor.kind == "local" else None
            job = Job(tuple(self._part(key) for key in keys), self.device, threads)
            for key in keys:
                self.store.begin(key)
                self.running[key] = job
                del self.waiting[key]
            executor.submit(job, size)

    def _ready(self) -> Iterator[str]:
        """What can start now. What needs a trial that failed fails with it."""
        for key, trial in list(self.waiting.items()):
            broken = next((need for need in trial.needs if need in self.failed), None)
            if broken is not None:
                self._fail(key, f"it needs trial {broken[:10]}, which failed")
            elif self.done.issuperset(trial.needs):
                yield key

    def _configuration(self, key: str) -> str | None:
        """What a trial has in common with others; None if it goes alone, as after a death."""
        if key not in self.configurations:
            self.configurations[key] = configuration(self.all[key])
        name = self.configurations[key]
        return None if self.deaths[key] or name in self.apart else name

    def _part(self, key: str) -> Part:
        trial = self.all[key]
        inputs = {need: self._input(need) for need in trial.needs}
        work = (self.store.directory / WORK / key).absolute()
        return Part(trial, work, inputs, self.keep[key])

    def _input(self, key: str) -> Input:
        row = self.store.row(key)
        assert row is not None
        directory = (self.store.directory / TRIALS / key).absolute()
        return Input(row.trial, row.metrics, row.payload, directory)

    def _size(self, trial: Trial) -> int:
        alike = _alike(trial)
        if alike not in self.peaks:
            self.peaks[alike] = memory.guess(trial)
        return self.peaks[alike]

    # what comes back

    def _hear(self, event: Event) -> None:
        if isinstance(event, Told):
            self.parts[event.key] = event.part
        elif isinstance(event, Died):
            for key in event.keys:
                self._died(key, event)
        else:
            assert isinstance(event, Ended)
            for outcome in event.outcomes:
                self._ended(outcome, event.place)

    def _ended(self, outcome: Outcome, place: str) -> None:
        key = outcome.key
        self.running.pop(key, None)
        self.parts.pop(key, None)
        if outcome.status == "done":
            self._enter(outcome, place)
        elif outcome.status == "failed":
            self._fail(key, outcome.reason, place)
            with suppress(OSError):
                shutil.rmtree(self.store.directory / WORK / key)
        elif outcome.status == "stopped":
            self._again(key, outcome.reason, place)
        elif outcome.status == "apart":
            self._part_ways(key, outcome.reason)
        else:
            self.store.give_back(key, self.session, outcome.reason, place=place)
            raise StoreError(
                f"trial {key[:10]} cannot be written: {outcome.reason}",
                hint="Make room and start the sweep again: it goes on where it was.",
            )

    def _enter(self, outcome: Outcome, place: str) -> None:
        """Files first, then the row: what the store says was kept is there."""
        key = outcome.key
        work, place_of = self.store.directory / WORK / key, self.store.directory / TRIALS / key
        try:
            shutil.rmtree(place_of, ignore_errors=True)
            if outcome.files:
                os.replace(work / KEPT, place_of)
                sync_directory(place_of.parent)
        except OSError as error:
            raise StoreError(f"{place_of} cannot be written: {error}") from error
        self.store.finish(
            key,
            self.session,
            outcome.result,
            seconds=outcome.seconds,
            files=outcome.files,
            environment=outcome.environment,
            place=place,
            peak=outcome.peak,
        )
        shutil.rmtree(work, ignore_errors=True)
        if outcome.peak is not None:
            alike = _alike(self.all[key])
            self.peaks[alike] = max(outcome.peak, memory.IMPORTS)
        self.done.add(key)
        self.ran += 1
        self.seconds += outcome.seconds
        self._say("")

    def _died(self, key: str, event: Died) -> None:
        if event.blamed:
            self.deaths[key] += 1
        self.running.pop(key, None)
        if self.deaths[key] >= _MOST_DEATHS:
            self._fail(key, f"{event.reason}; it was the attempt number {self.deaths[key]}")
        else:
            self._again(key, event.reason, "")

    def _again(self, key: str, reason: str, place: str) -> None:
        self.store.give_back(key, self.session, reason, place=place)
        self.waiting = {key: self.all[key], **self.waiting}
        self._say(f"trial {key[:10]} waits for another attempt: {reason}")

    def _part_ways(self, key: str, reason: str) -> None:
        """A trial goes alone, as will all of its configuration; other workers can take them."""
        self.store.put_back(key)
        self.waiting = {key: self.all[key], **self.waiting}
        if reason not in self.apart.values():
            self._say(f"seeds run one by one, not together: {reason}")
        self.apart[str(self.configurations[key])] = reason

    def _fail(self, key: str, reason: str, place: str = "") -> None:
        self.store.fail(key, self.session, reason, place=place)
        self.waiting.pop(key, None)
        self.failed[key] = reason
        self._say(f"trial {key[:10]} failed: {reason.splitlines()[0]}")

    def _wind_up(self, executor: Executor) -> None:
        """Let trials save where they are; what takes too long is ended and begins at its last."""
        executor.stop()
        begun = time.monotonic()
        while self.running and time.monotonic() - begun < _PATIENCE:
            for event in executor.events(0.5):
                self._hear(event)
        for key in list(self.running):
            self.running.pop(key)
            self._again(key, "the sweep was stopped", "")

    def _say(self, news: str) -> None:
        if self.progress is not None:
            self.progress(
                Standing(
                    self._total(),
                    len(self.done),
                    len(self.failed),
                    len(self.running),
                    self.ran,
                    time.monotonic() - self.begun,
                    news,
                )
            )

    def _total(self) -> int:
        """All trials, with those that a search will still come to."""
        return max(len(self.all), 0 if self.source is None else self.source.total)

    def summary(self, stopped: bool) -> Summary:
        total = self._total() if stopped else len(self.all)
        return Summary(
            total,
            len(self.done),
            len(self.failed),
            self.ran,
            total - len(self.done) - len(self.failed),
            time.monotonic() - self.begun,
            stopped,
            self.corrupt,
            tuple(self.failed.items()),
        )


def _alike(trial: Trial) -> Any:
    """Trials that take about as much memory."""
    return (trial.kind, trial.model, trial.plan, trial.task, str(trial.settings))
