"""A head for models that have none, fitted on given texts with the body frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from restack.anatomy import live, models
from restack.errors import DataError, StackError
from restack.observe.heads import MEMORY, Head, chunks
from restack.observe.right_tokens import Reads, asked_tokens
from restack.observe.running import Batch
from restack.observe.splitting import Pieces
from restack.observe.stack_run import layer_states
from restack.observe.tail import Tail, sees_behind, tail_of

FITTED = "fitted"
_COPIES = 6  # of the logits of a chunk: what they and their gradients need
_STEP = 512  # tokens for one step of the optimiser
EPOCHS = 5
MOST_TOKENS = 200_000
Progress = Callable[[str, int, float | None], None]


class _Transform(nn.Module):
    """What the heads of BERT and its kin are: dense, GELU, norm, and the embeddings as decoder."""

    def __init__(self, hidden: int, table: Tensor) -> None:
        super().__init__()
        width = table.shape[1]
        self.dense, self.norm = nn.Linear(hidden, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(len(table)))
        self.table = table.detach().float()  # a plain attribute: it does not train
        if hidden == width:  # states and embeddings are of one kind in many models
            nn.init.eye_(self.dense.weight)
            nn.init.zeros_(self.dense.bias)

    def forward(self, states: Tensor) -> Tensor:
        made = self.norm(functional.gelu(self.dense(states.float())))
        return functional.linear(made, self.table, self.bias)


def fit_head(
    model: PreTrainedModel,
    batches: Iterable[Batch],
    *,
    stack: str | None = None,
    epochs: int = EPOCHS,
    learning_rate: float = 1e-3,
    most_tokens: int = MOST_TOKENS,
    seed: int = 0,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Head:
    """Fit a head to the last layer of a frozen model, on what the lens asks: the token at each
    place of unmasked texts, or for causal models the next one.

    A transform is trained; its decoder is the model's own embeddings. What a fitted head reads from
    the texts that it was fitted on is no measure of the last layer, but the layers below were never
    shown to it. Of more than `most_tokens` tokens, whole batches are chosen by `seed`. A batch that
    does not fit into memory is halved. `progress` is told of `states` and of `fitting` how many
    tokens were just done, and their mean loss.
    """
    base: Any = model.base_model
    path = live.base_path(model, models.pick(model, stack).path)
    found = models.pick(base, path)
    reads: Reads = "same" if sees_behind(base, found) else "next"
    tail = tail_of(base, found)
    shuffle = torch.Generator().manual_seed(seed)
    states, right = _collect(base, path, list(batches), tail, reads, most_tokens, shuffle, progress)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transform = _Transform(states.shape[-1], base.get_input_embeddings().weight)
    transform = transform.to(base.device)
    head = Head(
        FITTED,
        reads,
        tail.hidden,
        len(transform.bias),
        lambda rows: transform(tail(rows, _last_hidden)),
        {**dict(transform.named_parameters()), "table": transform.table},
        base.device,
    )
    with torch.enable_grad():
        _train(transform, head, states, right, epochs, learning_rate, memory, shuffle, progress)
    transform.requires_grad_(False)
    return head


def _last_hidden(output: Any) -> Tensor:
    found = output.get("last_hidden_state")
    if found is None:
        raise StackError(f"{type(output).__name__} holds no last hidden state to fit a head to")
    return found


def _collect(
    model: PreTrainedModel,
    path: str,
    batches: list[Batch],
    tail: Tail,
    reads: Reads,
    most: int,
    shuffle: torch.Generator,
    progress: Progress | None,
) -> tuple[Tensor, Tensor]:
    """The last states of all tokens that are asked for, behind the final norm, and the tokens."""
    stack = models.pick(model, path)
    rows: list[Tensor] = []
    right: list[Tensor] = []
    pieces = Pieces()

    def read(batch: Batch) -> tuple[Tensor, Tensor]:
        asked = asked_tokens(batch, reads)
        if not len(asked.right):  # a half of a batch may hold none
            return torch.empty(0), asked.right
        run = layer_states(model, batch, stack, keep=[stack.depth], tail=False)
        state = run.states[0][:, : asked.where.shape[1]][asked.where.to(model.device)]
        with torch.no_grad():
            return tail(state, _last_hidden).cpu(), asked.right

    for number in torch.randperm(len(batches), generator=shuffle).tolist():
        if not len(asked_tokens(batches[number], reads).right):
            continue
        for _, (found, wanted) in pieces.run(batches[number], read):
            if not len(wanted):
                continue
            rows.append(found)
            right.append(wanted)
            if progress is not None:
                progress("states", len(wanted), None)
        if sum(map(len, right)) >= most:
            break
    if not right:
        raise DataError("there is no token to fit a head on", hint="give longer texts")
    states = torch.cat(rows)[:most]
    if not torch.isfinite(states).all():
        raise DataError("the last layer gives NaN or infinite states", hint="use float32")
    return states, torch.cat(right)[:most]


def _train(
    transform: _Transform,
    head: Head,
    states: Tensor,
    right: Tensor,
    epochs: int,
    learning_rate: float,
    memory: int,
    shuffle: torch.Generator,
    progress: Progress | None,
) -> None:
    optimizer = torch.optim.Adam(transform.parameters(), lr=learning_rate)
    steps = epochs * -(-len(states) // _STEP)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, total_iters=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(states), generator=shuffle).split(_STEP):
            optimizer.zero_grad()
            total = 0.0
            for part, tokens in chunks(
                head, states[rows], right[rows], memory=memory, copies=_COPIES
            ):
                loss = functional.cross_entropy(transform(part), tokens, reduction="sum")
                loss = loss / len(rows)
                loss.backward()
                total += loss.item()
            optimizer.step()
            schedule.step()
            if progress is not None:
                progress("fitting", len(rows), total)
