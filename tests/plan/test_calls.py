"""The table of verbs: complete, and every form that it names can be read."""

from __future__ import annotations

import pytest

from restack.plan import VERBS, Plan, verbs

SAMPLES = {
    "LAYERSxN": "3x3",
    "LAYERS": "3,5-7",
    "A,B": "3,7",
    "=K": "=4",
    "=X": "=0.9",
    ":K": ":14",
}


def calls() -> list[str]:
    """Each alternative of each form, filled in: 'drop:top=4', 'drop:bottom=4'..."""
    found = []
    for name, verb in VERBS.items():
        for alternative in verb.form.removeprefix(name).removeprefix(":").split(" | "):
            call = f"{name}:{alternative}" if alternative else name
            for placeholder, sample in SAMPLES.items():
                call = call.replace(placeholder, sample)
            found.append(call.replace("to=4", "to=14"))
    return found


@pytest.mark.parametrize("call", calls())
def test_every_form_that_the_table_names_can_be_read(call: str) -> None:
    assert len(Plan.parse(call, 12, scores=[0.5] * 11 + [0.95])) > 0


def test_every_key_is_in_the_form() -> None:
    for verb in VERBS.values():
        assert all(f"{key}=" in verb.form for key in verb.keys)


def test_every_verb_function_is_in_the_table() -> None:
    functions = {
        n for n, f in vars(verbs).items() if getattr(f, "__module__", "") == verbs.__name__
    }
    assert {name for name in functions if name[0] != "_"} == {*VERBS, "drop_by_score"}
