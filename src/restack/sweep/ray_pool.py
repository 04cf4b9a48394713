"""The Ray executor: the same trials on a cluster. The driver alone writes the store.

A task carries its trial and what that needs, and brings back its files, so that nodes need share
nothing. With a directory that all of them see, checkpoints lie there, and a trial whose node was
lost goes on elsewhere from the last of them; without one it begins anew.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from restack.errors import RestackError
from restack.sweep.executor import Died, Ended, Event
from restack.sweep.local import worker_environment
from restack.sweep.work import KEPT, Job, Outcome, Part, perform, synced


@dataclass(frozen=True, slots=True)
class Resources:
    """What each trial takes of its node."""

    cpus: float = 1
    gpus: float = 0
    memory: int = 0
    """Bytes; 0 leaves it to chance."""
    pack: bool = False
    """Fill nodes one after the other, instead of spreading trials over them.

    It looks at the trials of this sweep alone, so it is for a cluster that nobody else uses.
    """


@dataclass(slots=True)
class RayPool:
    """Tasks on a Ray cluster. What was on a node or a worker that is lost is told as `Died`."""

    address: str | None = None
    """Of the cluster; without one, that of the environment, or else this machine alone."""
    workers: int = 0
    """Trials at once; by default as many as there is room for, also when nodes come and go."""
    resources: Resources = field(default_factory=Resources)
    shared: Path | None = None
    kind: str = "ray"
    _jobs: dict[Any, Job] = field(default_factory=dict)
    _places: dict[Any, str] = field(default_factory=dict)
    """The nodes that jobs were sent to, where they are packed."""
    _entered: list[str] = field(default_factory=list)
    _started: bool = False
    _grows: bool = False

    def __post_init__(self) -> None:
        ray = _ray()
        if not ray.is_initialized():
            self._connect(ray)
        self._grows = not self.workers
        self.workers = self.workers or _room(ray, self.resources)
        if not self.workers:
            self.close()
            raise RestackError(
                f"no node of the Ray cluster has room for a trial ({self.resources})",
                hint="Ask for less with --cpus, --gpus, --memory, add nodes, or give --workers to "
                "wait for nodes that come when they are asked for.",
            )

    def _connect(self, ray: Any) -> None:
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        own: dict[str, Any] = {}
        if address == "local":
            cores = math.ceil(self.workers * self.resources.cpus) if self.workers else None
            own = {"num_cpus": cores, "include_dashboard": False}
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": _environment(self.resources)},
                **own,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise RestackError(
                f"Ray cannot be reached at {address}: {str(error).splitlines()[0]}",
                hint="Start it with `ray start --head`, or give the right --address. If nodes want "
                "a token, so does the driver: RAY_AUTH_MODE=token.",
            ) from error
        self._started = True

    def has_room(self, size: int) -> bool:
        """Whether another job may be given to Ray; which node it fits on is Ray's to know."""
        if self._grows:
            self.workers = max(1, _room(_ray(), self.resources))
        return len(self._jobs) < self.workers

    def submit(self, job: Job, size: int) -> None:
        """Give a job to Ray."""
        ray, want = _ray(), self.resources
        place = self._fullest(ray) if want.pack else None
        options: dict[str, Any] = {
            "num_cpus": want.cpus,
            "num_gpus": want.gpus,
            "max_retries": 0,  # the driver counts attempts
            "scheduling_strategy": "SPREAD" if place is None else _on_node(place),
            "runtime_env": {"env_vars": _environment(want)},
        }
        if want.memory:
            options["memory"] = want.memory
        inputs = {
            key: packed(given.directory)
            for part in job.parts
            for key, given in part.inputs.items()
            if given.directory.exists()
        }
        shared = None if self.shared is None else str(self.shared.absolute())
        reference = ray.remote(_carry_out).options(**options).remote(job, inputs, shared)
        self._jobs[reference] = job
        if place is not None:
            self._places[reference] = place

    def _fullest(self, ray: Any) -> str | None:
        """The node with the most trials that has room for one more."""
        taken = Counter(self._places.values())
        nodes = {node["NodeID"]: _fit(node, self.resources) for node in ray.nodes()}
        free = [name for name in sorted(nodes) if taken[name] < nodes[name]]
        return max(free, key=lambda name: taken[name], default=None)

    def events(self, seconds: float) -> list[Event]:
        """What has happened; waits so long for something to happen."""
        ray = _ray()
        self._tidy()
        if not self._jobs:
            time.sleep(seconds)
            return []
        ready, _ = ray.wait(list(self._jobs), num_returns=1, timeout=seconds)
        return [self._ended(reference) for reference in ready]

    def _tidy(self) -> None:
        """Remove the work of trials whose results the driver has entered since."""
        for key in self._entered:
            if self.shared is not None:
                shutil.rmtree(self.shared / key, ignore_errors=True)
        self._entered.clear()

    def _ended(self, reference: Any) -> Event:
        ray = _ray()
        job = self._jobs.pop(reference)
        self._places.pop(reference, None)
        try:
            outcomes, files, node = ray.get(reference)
        except ray.exceptions.RayError as error:
            return _loss(ray, job, error)
        for part, content in zip(job.parts, files, strict=True):
            if content:
                shutil.rmtree(part.work / KEPT, ignore_errors=True)
                unpacked(content, part.work / KEPT)
        self._entered += [outcome.key for outcome in outcomes if outcome.status == "done"]
        return Ended(outcomes, place=node)

    def stop(self) -> None:
        """Ask all trials to save where they are and to end."""
        for reference in self._jobs:
            _ray().cancel(reference, force=False)

    def close(self) -> None:
        """End what was started here; a cluster that was there before goes on."""
        ray = _ray()
        for reference in self._jobs:
            with suppress(Exception):  # the cluster may be gone already
                ray.cancel(reference, force=True)
        self._jobs.clear()
        if self._started:
            ray.shutdown()
        self._tidy()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise RestackError(
            "Ray is not installed", hint="pip install 'restack[ray]', or use --executor local."
        ) from error
    return ray


