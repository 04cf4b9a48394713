"""`sweep`, `status`, `trials`, `gc` and `--dry-run` as a user meets them."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from restack.sweep.store import Store
from tests.cli.conftest import Command
from tests.sweep.reviews import make_data, make_model

SMALL = """
from tests.sweep.small import HERE, trials
from restack.sweep.trial import Trial
trials = trials({count}, {settings}) + {more}
"""


def small(place: Path, count: int = 4, settings: str = "", more: str = "[]") -> Path:
    """A sweep of trainings that take no time."""
    place.write_text(SMALL.format(count=count, settings=settings, more=more))
    return place


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished store, from a sweep whose last trial fails."""
    from restack.sweep.definition import load
    from restack.sweep.run import run

    root = tmp_path_factory.mktemp("sweeps")
    failing = "[Trial(f'{HERE}:fail', settings={'how': 'error'})]"
    run(load(small(root / "sweep.py", more=failing)).trials, root / "store", workers=2)
    return root / "store"


def test_a_sweep_and_the_same_again(tmp_path: Path, command: Command) -> None:
    file, store = small(tmp_path / "sweep.py"), tmp_path / "store"
    said = command("sweep", file, "--store", store, "--workers", "2")
    assert said.code == 0
    assert said.out.startswith("4 of 4 trials done, 4 of them now, in ")
    again = command("sweep", file, "--store", store, "--json").json
    assert (again["ran"], again["done"], again["left"]) == (0, 4, 0)
    more = command("sweep", small(file, 6), "--store", store, "--json").json
    assert (more["ran"], more["total"]) == (2, 6)


def test_a_sweep_with_a_failure_ends_with_1_and_says_where_to_look(
    tmp_path: Path, command: Command
) -> None:
    more = "[Trial(f'{HERE}:fail', settings={'how': 'memory'})]"
    file, store = small(tmp_path / "sweep.py", 1, more=more), tmp_path / "store"
    said = command("sweep", file, "--store", store)
    assert said.code == 1
    assert f"1 failed: see `restack trials {store} --status failed`" in said.out
    assert "out of memory" in command("trials", store, "--status", "failed").out
    assert command("sweep", file, "--store", store, "--retry-failed").code == 1
    assert len(command("trials", store, "--status", "failed", "--json").json) == 1
    (row,) = command("trials", store, "--status", "failed", "--json").json
    assert row["attempts"] == 2


def test_status(done: Path, command: Command) -> None:
    said = command("status", done)
    assert "5: 4 done, 1 failed" in said.out
    assert "none at work" in said.out
    assert "1 x nothing goes" in said.out
    assert command("status", done, "--watch").code == 0  # it ends where no driver is at work
    found = command("status", done, "--json").json
    assert found["counts"] == {"pending": 0, "running": 0, "done": 4, "failed": 1}
    assert found["driver"] is None


def test_trials_and_their_filters(done: Path, command: Command) -> None:
    listed = command("trials", done).out
    assert "train/accuracy" in listed
    assert listed.count(" done ") == 4
    assert "nothing goes" in listed
    rows = command("trials", done, "--where", "half=1", "--where", "seed=1,2,3", "--json").json
    assert [row["trial"]["seed"] for row in rows] == [1, 3]
    assert command("trials", done, "--where", "half=one", "--json").json == []
    wrong = command("trials", done, "--where", "hlaf=1")
    assert wrong.code == 2
    assert "trials have no 'hlaf'" in wrong.err
    assert "seed, half." in wrong.err
    one = command("trials", done, "--key", rows[0]["key"][:8]).json
    assert [point["step"] for point in one["curve"]] == [1, 2, 3, 4, 5]
    assert one["history"][0]["outcome"] == "done"
    assert one["environment"]["numpy"]
    assert Path(one["artefacts"][0]["path"]).is_file()


