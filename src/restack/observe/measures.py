"""What states alone say of layers: sums over tokens and texts, in one pass.

State 0 enters layer 0 and state i + 1 leaves layer i; all are raw, before any final norm. They come
as real tokens x states x hidden, see `restack.observe.reading`. A token whose state is all zeros
has no direction: it is left out of the cosines and angles of that state, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor


class Geometry:
    """Cosines and angles between all states of a stack, and how much is added between them.

    In double precision, so that a layer that changes next to nothing is told from the identity.
    Anchors are the tokens that stand for their texts.
    """

    def __init__(self, states: int) -> None:
        shape = (2, states, states)  # over all tokens, over anchors
        self._cosines = torch.zeros(shape, dtype=torch.float64)
        self._angles = torch.zeros(shape, dtype=torch.float64)
        self._counts = torch.zeros(shape, dtype=torch.float64)
        self._updates = torch.zeros(shape[1:], dtype=torch.float64)
        self._tokens = self._texts = 0

    def add(self, x: Tensor, is_anchor: Tensor) -> None:
        """Take in states: real tokens x states x hidden."""
        x = double(x)
        is_anchor = is_anchor.to(x.device)
        norms = x.norm(dim=-1)
        directed = norms > 0
        units = x / norms.where(directed, 1).unsqueeze(-1)
        both = directed.unsqueeze(2) & directed.unsqueeze(1)
        cosines = (units @ units.mT).clamp(-1, 1)
        angles = cosines.arccos() / math.pi
        before, after = norms.unsqueeze(2), norms.unsqueeze(1)
        squares = before.square() + after.square() - 2 * before * after * cosines
        updates = squares.clamp(min=0).sqrt() / before.where(before > 0, 1) * (before > 0)
        self._updates += updates.sum(0).cpu()
        for place, chosen in enumerate((slice(None), is_anchor)):
            self._cosines[place] += (cosines * both)[chosen].sum(0).cpu()
            self._angles[place] += (angles * both)[chosen].sum(0).cpu()
            self._counts[place] += both[chosen].sum(0).cpu()
        self._tokens += len(x)
        self._texts += int(is_anchor.sum())

    def cosine(self, i: int, j: int, *, anchors: bool = False) -> float | None:
        """The mean cosine between states i and j, of all tokens or of the anchors alone."""
        return _ratio(self._cosines[int(anchors), i, j], self._counts[int(anchors), i, j])

    def angle(self, i: int, j: int, *, anchors: bool = False) -> float | None:
        """The mean angle between states i and j, from 0 (alike) to 1 (opposite)."""
        return _ratio(self._angles[int(anchors), i, j], self._counts[int(anchors), i, j])

    def update(self, i: int, j: int) -> float | None:
        """The mean length of what is added from state i to j, as a part of the length of i."""
        return _ratio(self._updates[i, j], self._counts[0, i, i])

    @property
    def zero_norms(self) -> list[int]:
        """How many tokens of each state are all zeros."""
        return [self._tokens - int(n) for n in self._counts[0].diagonal()]


class Cka:
    """Debiased linear CKA between states, real tokens being the examples.

    The unbiased estimator of HSIC (Song et al. 2012), so that few tokens in many dimensions do not
    look alike for that reason. It sees states in one pass and keeps only hidden x hidden sums for
    each pair, never tokens x tokens. It may come out slightly below 0; for unrelated states it
    is 0 on average, and 1 for states that are equal up to a rotation and a scale.
    """

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        pairs = {(min(pair), max(pair)) for pair in pairs}
        self.pairs = sorted(pairs | {(i, i) for pair in pairs for i in pair})
        self._gram: dict[tuple[int, int], Tensor] = {}
        self._shift: Tensor | None = None
        self._sum = self._squares = self._square_products = self._weighted = torch.zeros(())
        self._n = 0

    @staticmethod
    def nbytes(pairs: int, hidden: int) -> int:
        """The memory that so many pairs take."""
        return pairs * hidden * hidden * 4

    def add(self, x: Tensor) -> None:
        """Take in states: real tokens x states x hidden."""
        x = x.float()
        if self._shift is None:
            # CKA is blind to a shift, and rounding is not: some dimensions lie far from zero
            self._shift = x.mean(0)
            new = x.new_zeros
            self._gram = {pair: new(x.shape[-1], x.shape[-1]) for pair in self.pairs}
        x = x - self._shift
        for i, j in self.pairs:
            self._gram[i, j].addmm_(x[:, i].mT, x[:, j])
        x = double(x)
        squares = x.square().sum(-1)
        self._n += len(x)
        self._sum = x.sum(0).cpu() + self._sum
        self._squares = squares.sum(0).cpu() + self._squares
        self._square_products = (squares.mT @ squares).cpu() + self._square_products
        self._weighted = torch.einsum("tsh,tr->srh", x, squares).cpu() + self._weighted

    def values(self) -> dict[tuple[int, int], float | None]:
        """CKA of each pair (i <= j); None below four tokens, or where a state does not vary."""
        if self._n < 4:
            return dict.fromkeys(self.pairs)
        hsic = {pair: self._hsic(*pair) for pair in self.pairs}
        own = {i: value for (i, j), value in hsic.items() if i == j}
        return {
            (i, j): value / math.sqrt(own[i] * own[j]) if min(own[i], own[j]) > 0 else None
            for (i, j), value in hsic.items()
        }

    def _hsic(self, i: int, j: int) -> float:
        """The unbiased HSIC, up to a factor that all pairs share.

        With K = X X' and L = Y Y' without their diagonals d and e (the squared lengths of rows):
        tr KL + (1'K1)(1'L1) / (n-1)(n-2) - 2 (1'KL1) / (n-2), each from sums over rows.
        """
        n, gram = self._n, self._gram[i, j].cpu().double()
        s, t = self._sum[i], self._sum[j]
        squares = self._square_products[i, j]
        trace = gram.square().sum() - squares
        totals = (s @ s - self._squares[i]) * (t @ t - self._squares[j])
        cross = s @ gram @ t - s @ self._weighted[i, j] - t @ self._weighted[j, i] + squares
        return float(trace + totals / ((n - 1) * (n - 2)) - 2 * cross / (n - 2))


def double(x: Tensor) -> Tensor:
    """In double precision, where the device has it; Apple's GPUs have not."""
    return (x.cpu() if x.device.type == "mps" else x).double()


def _ratio(total: Tensor, count: Tensor) -> float | None:
    return float(total / count) if count else None
