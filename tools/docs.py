"""What the docs say that the program knows better: `python -m tools.docs` writes it anew.

docs/cli.md from the help of every command, docs/models.md from the atlas, and the output of every
`restack` command in a ```console block of the README and the guides, run on the models that ship.
The test suite compares.
"""

from __future__ import annotations

import html
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.shell import run

ROOT = Path(__file__).parents[1]
TOURS = ("README.md", "docs/index.md", "docs/plans.md")
_NOTE = "<!-- made by `python -m tools.docs`: do not edit -->"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Write all of it."""
    (ROOT / "docs" / "cli.md").write_text(cli())
    (ROOT / "docs" / "models.md").write_text(models())
    for name in TOURS:
        with tempfile.TemporaryDirectory() as place:
            (ROOT / name).write_text(tour((ROOT / name).read_text(), Path(place)))


def cli() -> str:
    """docs/cli.md."""
    parts = [
        _NOTE,
        "# Commands",
        "`restack COMMAND --help` prints the same. Exit codes: 0 done, 1 a check found a "
        "difference, 2 bad input,\n130 interrupted.",
    ]
    for name, text in helps("restack"):
        parts += [f"## {name}", f"```text\n{text}\n```"]
    return "\n\n".join(parts) + "\n"


def helps(command: str) -> Iterator[tuple[str, str]]:
    """The help of a command, then of each command below it."""
    text = run(f"{command} --help", ROOT).output
    yield command, text
    for line in text.partition("\nCommands:\n")[2].splitlines():
        if named := re.match(r"  ([a-z][\w-]*)", line):  # deeper lines go on with a description
            yield from helps(f"{command} {named[1]}")


def tour(text: str, place: Path) -> str:
    """The same Markdown with each `$ restack` command of a console block run anew, in order."""
    rerun: Callable[[re.Match[str]], str] = lambda block: _rerun(block[1], place)  # noqa: E731
    return _BLOCK.sub(rerun, text)


def _rerun(block: str, place: Path) -> str:
    commands = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    shown = (f"$ {command}\n{run(command, place).output}".rstrip() for command in commands)
    return "```console\n" + "\n\n".join(shown) + "\n```"


def models() -> str:
    """docs/models.md."""
    from restack.anatomy import atlas

    states = atlas.model_types()
    count = Counter(s if s in ("verified", "known") else "unknown" for s in states.values())
    rows = [
        f"| `{name}` | {state} | `{facts.path}` | {_fields(facts.counts)} | {_notes(facts)} |"
        for name, state in states.items()
        if state in ("verified", "known")
        for facts in atlas.known(name)
    ]
    unknown = [
        f"| `{name}` | {html.escape(reason, quote=False).replace('|', '&#124;')} |"
        for name, reason in states.items()
        if reason not in ("verified", "known")
    ]
    return _MODELS.format(
        note=_NOTE,
        version=atlas.transformers_version(),
        total=len(states),
        **{word: count[word] for word in ("verified", "known", "unknown")},
        rows="\n".join(rows),
        unknown_rows="\n".join(unknown),
    )


_MODELS = """\
{note}

# Models

Of the {total} model types of transformers {version} that have a base model:

| state | types | meaning |
|---|---|---|
| verified | {verified} | every stack was rebuilt along trial plans when the atlas was made, and \
each came out right or was refused by a rule |
| known | {known} | the stack is known, but not every trial could be explained |
| unknown | {unknown} | no stack is known, for the reason given [below](#unknown) |

A type that is not listed at all (newer than the atlas, or a class of your own) is looked into when
it is first used, by the same rule that makes the atlas; that needs torch. How the atlas comes
about: [decisions/0003-atlas.md](decisions/0003-atlas.md).

Notes: *shared* - one set of weights for all layers; *lists* - config lists with one entry a layer,
which follow the plan; *edges* - the first and last layer are of a kind of their own; *live* - the
model is built without weights to see whether a plan fits, which needs torch; *in layer 0* - a
tensor of the whole stack that its first layer holds; *by depth* - a tensor outside the stack with a
part for each layer; *packed* - checkpoints store the layer's tensors under other names or packed
otherwise, so `@fresh` always needs torch; *no-op* - layers can be `@noop`.

## Stacks

| model type | state | stack | depth field | notes |
|---|---|---|---|---|
{rows}

## Unknown

| model type | why |
|---|---|
{unknown_rows}
"""


def _fields(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _notes(facts: object) -> str:
    words = {
        "shared": "shared",
        "lists": "lists",
        "edges": "edges",
        "live": "live",
        "bound": "in layer 0",
        "by_depth": "by depth",
        "renamed": "packed",
        "outputs": "no-op",
    }
    return ", ".join(word for field, word in words.items() if getattr(facts, field))


if __name__ == "__main__":
    main()
