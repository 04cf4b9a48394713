"""Sweep files: what they expand to, and on which line they are wrong."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from restack.errors import RestackError
from restack.sweep import braces
from restack.sweep.axes import recipe_settings
from restack.sweep.definition import _KEYS, define, load
from restack.sweep.kinds import KINDS
from restack.sweep.lines import line_numbers, line_of
from restack.sweep.reading import DefinitionError
from restack.sweep.trial import Trial
from restack.tune.recipe import Recipe
from tests.sweep.reviews import make_data

MODEL = "restack/demo-mlm"  # twelve layers; it ships with the package


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("sweep")
    make_data(where / "reviews")
    make_data(where / "letters", train=30)
    return where


def made(place: Path, **changes: Any) -> list[Trial]:
    """The trials of a sweep over the tasks of `place`, with what is to be different."""
    given = {
        "models": [MODEL],
        "tasks": [{"path": "reviews", "label": "label"}],
        "plans": ["untouched"],
        **changes,
    }
    return list(define(given, folder=place).trials)


def told(trials: list[Trial], *names: str) -> list[tuple[Any, ...]]:
    """Fields and labels of trials, for comparing."""

    def value(trial: Trial, name: str) -> Any:
        if name in ("plan", "task", "seed"):
            return getattr(trial, name)
        if name in ("size", "subsample"):
            return getattr(trial.data, name)
        return trial.labels.get(name)

    return [tuple(value(trial, name) for name in names) for trial in trials]


def test_plans_are_written_out_with_what_was_named(place: Path) -> None:
    found = made(place, plans=["drop:top={k=2,4}", "reinit:after={0..12..6}", "0-5", "untouched"])
    assert told(found, "plan", "k", "written") == [
        ("0-9", 2, "drop:top=2"),
        ("0-7", 4, "drop:top=4"),
        ("0-11@fresh", None, "reinit:after=0"),
        ("0-5,6-11@fresh", None, "reinit:after=6"),
        ("0-11", None, "reinit:after=12"),
        ("0-5", None, "0-5"),
        ("0-11", None, "untouched"),
    ]
    assert found[4].key == found[6].key  # one trial by two names


def test_every_axis_with_every_other_and_seeds_slowest(place: Path) -> None:
    found = made(
        place,
        plans=["drop:top={0,1}"],
        seeds="0..1",
        sizes=[10, "all"],
        recipes={"short": {"epochs": 1.0}, "long": {"epochs": 3.0}},
        recipe={"rate": 1e-3},
    )
    assert len(found) == len({trial.key for trial in found}) == 16
    assert told(found[:3], "seed", "size", "recipe", "plan") == [
        (0, 10, "short", "0-11"),
        (0, 10, "short", "0-10"),
        (0, 10, "long", "0-11"),
    ]
    assert {trial.settings["rate"] for trial in found} == {1e-3}
    assert {trial.settings["epochs"] for trial in found} == {1.0, 3.0}


def test_paired_axes_go_together(place: Path) -> None:
    tasks = [{"path": "reviews", "label": "label"}, {"path": "letters", "label": "label"}]
    found = made(
        place,
        tasks=tasks,
        plans=["permute:seed={n=0..2}"],
        seeds=[0, 1, 2],
        paired=[["plans", "seeds"]],
    )
    plans = {trial.labels["n"]: trial.plan for trial in found}
    assert len(found) == 6
    assert len(set(plans.values())) == 3
    assert all(trial.seed == trial.labels["n"] for trial in found)
    # the n-th permutation is the same on each task
    assert all(trial.plan == plans[trial.labels["n"]] for trial in found)
    by_reference = made(place, tasks=tasks, plans=["permute:seed={seed}"], seeds=[0, 1, 2])
    assert {t.key for t in by_reference} == {t.key for t in found}


def test_the_subsample_follows_the_seed_and_not_the_plan(place: Path) -> None:
    found = made(place, plans=["reinit:after={0,6,12}"], seeds=[3, 4], sizes=[20])
    assert told(found, "seed", "subsample") == [(3, 3)] * 3 + [(4, 4)] * 3
    fixed = made(place, seeds=[3, 4], sizes=[20], subsample=9)
    assert told(fixed, "seed", "subsample") == [(3, 9), (4, 9)]


def test_filters(place: Path) -> None:
    several = {"plans": ["drop:top={k=0..3}"], "seeds": [0, 1, 2]}
    assert len(made(place, **several, skip=[{"k": [1, 2], "seed": 0}])) == 10
    found = made(place, **several, only=[{"k": 0}, {"seed": 2}], skip={"k": 3})
    assert told(found, "k", "seed") == [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)]
    with pytest.raises(DefinitionError, match="defines no trial"):
        made(place, only={"seed": 0}, skip={"seed": 0})


def test_blocks_share_what_stands_above_them(place: Path) -> None:
    found = made(
        place,
        seeds=[0, 1],
        name="mine",
        labels={"by": "me"},
        block=[{"plans": ["0-5"]}, {"plans": ["0-3"], "seeds": [5], "labels": {"by": "you"}}],
    )
    assert told(found, "plan", "seed", "by", "sweep") == [
        ("0-5", 0, "me", "mine"),
        ("0-5", 1, "me", "mine"),
        ("0-3", 5, "you", "mine"),
    ]


def test_a_file_elsewhere_defines_the_same_trials(place: Path, tmp_path: Path) -> None:
    (place / "sweep.toml").write_text(
        f'models = ["{MODEL}"]\n[[tasks]]\npath = "reviews"\nlabel = "label"\n'
    )
    (moved := tmp_path / "moved").mkdir()
    make_data(moved / "reviews")
    (moved / "sweep.toml").write_text((place / "sweep.toml").read_text())
    one, other = load(place / "sweep.toml").trials, load(moved / "sweep.toml").trials
    assert one[0].key == other[0].key
    assert one[0].plan == "0-11"  # no plan is the whole model
    lines = (moved / "reviews" / "train.jsonl").read_text().splitlines()
    (moved / "reviews" / "train.jsonl").write_text("\n".join(lines[:-1]))
    assert load(moved / "sweep.toml").trials[0].key != one[0].key


def test_sweeps_of_the_docs_are_what_they_are_said_to_be() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text()
    blocks = map(tomllib.loads, re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S))
    whole, pairs, _ = blocks  # the third is a search
    found = define(whole).trials
    assert f"{len(found)} entries and {len({t.key for t in found})}" in page
    common = {"models": [MODEL], "tasks": ["demo/sentiment"]}
    assert len(define({**common, **pairs}).trials) == 10
    settings = {field.name for field in fields(Recipe)} - {"seed"}
    named = page.partition("### Recipes")[2].partition("###")[0]
    assert {name for name in settings if f"`{name}`" not in named} == set()
    keys = page.partition("## The file")[2].partition("## Running")[0]
    assert {key for key in (*_KEYS, *KINDS) if f"`{key}`" not in keys} == set()


def test_a_python_file(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "sweep.py"
    file.write_text(
        "from restack.sweep.trial import Data, Model, Trial\n"
        f"data = Data({str(place / 'reviews')!r}, own={{'path': {str(place / 'reviews')!r},"
        " 'label': 'label'})\n"
        f"trials = [Trial('tune', Model({MODEL!r}), '0-5', 'reviews', data, seed=s)"
        " for s in range(3)]\n"
    )
    found = load(file).trials
    assert len(found) == 3
    assert found[0].model is not None
    assert found[0].model.fingerprint
    for text, said in (
        ("trials = 3", "no list of trials"),
        ("x = 3", "makes no list"),
        ("x =", "SyntaxError"),
        ("\n\ntrials = [][0]", "sweep.py, line 3: IndexError"),
    ):
        file.write_text(text)
        with pytest.raises(DefinitionError, match=said):
            load(file)


def test_how_fresh_slots_start_is_part_of_a_recipe_where_there_are_any(place: Path) -> None:
    found = made(place, plans=["reinit:after={6,12}"], recipe={"init": "paper"})
    assert [trial.settings.get("init") for trial in found] == ["paper", None]
    # left at its default it is on record all the same
    found = made(place, plans=["reinit:after={6,12}"])
    assert [trial.settings.get("init") for trial in found] == ["family", None]
    with pytest.raises(RestackError, match="initialiser is called 'papers'"):
        recipe_settings({"init": "papers"})


WRONG = {
    'plan = ["0-5"]': (1, "unknown key 'plan'"),
    '\n\nplans = [\n  "0-5",\n  # a comment\n  "0-99"]': (6, "99"),
    'plans = ["drop:top={1..}"]': (1, ""),
    'plans = ["drop:top={3..1}"]': (1, "the range 3..1 is empty"),
    'plans = ["drop:top={k}"]': (1, "refers to nothing"),
    "\nseeds = [0,\n 1,\n -1]": (4, "seeds: -1"),
    'seeds = ["a"]': (1, "no whole number"),
    "sizes = [9999]": (1, "9,999 examples are wanted"),
    "\n[recipe]\nrate = 1e-3\nepoch = 2": (4, "no setting 'epoch'"),
    "[recipe]\nrate = -1.0": (2, "rate is -1.0"),
    '[recipe]\nrate = "high"': (1, "wrong value"),
    "[recipe]\nseed = 3": (1, "no seed"),
    "[recipes.a]\nrate = 1e-3\n[recipes.b]\nrte = 1": (4, "no setting 'rte'"),
    "[recipe]\nrate = 0.0\n[recipes.a]\nepochs = 2": (2, "rate is 0.0"),
    'plans = ["0-5", "0-3"]\npaired = [["plans", "seeds"]]': (2, "2 plans, 1 seeds"),
    'paired = [["plans", "depth"]]': (1, "'depth' is no axis"),
    '\nskip = [{seed = 0},\n {tusk = "x"}]': (3, "goes by 'tusk'"),
    'plans = ["0-5"]\n[[block]]\n[[block]]\nplans = ["0-3", 7]': (4, "7 is not a plan"),
    "[[block]]\nseed = 3": (2, "unknown key 'seed'"),
    'kind = "tunes"': (1, "no kind of trial 'tunes'"),
    "limit = 0": (1, "limit is 0"),
    'subsample = "no"': (1, "subsample is 'no'"),
    "keep = 3": (1, "keep is 3"),
    "[search]\ntrials = 3\n[search.recipe]\nrate = {low = 2, high = 1}": (4, "between 2 and 1"),
    "seeds = [1": (None, "end of document"),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said_with_its_line(place: Path, text: str) -> None:
    line, said = WRONG[text]
    file = place / "wrong.toml"
    head = f'models = ["{MODEL}"]\ntasks = [{{path = "reviews", label = "label"}}]\n'
    file.write_text(head + text)
    with pytest.raises(DefinitionError) as error:
        load(file)
    assert said in error.value.message
    assert str(file) in error.value.message
    if line is not None:
        assert f"line {line + 2}:" in error.value.message


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tasks": ["sst2"]}, "needs models"),
        ({"models": [MODEL]}, "needs tasks"),
        ({"models": ["nowhere/at-all"], "tasks": ["demo/sentiment"]}, "models: "),
        ({"models": [MODEL], "tasks": ["demo/sentimental"]}, "demo/sentimental"),
        ({"models": [], "tasks": ["demo/sentiment"]}, r"models is \[\]"),
        ({"models": [3], "tasks": ["demo/sentiment"]}, "3 is not a model"),
        ({"models": [MODEL], "tasks": [{"name": "x", "pth": "y"}]}, "no 'pth'"),
        ({"block": 3}, "list of tables"),
    ],
)
def test_what_is_missing_is_said(values: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        define(values)


TRICKY = '''
name = "a # no comment" # one
plans = ["0-5", # here
  """0-3
