from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from restack.data.cache import Arrays, cache_root, cached_arrays, fingerprint


def test_the_environment_says_where_the_cache_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RESTACK_CACHE", str(tmp_path / "here"))
    assert cache_root() == tmp_path / "here"
    monkeypatch.delenv("RESTACK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "restack"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "restack"


def test_fingerprint_is_of_content_and_its_borders() -> None:
    assert fingerprint(["a", "b"]) == fingerprint(("a", "b"))
    assert fingerprint([("a", "b")]) == fingerprint([["a", "b"]])
    others = (["ab"], ["b", "a"], ["a", "b", ""], ['a"\n"b'])
    assert fingerprint(["a", "b"]) not in {fingerprint(other) for other in others}
    assert fingerprint(["a"], ["b"]) != fingerprint(["a", "b"])
    assert fingerprint(["\ud800"])  # a lone surrogate has no UTF-8 form


def counted() -> tuple[list[int], Callable[[], Arrays]]:
    calls: list[int] = []

    def make() -> Arrays:
        calls.append(1)
        return {"x": np.arange(1000), "n": np.array(3)}

    return calls, make


def test_made_once_and_read_back_alike(cache: Path) -> None:
    calls, make = counted()
    first = cached_arrays("kind", "key", make)
    again = cached_arrays("kind", "key", make)
    assert len(calls) == 1
    assert again["x"].dtype == first["x"].dtype
    assert np.array_equal(again["x"], first["x"])
    assert int(again["n"]) == 3
    assert [p.name for p in (cache / "kind").iterdir()] == ["key.npz"]


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "text"])
def test_a_damaged_entry_is_made_again(cache: Path, damage: str) -> None:
    calls, make = counted()
    cached_arrays("kind", "key", make)
    path = cache / "kind" / "key.npz"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[500] ^= 255
    bad = {"empty": b"", "cut": whole[:-40], "flipped": bytes(flipped), "text": b"no archive"}
    path.write_bytes(bad[damage])
    assert np.array_equal(cached_arrays("kind", "key", make)["x"], np.arange(1000))
    assert len(calls) == 2
    assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RESTACK_CACHE", str(tmp_path / "file"))
    calls, make = counted()
    assert len(cached_arrays("kind", "key", make)["x"]) == 1000
    assert len(calls) == 1