def _environment(want: Resources) -> dict[str, str]:
    """What differs from the environment of the node."""
    made = worker_environment(max(1, int(want.cpus)))
    names = (
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"),
        *("TOKENIZERS_PARALLELISM", "TRANSFORMERS_VERBOSITY", "PYTHONPATH"),
    )
    return {name: made[name] for name in names}


def _on_node(name: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(name, soft=True)  # elsewhere if it is lost meanwhile


def _room(ray: Any, want: Resources) -> int:
    """How many trials fit on the nodes together."""
    return sum(_fit(node, want) for node in ray.nodes())


def _fit(node: Mapping[str, Any], want: Resources) -> int:
    """How many trials fit on a node."""
    if not node["Alive"]:
        return 0
    asked = {"CPU": want.cpus, "GPU": want.gpus, "memory": want.memory}
    have = node["Resources"]
    return int(min((have.get(name, 0) // n for name, n in asked.items() if n), default=1))


def _loss(ray: Any, job: Job, error: Exception) -> Died:
    """Why nothing came back, and whether the trial may be to blame."""
    kinds = ray.exceptions
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, kinds.TaskCancelledError):
        return Died(job.keys, "it was stopped", blamed=False)
    if isinstance(error, kinds.OutOfMemoryError):
        return Died(job.keys, f"out of memory: Ray ended it ({first})")
    if isinstance(error, kinds.NodeDiedError | kinds.ObjectLostError):
        return Died(job.keys, f"its node was lost ({first})", blamed=False)
    if isinstance(error, kinds.WorkerCrashedError):
        return Died(job.keys, f"its worker died ({first})", blamed=not _dead_node(ray))
    # what a task raised comes with the whole of its traceback; the last line says what it was
    said = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return Died(job.keys, f"its node could not run it: {said.strip()}")


def _dead_node(ray: Any) -> bool:
    """Whether a node of the cluster is lost: then a worker that died was most likely on it."""
    return any(not node["Alive"] for node in ray.nodes())


def _carry_out(
    job: Job, inputs: Mapping[str, bytes], shared: str | None
) -> tuple[list[Outcome], list[bytes], str]:
    """On a node: one job, in directories of its own; what was kept comes back as bytes."""
    import ray

    root = Path(shared) if shared else Path(tempfile.gettempdir()) / f"restack-trials-{os.getuid()}"
    parts: list[Part] = []
    given = tempfile.mkdtemp(prefix="restack-inputs-")
    try:
        for key, content in inputs.items():
            unpacked(content, Path(given) / key)
        for part in job.parts:
            read = {
                key: replace(one, directory=Path(given) / key) for key, one in part.inputs.items()
            }
            parts.append(replace(part, work=root / part.trial.key, inputs=read))
        outcomes = perform(replace(job, parts=tuple(parts)))
        files = [
            packed(part.work / KEPT) if outcome.status == "done" and outcome.files else b""
            for part, outcome in zip(parts, outcomes, strict=True)
        ]
        for part, outcome in zip(parts, outcomes, strict=True):
            # a result that is lost on its way is found again where nodes share a directory
            if outcome.status == "failed" or (outcome.status == "done" and not shared):
                shutil.rmtree(part.work, ignore_errors=True)
        node = ray.get_runtime_context().get_node_id()
        return outcomes, files, f"node {node[:8]} at {ray.util.get_node_ip_address()}"
    finally:
        shutil.rmtree(given, ignore_errors=True)


def packed(directory: Path) -> bytes:
    """The files of a directory as one piece."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(directory, arcname=".")
    return out.getvalue()


def unpacked(content: bytes, directory: Path) -> None:
    """Put files back; each is on the disk when this returns."""
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        tar.extractall(directory, filter="data")
    synced(directory)
