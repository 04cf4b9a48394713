"""The measures of states, against values by hand and direct formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from restack.observe.measures import Cka, Geometry
from restack.observe.reading import pieces

NAMES = ["the embeddings", "layer 0", "layer 1", "layer 2"]


def geometry(states: list[list[list[float]]], anchor: str = "first") -> Geometry:
    """The geometry of one text; `states` is states x tokens x hidden."""
    tensors = [torch.tensor([state]) for state in states]
    real = torch.ones(tensors[0].shape[:2], dtype=torch.bool)
    found = Geometry(len(states))
    for piece in pieces(tensors, real, anchor, NAMES):
        found.add(*piece)
    return found


def direct_cka(x: np.ndarray, y: np.ndarray) -> float:
    """The same from the tokens x tokens matrices of the definition (Song et al., equation 5)."""

    def hsic(k: np.ndarray, m: np.ndarray) -> float:
        n = len(k)
        one = np.ones(n)
        total = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
        return np.trace(k @ m) + total - 2 / (n - 2) * (one @ k @ m @ one)

    k, m = x @ x.T, y @ y.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    return hsic(k, m) / math.sqrt(hsic(k, k) * hsic(m, m))


def test_cosines_angles_and_updates_by_hand() -> None:
    # a quarter turn and no turn, then a half turn and a doubling
    found = geometry(
        [[[1, 0], [0, 2]], [[0, 1], [0, 2]], [[0, -1], [0, 4]]],
    )
    assert found.cosine(0, 1) == pytest.approx((0 + 1) / 2)
    assert found.cosine(1, 2) == pytest.approx((-1 + 1) / 2)
    assert found.cosine(1, 2, anchors=True) == pytest.approx(-1)
    assert found.angle(0, 1) == pytest.approx((0.5 + 0) / 2)
    assert found.angle(0, 2) == pytest.approx((0.5 + 0) / 2)
    assert found.angle(0, 1, anchors=True) == pytest.approx(0.5)
    assert found.update(0, 1) == pytest.approx((math.sqrt(2) + 0) / 2)
    assert found.update(1, 2) == pytest.approx((2 + 1) / 2)
    assert found.zero_norms == [0, 0, 0]


def test_the_last_token_can_stand_for_the_text() -> None:
    found = geometry([[[1, 0], [0, 2]], [[0, 1], [0, 2]]], "last")
    assert found.cosine(0, 1, anchors=True) == pytest.approx(1)


def test_the_mean_of_angles_is_not_the_angle_of_the_mean() -> None:
    found = geometry([[[1, 0], [1, 0]], [[1, 0], [-1, 0]]])
    assert found.angle(0, 1) == pytest.approx(0.5)
    found = geometry([[[1, 0], [1, 0]], [[1, 0], [1, 1]]])
    assert found.angle(0, 1) == pytest.approx(0.125)
    assert found.angle(0, 1) != pytest.approx(math.acos(found.cosine(0, 1)) / math.pi)


def test_small_changes_are_told_from_none() -> None:
    found = geometry([[[1, 0]], [[1, 1e-5]], [[1, 1e-5]]])
    assert 1 - found.cosine(0, 1) == pytest.approx(5e-11, rel=1e-3)
    assert found.angle(0, 1) == pytest.approx(1e-5 / math.pi, rel=1e-3)
    assert found.angle(1, 2) < 1e-8


def test_tokens_without_direction_are_left_out_and_counted() -> None:
    found = geometry([[[0, 0], [0, 1]], [[1, 0], [1, 0]], [[0, 0], [0, 0]]])
    assert found.zero_norms == [1, 0, 2]
    assert found.cosine(0, 1) == pytest.approx(0)
    assert found.cosine(0, 1, anchors=True) is None
    assert found.cosine(1, 2) is None
    assert found.update(0, 1) == pytest.approx(math.sqrt(2))
    assert found.update(1, 2) == pytest.approx(1)


def test_padding_does_not_count_wherever_it_stands() -> None:
    torch.manual_seed(0)
    tokens = [torch.randn(3, 4) for _ in range(2)]  # states of one text of three tokens
    expected = geometry([t.tolist() for t in tokens], "last")
    for before, behind in ((0, 4), (2, 3), (5, 0)):
        padded = [
            torch.cat([torch.full((before, 4), torch.nan), t, torch.full((behind, 4), 9.0)])[None]
            for t in tokens
        ]
        real = torch.zeros(1, before + 3 + behind, dtype=torch.bool)
        real[:, before : before + 3] = True
        found = Geometry(2)
        for piece in pieces(padded, real, "last", NAMES):
            found.add(*piece)
        for over in (False, True):
            assert found.cosine(0, 1, anchors=over) == expected.cosine(0, 1, anchors=over)


def test_cka_is_the_direct_formula_in_one_pass() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5)) + 30  # far from zero, as some dimensions of real states are
    y = x @ rng.normal(size=(5, 5)) + rng.normal(size=(40, 5))
    z = rng.normal(size=(40, 5)) * [100, 1, 1, 1, 1]
    cka = Cka([(0, 1), (2, 0), (1, 2)])
    for rows in (slice(0, 7), slice(7, 8), slice(8, 40)):
        cka.add(torch.tensor(np.stack([x[rows], y[rows], z[rows]], 1)))
    found = cka.values()
    for i, j in ((0, 1), (0, 2), (1, 2)):
        expected = direct_cka(*((x, y, z)[k] for k in (i, j)))
        assert found[i, j] == pytest.approx(expected, abs=1e-5)


def test_cka_does_not_see_rotations_shifts_and_scales() -> None:
    torch.manual_seed(1)
    x = torch.randn(50, 4)
    turned = 3 * x @ torch.linalg.qr(torch.randn(4, 4))[0] + 5
    cka = Cka([(0, 1)])
    cka.add(torch.stack([x, turned], 1))
    assert cka.values()[0, 1] == pytest.approx(1, abs=1e-5)
    assert cka.values()[0, 0] == pytest.approx(1, abs=1e-12)


def test_cka_of_unrelated_states_is_near_zero_even_in_many_dimensions() -> None:
    torch.manual_seed(2)
    cka = Cka([(0, 1)])
    cka.add(torch.randn(60, 2, 64))
    assert abs(cka.values()[0, 1]) < 0.1  # the plain estimate would be about a half


def test_cka_where_there_is_none() -> None:
    cka = Cka([(0, 1)])
    cka.add(torch.randn(3, 2, 4))
    assert cka.values()[0, 1] is None
    cka.add(torch.randn(3, 2, 4))
    assert cka.values()[0, 1] is not None
    still = Cka([(0, 1)])
    still.add(torch.stack([torch.ones(9, 4), torch.randn(9, 4)], 1))
    assert still.values()[0, 1] is None