""", '0-2',
  "0-1"]
[recipe]   # a table
"rate" = 1e-3
betas = [0.9,
  0.99]
nested = { a = 1, b = [1, 2] }
[recipes."my own"]
epochs = 1
[[block]]
seeds = [1]
[[block]]
seeds = [
  2]
[block.recipe]
epochs = 2
'''


def test_lines_of_a_tricky_file() -> None:
    lines = line_numbers(TRICKY)
    rows = TRICKY.splitlines()
    assert rows[lines["plans", 2] - 1].startswith('""", \'0-2\'')
    assert rows[lines["plans", 3] - 1] == '  "0-1"]'
    assert rows[lines["recipe", "betas", 1] - 1] == "  0.99]"
    assert rows[lines["recipes", "my own", "epochs"] - 1] == "epochs = 1"
    assert rows[lines["block", 1, "seeds", 0] - 1] == "  2]"
    assert rows[lines["block", 1, "recipe", "epochs"] - 1] == "epochs = 2"
    assert line_of(lines, ("recipe", "rate", "deeper", 3)) == lines["recipe", "rate"]
    assert line_of({}, ("recipe",)) is None

    def paths(value: Any, above: tuple[str | int, ...] = ()) -> Any:
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, found in inner:
            yield (*above, key)
            if isinstance(found, dict | list):
                yield from paths(found, (*above, key))

    assert set(paths(tomllib.loads(TRICKY))) == set(lines)


def test_braces_that_are_wrong() -> None:
    for text, said in (
        ("drop:top={1", "open or too many"),
        ("drop:top={1,,2}", "missing"),
        ("{k=1,2}{k=3}", "stands twice"),
        ("{0..999999}", "more than"),
    ):
        with pytest.raises(RestackError, match=said):
            braces.expand(text)
    with pytest.raises(RestackError, match="no number to add to"):
        braces.fill("{task+1}", {"task": "rte"})
