"""Output directories: complete or absent, never in the way of what was there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from restack.errors import CheckpointError
from restack.surgery.publish import check_output, publish


def checkpoint(directory: Path, text: str = "old") -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_text(text)
    (directory / "extra").mkdir()
    (directory / "extra" / "file").write_text(text)
    return directory


def write(work: Path, text: str = "new") -> None:
    (work / "model.safetensors").write_text(text)
    (work / "config.json").write_text("{}")


def attempt(out: Path, body: Callable[[Path], object], *, force: bool = False) -> None:
    with publish(out, force=force) as work:
        body(work)


def tree(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): path.read_text()
        for path in directory.rglob("*")
        if path.is_file()
    }


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_output_appears_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with publish(out) as work:
        write(work)
        (work / "1_Pooling").mkdir()
        (work / "1_Pooling" / "config.json").write_text("deep")
        assert not out.exists()
        assert work.parent == tmp_path  # the same file system, so that a rename is enough
        assert work.name.startswith(".out.restack-")
    assert tree(out) == {
        "config.json": "{}",
        "model.safetensors": "new",
        "1_Pooling/config.json": "deep",
    }
    assert names(tmp_path) == ["out"]
    assert out.stat().st_mode == tmp_path.joinpath("out/1_Pooling").stat().st_mode


def test_a_relative_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with publish(Path("out")) as work:
        write(work)
        monkeypatch.chdir("/")  # it means the place that it meant at first
    assert names(tmp_path / "out") == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    "problem",
    [RuntimeError("x"), KeyboardInterrupt(), SystemExit(1), CheckpointError("x"), MemoryError()],
)
def test_nothing_is_left_after_an_error(tmp_path: Path, problem: BaseException) -> None:
    def fail(work: Path) -> None:
        write(work)
        raise problem

    with pytest.raises(type(problem)):
        attempt(tmp_path / "new" / "parents" / "out", fail)
    assert names(tmp_path) == []


def test_an_error_leaves_the_old_output(tmp_path: Path) -> None:
    out = checkpoint(tmp_path / "out")
    with pytest.raises(CheckpointError):
        attempt(out, lambda work: (work / "nowhere" / "file").touch(), force=True)
    assert tree(out)["model.safetensors"] == "old"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("out", "problem"),
    [
        ("file/out", "Not a directory"),
        ("x" * 300, "name too long"),
        ("/proc/restack/out", "/proc/"),
    ],
)
def test_trouble_of_the_system_is_explained(tmp_path: Path, out: str, problem: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=problem):
        attempt(tmp_path / out, write)
    assert names(tmp_path) == ["file"]


def test_parents_are_made_and_kept(tmp_path: Path) -> None:
    with publish(tmp_path / "a" / "b" / "out") as work:
        write(work)
    assert names(tmp_path / "a" / "b") == ["out"]


def test_force_replaces_a_checkpoint(tmp_path: Path) -> None:
    out = checkpoint(tmp_path / "out")
    with publish(out, force=True) as work:
        write(work)
        assert tree(out)["model.safetensors"] == "old"
    assert tree(out) == {"config.json": "{}", "model.safetensors": "new"}
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("force", [False, True])
def test_an_empty_directory_is_taken(tmp_path: Path, force: bool) -> None:
    (tmp_path / "out").mkdir()
    with publish(tmp_path / "out", force=force) as work:
        write(work)
    assert names(tmp_path / "out") == ["config.json", "model.safetensors"]


def a_file(out: Path) -> None:
    out.write_text("x")


def another_directory(out: Path) -> None:
    out.mkdir()
    (out / "thesis.tex").write_text("x")


def a_config_alone(out: Path) -> None:
    out.mkdir()
    (out / "config.json").write_text("x")


def a_link(out: Path) -> None:
    out.symlink_to(checkpoint(out.parent / "real"))


def a_dead_link(out: Path) -> None:
    out.symlink_to(out.parent / "nowhere")


def a_checkpoint(out: Path) -> None:
    checkpoint(out)


@pytest.mark.parametrize(
    ("make", "force", "problem"),
    [
        (a_checkpoint, False, "exists"),
        (another_directory, False, "exists"),
        (another_directory, True, "does not look like a checkpoint"),
        (a_config_alone, True, "does not look like a checkpoint"),
        (a_file, False, "not a directory"),
        (a_file, True, "not a directory"),
        (a_link, True, "symbolic link"),
        (a_dead_link, True, "symbolic link"),
    ],
)
def test_what_is_not_replaced(
    tmp_path: Path, make: Callable[[Path], None], force: bool, problem: str
) -> None:
    make(tmp_path / "out")
    before = names(tmp_path), tree(tmp_path)
    with (
        pytest.raises(CheckpointError, match=problem) as error,
        publish(tmp_path / "out", force=force),
    ):
        pytest.fail("it must refuse before any work is done")
    assert error.value.hint
    with pytest.raises(CheckpointError, match=problem):
        check_output(tmp_path / "out", force=force)
    assert (names(tmp_path), tree(tmp_path)) == before


def test_an_output_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        attempt(tmp_path / "out", lambda _: checkpoint(tmp_path / "out", "of somebody else"))
    assert tree(tmp_path / "out")["model.safetensors"] == "of somebody else"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("out", "problem"),
    [
        ("in", "is the input itself"),
        ("in/../in", "is the input itself"),
        ("in/out", "lies in the input"),
        ("in/new/out", "lies in the input"),
        ("link", "is the input itself"),
        ("link/out", "lies in the input"),
        (".", "contains the input"),
        ("up", "contains the input"),
    ],
)
def test_output_and_input_are_apart(tmp_path: Path, out: str, problem: str, force: bool) -> None:
    source = checkpoint(tmp_path / "in")
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "up").symlink_to(tmp_path)
    before = tree(tmp_path)
    for given in (source, tmp_path / "link"):
        with (
            pytest.raises(CheckpointError, match=problem),
            publish(tmp_path / out, force=force, inputs=[given]),
        ):
            pytest.fail("it must refuse before any work is done")
        with pytest.raises(CheckpointError, match=problem):
            check_output(tmp_path / out, force=force, inputs=[given])
    assert tree(tmp_path) == before


def test_neighbours_with_similar_names_are_apart(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "in")
    with publish(tmp_path / "in2", inputs=[source]) as work:
        write(work)
    assert names(tmp_path) == ["in", "in2"]


def leftover(parent: Path, name: str) -> Path:
    return checkpoint(parent / name)


def test_the_next_run_cleans_up_after_a_dead_one(tmp_path: Path) -> None:
    leftover(tmp_path, ".out.restack-1-0123abcd")
    leftover(tmp_path, ".other.restack-99999999-0123abcd")
    leftover(tmp_path, ".out.restack-1-0123abce.old")
    checkpoint(tmp_path / "out")
    kept = [".out.restack-1", ".restack-1-0123abcd", "x.restack-1-0123abcd", ".out"]
    for name in kept:
        leftover(tmp_path, name)
    with publish(tmp_path / "new") as work:
        write(work)
    assert names(tmp_path) == sorted(["out", "new", *kept])
    assert tree(tmp_path / "out")["model.safetensors"] == "old"


def test_an_output_that_a_dead_run_was_replacing_is_put_back(tmp_path: Path) -> None:
    leftover(tmp_path, ".out.restack-1-0123abcd.old")
    with publish(tmp_path / "new") as work:
        write(work)
    assert names(tmp_path) == ["new", "out"]
    assert tree(tmp_path / "out")["extra/file"] == "old"


def test_the_work_of_living_runs_is_left_alone(tmp_path: Path) -> None:
    with publish(tmp_path / "one") as first, publish(tmp_path / "two") as second:
        with publish(tmp_path / "one") as third:
            write(third, "third")
        assert first.exists()
        assert second.exists()
        write(second, "second")
        write(first, "first")
        (tmp_path / "one").rename(tmp_path / "three")
    assert tree(tmp_path / "one")["model.safetensors"] == "first"
    assert tree(tmp_path / "two")["model.safetensors"] == "second"
    assert names(tmp_path) == ["one", "three", "two"]


WAIT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
from pathlib import Path
from restack.surgery.publish import publish
with publish(Path(sys.argv[1])) as work:
    (work / "config.json").write_text("{}")
    print("ready", flush=True)
    time.sleep(60)
"""


def waiting(out: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAIT, out],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_clean_up(tmp_path: Path, number: signal.Signals) -> None:
    process = waiting(tmp_path / "deep" / "out")
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode in (128 + number, -number)
    assert names(tmp_path) == []


def test_a_killed_run_leaves_a_mark_that_the_next_run_removes(tmp_path: Path) -> None:
    process = waiting(tmp_path / "out")
    with publish(tmp_path / "meanwhile") as work:  # the other one lives
        write(work)
    assert len(names(tmp_path)) == 2
    process.kill()
    process.communicate(timeout=20)
    assert not (tmp_path / "out").exists()
    with publish(tmp_path / "out") as work:
        write(work)
    assert names(tmp_path) == ["meanwhile", "out"]


def test_signal_handlers_are_as_before(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with publish(tmp_path / "out") as work:
        write(work)
    assert signal.getsignal(signal.SIGTERM) is before
