"""The same trials on a Ray cluster of several local nodes, one of which is killed."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest

from restack.errors import RestackError
from restack.sweep.run import run
from restack.sweep.store import Store
from restack.sweep.trial import Trial
from tests.sweep.small import HERE, trials

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_why_nothing_came_back_is_said_in_one_line() -> None:
    from restack.sweep.ray_pool import _loss
    from restack.sweep.work import Job

    trace = "ray::_carry_out() (pid=7, ip=10.0.0.2)\n  At least one\nImportError: No restack here\n"
    error = ray.exceptions.RayTaskError("_carry_out", trace, ImportError("No restack here"))
    died = _loss(ray, Job(()), error)
    assert died.reason == "its node could not run it: ImportError: No restack here"
    assert died.blamed


def test_a_cluster_that_loses_a_node_gives_what_one_machine_gives(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    from restack.sweep.ray_pool import RayPool, Resources

    wanted = trials(6, steps=20, seconds=0.05)
    parents = wanted[:2]
    reader = Trial(f"{HERE}:read", inputs=tuple(trial.key for trial in parents))
    run([*wanted, reader], tmp_path / "calm", workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watch = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}
        head = {"num_cpus": 1, "_system_config": watch | {"health_check_initial_delay_ms": 0}}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        doomed = cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
    shared = tmp_path / "shared"
    over = threading.Event()
    lost: list[int] = []

    def kill_when_all_are_busy() -> None:
        while not over.wait(0.02):
            works = [path.parent for path in shared.glob("*/checkpoint.npz")]
            busy = [work for work in works if not (work / "outcome.json").exists()]
            if len(busy) == 3:  # as many as there are cores, so one of them is on the doomed node
                lost.append(len(busy))
                cluster.remove_node(doomed, allow_graceful=False)
                return

    killer = threading.Thread(target=kill_when_all_are_busy)
    try:
        with pytest.raises(RestackError, match="no node"):
            RayPool(cluster.address, resources=Resources(gpus=8))
        for pack in (True, False):
            halves = RayPool(cluster.address, resources=Resources(cpus=0.5, pack=pack))
            assert halves.workers == 6
            place = tmp_path / f"pack-{pack}"
            assert run(trials(2, steps=10, seconds=0.05), place, executor=halves).done == 2
            with Store.open(place) as store:
                places = {row.history[-1]["place"] for row in store.rows()}
            assert len(places) == (1 if pack else 2), places
        pool = RayPool(cluster.address, resources=Resources(cpus=1), shared=shared)
        assert pool.workers == 3
        killer.start()
        summary = run([*wanted, reader], tmp_path / "ray", executor=pool)
    finally:
        over.set()
        ray.shutdown()
        cluster.shutdown()
    assert lost == [3]
    assert not list(shared.iterdir())
    assert (summary.done, summary.failed) == (7, 0)
    with Store.open(tmp_path / "calm") as one, Store.open(tmp_path / "ray") as other:
        assert all(
            (a.key, a.metrics, a.curve, a.payload) == (b.key, b.metrics, b.curve, b.payload)
            for a, b in zip(one.rows(), other.rows(), strict=True)
        )
        for row in other.rows(kind=f"{HERE}:train"):
            assert not other.verify(row)
            assert row.artefacts
        assert max(row.attempts for row in other.rows()) > 1  # what was on the lost node
