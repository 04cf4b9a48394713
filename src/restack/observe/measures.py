"""What single forward passes say of layers: sums over texts and tokens, from states alone.

State 0 enters layer 0 and state i + 1 leaves layer i; all are raw, before any final norm. Real
tokens count, special ones (`[CLS]`, `[SEP]`) among them; padding does not. A token whose state is
all zeros has no direction: it is left out of the cosines and angles of that state, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from restack.errors import DataError

_CHUNK = 1 << 23  # numbers of all states looked at together: 64 MB in double precision


class Geometry:
    """Cosines and angles between all states of a stack, and the size of each layer's update.

    In double precision, so that a layer that changes next to nothing is told from the identity.
    `anchor` is the place, among the real tokens, of the one that stands for each text.
    """

    def __init__(self, states: int) -> None:
        shape = (2, states, states)  # over all tokens, over anchors
        self._cosines = torch.zeros(shape, dtype=torch.float64)
        self._angles = torch.zeros(shape, dtype=torch.float64)
        self._counts = torch.zeros(shape, dtype=torch.float64)
        self._updates = torch.zeros(states - 1, dtype=torch.float64)
        self._tokens = self._texts = 0

    def add(self, x: torch.Tensor, is_anchor: torch.Tensor) -> None:
        """Take in states: real tokens x states x hidden."""
        x = double(x)
        is_anchor = is_anchor.to(x.device)
        norms = x.norm(dim=-1)
        directed = norms > 0
        units = x / norms.where(directed, 1).unsqueeze(-1)
        both = directed.unsqueeze(2) & directed.unsqueeze(1)
        cosines = (units @ units.mT).clamp(-1, 1)
        angles = cosines.arccos() / math.pi
        updates = (x[:, 1:] - x[:, :-1]).norm(dim=-1) / norms[:, :-1].where(directed[:, :-1], 1)
        self._updates += (updates * directed[:, :-1]).sum(0).cpu()
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

    def update(self, layer: int) -> float | None:
        """The mean length of what a layer adds, as a part of the length of what enters it."""
        return _ratio(self._updates[layer], self._counts[0, layer, layer])

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

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        own = {(i, i) for pair in pairs for i in pair}
        self._pairs = sorted({(min(pair), max(pair)) for pair in pairs} | own)
        self._gram: dict[tuple[int, int], torch.Tensor] = {}
        self._shift: torch.Tensor | None = None
        self._sum = self._squares = self._square_products = self._weighted = torch.zeros(())
        self._n = 0

    @staticmethod
    def nbytes(pairs: int, hidden: int) -> int:
        """The memory that so many pairs take."""
        return pairs * hidden * hidden * 8

    def add(self, x: torch.Tensor) -> None:
        """Take in states: real tokens x states x hidden."""
        x = x.float()
        if self._shift is None:
            # CKA is blind to a shift, and rounding is not: some dimensions lie far from zero
            self._shift = x.mean(0)
        x = x - self._shift
        squares = double(x).square().sum(-1)
        for i, j in self._pairs:
            gram = double(x[:, i].mT @ x[:, j])
            self._gram[i, j] = gram if (i, j) not in self._gram else self._gram[i, j].add_(gram)
        self._n += len(x)
        self._sum = double(x).sum(0).cpu() + self._sum
        self._squares = squares.sum(0).cpu() + self._squares
        self._square_products = (squares.mT @ squares).cpu() + self._square_products
        weighted = torch.einsum("tsh,tr->srh", double(x), squares)
        self._weighted = weighted.cpu() + self._weighted

    def between(self, i: int, j: int) -> float | None:
        """CKA of two states; None below four tokens, or where a state does not vary."""
        i, j = min(i, j), max(i, j)
        if self._n < 4:
            return None
        own = self._hsic(i, i) * self._hsic(j, j)
        return self._hsic(i, j) / math.sqrt(own) if self._hsic(i, i) > 0 and own > 0 else None

    def _hsic(self, i: int, j: int) -> float:
        """The unbiased HSIC, up to a factor that all pairs share.

        With K = X X' and L = Y Y' without their diagonals d and e (the squared lengths of rows):
        tr KL + (1'K1)(1'L1) / (n-1)(n-2) - 2 (1'KL1) / (n-2), each from sums over rows.
        """
        n, gram = self._n, self._gram[i, j].cpu()
        s, t = self._sum[i], self._sum[j]
        squares = self._square_products[i, j]
        trace = gram.square().sum() - squares
        totals = (s @ s - self._squares[i]) * (t @ t - self._squares[j])
        cross = s @ gram @ t - s @ self._weighted[i, j] - t @ self._weighted[j, i] + squares
        return float(trace + totals / ((n - 1) * (n - 2)) - 2 * cross / (n - 2))


def pieces(
    states: Sequence[torch.Tensor], real: torch.Tensor, anchor: str, names: Sequence[str]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The real tokens of a batch (tokens x states x hidden), some at a time, and which are anchors.

    `names` says of each state where it comes from, for the error about values that are not finite.
    """
    at = anchors(real, anchor)
    is_anchor = torch.zeros_like(real)
    is_anchor[torch.arange(len(real), device=real.device), at] = True
    places = real.flatten().nonzero().squeeze(1)
    flat = [state.reshape(-1, state.shape[-1]) for state in states]
    step = max(64, _CHUNK // (len(states) * flat[0].shape[-1]))
    for some in places.split(step):
        x = torch.stack([state.index_select(0, some) for state in flat], 1)
        finite = x.isfinite().all(-1).all(0)
        if not finite.all():
            where = names[int((~finite).nonzero()[0])]
            raise DataError(
                f"the activations that leave {where} hold values that are not finite numbers",
                hint="Use float32 or bfloat16 if the model ran in float16; otherwise its weights "
                "are damaged.",
            )
        yield x, is_anchor.flatten().index_select(0, some)


def anchors(real: torch.Tensor, anchor: str) -> torch.Tensor:
    """The place of the first or the last real token of each row."""
    if not real.any(-1).all():
        raise DataError(
            f"text {int((~real.any(-1)).nonzero()[0])} of a batch has no token besides padding",
            hint="Leave out empty texts.",
        )
    if anchor == "first":
        return real.int().argmax(-1)
    return real.shape[-1] - 1 - real.flip(-1).int().argmax(-1)


def double(x: torch.Tensor) -> torch.Tensor:
    """In double precision, where the device has it; Apple's GPUs have not."""
    return (x.cpu() if x.device.type == "mps" else x).double()


def _ratio(total: torch.Tensor, count: torch.Tensor) -> float | None:
    return float(total / count) if count else None
