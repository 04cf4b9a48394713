"""A run that was stopped goes on as if it had not been, whatever stopped it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from restack.errors import CheckpointError
from restack.tune import Lora, Recipe
from restack.tune.checkpoints import CHECKPOINT, METRICS, work_directory
from restack.tune.interrupts import Stopped
from tests.tune.run_tiny import RECIPE, main
from tests.tune.tiny import same

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run without interruption, and its output."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESTACK_CACHE", str(out.parent / "cache"))
        return main(out), out


def after(steps: int) -> Callable[[], bool]:
    """Says yes when so many updates are done."""
    asked = iter(range(10**6))
    return lambda: next(asked) + 1 >= steps


def check_equal(found: Any, out: Path, whole: tuple[Any, Path]) -> None:
    """All that a run leaves but its times."""
    expected, other = whole
    assert list(found.curve) == list(expected.curve)
    assert found.metrics == expected.metrics
    assert found.best_step == expected.best_step
    assert same(found.model, expected.model)
    logits = [t.predictions["validation"].logits for t in (found, expected)]
    np.testing.assert_array_equal(*logits)
    for name in ("metrics.jsonl", "model.safetensors", "config.json"):
        assert (out / name).read_bytes() == (other / name).read_bytes(), name
    assert not work_directory(out).exists()


@pytest.mark.parametrize("steps", [3, 8, 10, 25, 41])
def test_stopped_and_resumed(steps: int, whole: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stopped, match=f"stopped at step {steps}; .*--resume"):
        main(out, stop=after(steps))
    assert not out.exists()
    assert (work_directory(out) / CHECKPOINT).exists()
    check_equal(main(out, resume=True), out, whole)


def test_stopped_many_times(whole: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(4):
        with pytest.raises(Stopped):
            main(out, resume=True, stop=after(9))
    check_equal(main(out, resume=True), out, whole)


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_signal_is_followed_by_a_checkpoint(
    number: int, error: type, whole: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def progress(what: str, done: int, total: int, numbers: dict[str, float]) -> None:
        if what == "train" and done == 7:
            os.kill(os.getpid(), number)

    handler = signal.getsignal(number)
    with pytest.raises(error) as caught:
        main(out, progress=progress)
    if number == signal.SIGTERM:
        assert caught.value.code == 128 + number
    assert "stopped at step 8" in capsys.readouterr().err
    assert signal.getsignal(number) is handler
    check_equal(main(out, resume=True), out, whole)


def test_kill_9(whole: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    work = work_directory(out)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tune.run_tiny", str(out)], cwd=ROOT, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            if len((work / METRICS).read_text().splitlines()) >= 5 and (work / CHECKPOINT).exists():
                break
        time.sleep(0.005)
    process.kill()
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said.decode()
    assert not out.exists()
    check_equal(main(out, resume=True), out, whole)


@contextlib.contextmanager
def no_file_larger_than(size: int) -> Any:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_a_checkpoint_finds_no_room_the_one_before_survives(
    whole: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stopped):
        main(out, stop=after(6))
    kept = (work_directory(out) / CHECKPOINT).read_bytes()
    with no_file_larger_than(len(kept) // 2), pytest.raises(CheckpointError) as caught:
        main(out, resume=True, stop=after(5))
    assert "the checkpoint of step 11 cannot be written" in caught.value.message
    assert "the one before it is untouched" in caught.value.message
    assert (work_directory(out) / CHECKPOINT).read_bytes() == kept
    assert sorted(path.name for path in work_directory(out).iterdir()) == [
        *("checkpoint.pt", "job.json", "metrics.jsonl"),
    ]
    check_equal(main(out, resume=True), out, whole)


def test_where_the_output_finds_no_room_nothing_of_it_appears(whole: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stopped):
        main(out, stop=after(47))
    with no_file_larger_than(30_000), pytest.raises(CheckpointError):
        main(out, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out.unfinished"]
    check_equal(main(out, resume=True), out, whole)


def test_an_unfinished_run_is_neither_overwritten_nor_taken_for_another(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stopped):
        main(out, stop=after(2))
    with pytest.raises(CheckpointError, match="holds an unfinished run"):
        main(out)
    other = replace(RECIPE, rate=1e-3)
    with pytest.raises(CheckpointError, match=r"its recipe\.rate is 0\.003, now it is 0\.001"):
        main(out, other, resume=True)
    with pytest.raises(CheckpointError, match="its plan is None, now it is '0-2'"):
        main(out, resume=True, plan="drop:top=2")
    (work_directory(out) / CHECKPOINT).write_bytes(b"PK, but no zip")
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt cannot be read"):
        main(out, resume=True)


def test_an_output_in_use_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    said: list[str] = []

    def progress(what: str, done: int, total: int, numbers: dict[str, float]) -> None:
        if not said:
            with pytest.raises(CheckpointError) as caught:
                main(out, resume=True)
            said.append(caught.value.message)

    main(out, replace(RECIPE, epochs=1), progress=progress)
    assert said == [f"{work_directory(out)} is in use: another run is writing there"]
    with pytest.raises(CheckpointError, match="a run that is finished"):
        main(out, resume=True)
    with pytest.raises(CheckpointError, match="exists and is not empty"):
        main(out)


def test_a_failed_run_that_saved_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="the loss is nan"):
        main(tmp_path / "out", replace(RECIPE, rate=1e30, clip=None))
    assert list(tmp_path.iterdir()) == []


def test_lora_is_resumed_too(tmp_path: Path) -> None:
    recipe = replace(RECIPE, lora=Lora(rank=2), epochs=2)
    expected = main(tmp_path / "whole", recipe)
    with pytest.raises(Stopped):
        main(tmp_path / "out", recipe, stop=after(9))
    assert same(main(tmp_path / "out", recipe, resume=True).model, expected.model)  # type: ignore[attr-defined]


TOGETHER = Recipe(epochs=2, batch_size=8, rate=3e-3, accumulate=2)
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "BertLayer",
}


@pytest.mark.parametrize("way", [{}, FSDP], ids=["DDP", "FSDP"])
def test_two_processes_train_as_one(way: dict[str, str], tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        **way,
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.tune.run_tiny", "together", str(tmp_path / "two")],
            cwd=ROOT,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=90) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0, 0], said
    assert [out.split() for out, _ in said] == [["2", str(bool(way))]] * 2
    one = main(tmp_path / "one", TOGETHER)
    curves = [
        [json.loads(line) for line in (tmp_path / name / METRICS).read_text().splitlines()]
        for name in ("two", "one")
    ]
    losses = [[line["loss"] for line in curve if "loss" in line] for curve in curves]
    assert len(losses[1]) == 8
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    scores = [[line["metrics"] for line in curve if "metrics" in line] for curve in curves]
    for two, alone in zip(*scores, strict=True):
        assert two["validation"]["loss"] == pytest.approx(alone["validation"]["loss"], rel=1e-3)
    weights = load_file(tmp_path / "two" / "model.safetensors")
    for name, tensor in one.model.state_dict().items():  # type: ignore[attr-defined]
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=1e-4)
