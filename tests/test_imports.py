"""What is imported when: fast commands stay free of torch, and packages keep their order."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.families import FAMILIES

SOURCE = Path(__file__).parents[1] / "src" / "restack"

# A package may import itself and those before it.
ORDER = ("plan", "anatomy", "surgery", "data", "observe", "tune", "sweep", "studies", "report")
ORDER = (*ORDER, "demo", "cli")
EVERYWHERE = {"errors", "stats", "__version__"}  # what all packages may import of the root

HEAVY = {"torch", "transformers", "numpy", "scipy", "sklearn", "pandas", "pyarrow", "datasets"}

_WRAPPER = """
import sys
from restack.cli import main
sys.argv = ["restack", *sys.argv[1:]]
try:
    main()
finally:
    loaded = {name.partition(".")[0] for name in sys.modules}
    print("loaded:", *sorted(loaded), file=sys.stderr)
"""


def loaded_by(*arguments: str, code: int = 0) -> set[str]:
    """The top-level modules that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", _WRAPPER, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return set(done.stderr.rpartition("loaded:")[2].split())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("models") / "llama"
    FAMILIES["llama"].build().save_pretrained(where)
    return where


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["plan", "12", "drop:top=6+permute:seed=1"],
        ["plan", "12", "0-11", "--json"],
        ["edit", "--help"],
    ],
    ids=" ".join,
)
def test_without_a_model_nothing_heavy_is_imported(arguments: list[str]) -> None:
    assert not loaded_by(*arguments) & (HEAVY | {"huggingface_hub", "safetensors", "yaml"})


def test_checkpoint_commands_import_nothing_heavy(checkpoint: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert not loaded_by("show", str(checkpoint)) & HEAVY
    assert not loaded_by("edit", str(checkpoint), "0-1,3,3@noop,4", "-o", out) & HEAVY
    assert not loaded_by("verify", out, "--against", str(checkpoint)) & HEAVY
    assert not loaded_by("edit", str(checkpoint), "0-9", "-o", out, code=2) & HEAVY


def test_fresh_weights_and_casts_need_numpy_but_not_torch(checkpoint: Path, tmp_path: Path) -> None:
    edit = ["edit", str(checkpoint), "0-3,4@fresh", "--init", "standard", "--dtype", "float16"]
    assert loaded_by(*edit, "-o", str(tmp_path / "o")) & HEAVY == {"numpy"}
    verify = ["verify", str(tmp_path / "o"), "--against", str(checkpoint)]
    assert loaded_by(*verify) & HEAVY == {"numpy"}


def test_the_watch_sees_torch(checkpoint: Path) -> None:
    assert {"torch", "transformers"} <= loaded_by("verify", str(checkpoint), "--load")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every import of the file, inside functions and for type checkers too: line, full name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports name the whole path"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def out_of_order(path: Path, importer: str) -> list[str]:
    """The imports of a file of this package that do not point upwards."""
    found = []
    for line, name in imports(path):
        root, _, rest = name.partition(".")
        if root != "restack":
            continue
        target = rest.partition(".")[0]
        if target in ORDER:
            wrong = ORDER.index(target) > ORDER.index(importer)
        else:
            wrong = target not in EVERYWHERE
        if wrong:
            found.append(f"{path.name}:{line}: {importer} imports {name}")
    return found


def test_packages_import_upwards_only() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        package, *inner = path.relative_to(SOURCE).parts
        if inner:  # the files of the root give names to the outside and start the command line
            assert package in ORDER, f"{package} has no place in the order of packages"
            found += out_of_order(path, package)
    assert not found


def test_errors_and_statistics_import_nothing_of_the_project() -> None:
    for name in ("errors", "stats"):
        names = [name for _, name in imports(SOURCE / f"{name}.py")]
        assert not [name for name in names if name.startswith("restack.") and "errors" not in name]


def test_the_check_sees_a_wrong_import(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from restack.errors import PlanError\n"
        "def late():\n"
        "    from restack.surgery import restack\n"
        "    from restack import edit\n"
    )
    assert len(out_of_order(tmp_path / "wrong.py", "plan")) == 2
    assert len(out_of_order(tmp_path / "wrong.py", "surgery")) == 1