def test_trials_as_tables(done: Path, tmp_path: Path, command: Command) -> None:
    said = command("trials", done, "--status", "done", "--csv", "-").out
    lines = list(csv.DictReader(io.StringIO(said)))
    assert [int(line["seed"]) for line in lines] == [0, 1, 2, 3]
    assert all(0.5 < float(line["train/accuracy"]) <= 1 for line in lines)
    command("trials", done, "--csv", tmp_path / "t.csv", "--status", "done")
    assert (tmp_path / "t.csv").read_text() == said
    command("trials", done, "--parquet", tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.num_rows == 5
    assert table["status"].to_pylist().count("done") == 4
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv", "t.parquet"]


def test_gc(tmp_path: Path, command: Command) -> None:
    file, store = small(tmp_path / "sweep.py", 3), tmp_path / "store"
    command("sweep", file, "--store", store)
    (store / "trials" / "stray").mkdir()
    (store / "trials" / "stray" / "file").write_bytes(b"x" * 2048)
    said = command("gc", store, "--dry-run")
    assert "1 leftovers" in said.out  # workers that said nothing left no log
    assert "would be removed" in said.out
    assert (store / "trials" / "stray").exists()
    assert command("gc", store, "--json").json["bytes"] >= 2048
    assert not (store / "trials" / "stray").exists()
    small(file, 2)
    assert "1 trials would be removed" in command("gc", store, "--only", file, "--dry-run").out
    command("gc", store, "--only", file)
    assert len(command("trials", store, "--json").json) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sweep", "{file}", "--store", "{new}", "--executor", "slurm"), "say local or ray"),
        (("sweep", "{file}", "--store", "{new}", "--gpus", "1"), "--gpus is for Ray alone"),
        (("sweep", "{file}", "--store", "{new}", "--pack"), "--pack is for Ray alone"),
        (("sweep", "{new}", "--store", "{new}"), "cannot be read"),
        (("sweep", "{file}"), "--store"),
        (("status", "{new}"), "there is no store"),
        (("trials", "{new}"), "there is no store"),
        (("gc", "{new}"), "there is no store"),
        (("trials", "{store}", "--status", "over"), "pending, running, done, failed"),
        (("trials", "{store}", "--where", "task"), "write NAME=VALUE"),
        (("trials", "{store}", "--json", "--csv", "-"), "choose one"),
        (("trials", "{store}", "--key", "zzz"), "has no trial zzz"),
    ],
)
def test_what_cannot_be_is_refused(
    done: Path, tmp_path: Path, command: Command, arguments: tuple[str, ...], said: str
) -> None:
    file = small(tmp_path / "sweep.py")
    new = tmp_path / "new"
    found = command(*(a.format(file=file, new=new, store=done) for a in arguments))
    assert found.code == 2
    assert said in found.err
    assert not found.out
    assert not new.exists()


def test_a_mistake_is_said_with_its_line_before_anything_runs(
    tmp_path: Path, command: Command
) -> None:
    (tmp_path / "sweep.toml").write_text(
        'models = ["restack/demo-mlm"]\ntasks = ["demo/sentiment"]\nplans = [\n  "0-99",\n]\n'
    )
    found = command("sweep", tmp_path / "sweep.toml", "--store", tmp_path / "store")
    assert found.code == 2
    assert "sweep.toml, line 4:" in found.err
    assert not (tmp_path / "store").exists()


SWEEP = """
models = ["model"]
plans = ["drop:top={k=0,1}"]
seeds = [0, 1]
[[tasks]]
name = "reviews"
path = "reviews"
label = "label"
[recipe]
steps = 4
batch_size = 8
"""
SEARCH = """
[search]
trials = 2
sampler = "random"
[search.recipe]
rate = {low = 1e-4, high = 1e-2, log = true}
"""


def test_a_dry_run_looks_ahead_and_a_search_tells_its_best(
    tmp_path: Path, command: Command
) -> None:
    make_model(tmp_path / "model")
    make_data(tmp_path / "reviews")
    file, store = tmp_path / "sweep.toml", tmp_path / "store"
    file.write_text(SWEEP)
    said = command("sweep", file, "--store", store, "--dry-run", "--workers", "1")
    assert "trials    4 (4 tune), 4 to run" in said.out
    assert "time      about" in said.out
    assert "disk      " in said.out
    assert "timing 4 steps of reviews on model" in said.err
    assert not store.exists()
    pytest.importorskip("optuna")
    file.write_text(SWEEP.replace("[0, 1]", "[0]").replace("{k=0,1}", "1") + SEARCH)
    ahead = command("sweep", file, "--store", store, "--dry-run", "--json").json
    assert (ahead["trials"], ahead["new"], ahead["unknown"]) == (2, 2, 0)
    assert ahead["seconds"] > 0
    said = command("sweep", file, "--store", store, "--workers", "1")
    assert "2 of 2 trials done" in said.out
    assert "search    search of reviews 0: 2 done" in said.out
    assert "best      validation/accuracy " in said.out
    again = command("sweep", file, "--store", store, "--json").json
    assert again["ran"] == 0
    (found,) = again["searches"]
    values = [one["value"] for one in found["suggestions"]]
    assert found["best"]["value"] == max(values)
    assert "0 trials would be" in command("gc", store, "--only", file, "--dry-run").out


def test_ctrl_c_stops_a_sweep_and_the_same_command_goes_on(
    tmp_path: Path, command: Command
) -> None:
    file = small(tmp_path / "sweep.py", 3, "steps=30, seconds=0.1")
    store = tmp_path / "store"
    path = os.pathsep.join([os.getcwd(), *sys.path])
    driver = subprocess.Popen(
        [*(sys.executable, "-m", "restack", "sweep", file, "--store", store, "--workers", "1")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    while not list(store.glob("work/*/checkpoint.npz")):
        assert driver.poll() is None
        time.sleep(0.05)
    second = command("sweep", file, "--store", store)
    assert second.code == 2
    assert f"is being written by process {driver.pid}" in second.err
    found = command("status", store, "--json").json
    assert found["driver"]["pid"] == driver.pid
    assert found["counts"]["running"] == 1
    driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=60)
    assert driver.returncode == 130, err
    assert "3 left: the same command goes on" in out
    assert err.endswith("interrupted\n")
    assert "Traceback" not in err
    small(file, 1, "steps=30, seconds=0.1")
    assert command("sweep", file, "--store", store, "--json").json["done"] == 1
    with Store.open(store) as opened:
        (row,) = opened.rows(seed=0)
        assert row.attempts == 2
        assert len(row.curve) == 30
