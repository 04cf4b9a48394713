"""Config fields that speak of layers by their number, and what a plan makes of them.

Each rule says what a field decides for the layer at position i. After a re-stacking every slot must
still get what its source layer had: either other values of the same fields say so, or the plan
is refused by the field's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from restack.errors import StackError

Section = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """Fields that together decide something for each layer of a stack."""

    fields: tuple[str, ...]  # all must be present in the config section
    kind: Callable[[Section, int, int], object]  # (section, layer, depth) -> what is decided
    solve: Callable[[Section, list[object]], Iterator[Section]]  # values that may express it

    def applies(self, section: Mapping[str, Any]) -> bool:
        """Whether the section has all fields of this rule, set."""
        return all(section.get(field) is not None for field in self.fields)

    def rewrite(self, section: Section, sources: Sequence[int], depth: int) -> Section:
        """The new values of this rule's fields, or StackError."""
        for field in self.fields:
            _check(field, section[field])
        wanted = [self.kind(section, source, depth) for source in sources]
        new_depth = len(sources)
        unchanged = {field: section[field] for field in self.fields}
        for values in (unchanged, *self.solve(section, wanted)):
            trial = {**section, **values}
            if [self.kind(trial, i, new_depth) for i in range(new_depth)] == wanted:
                return values
        names = " and ".join(f"`{field}`" for field in self.fields)
        shown = ", ".join(f"{field} = {section[field]!r}" for field in self.fields)
        raise StackError(
            f"the config decides by {names} ({shown}) what each layer is, by its number, "
            f"and no value of it describes the new order of the layers",
            hint="choose a plan that keeps layers of one kind where the config expects that kind",
        )


# Fields that list layers, each by its number.
_LISTS = frozenset(
    (
        "moe_layers",
        "global_attn_indexes",
        "window_block_indices",
        "fullatt_block_indexes",
        "full_attn_idxs",
        "attn_layer_indices",
        "rope_scaling_layers",
        "cross_attention_layers",
        "mlp_only_layers",
    )
)
# Fields by which layer numbers are divided.
_DIVISORS = frozenset(
    (
        "attn_layer_period",
        "expert_layer_period",
        "cross_attention_frequency",
        "decoder_sparse_step",
        "moe_layer_interval",
    )
)
_FLAGS = frozenset(("scale_attn_by_inverse_layer_idx",))


def _check(field: str, value: object) -> None:
    """Refuse what cannot be layer numbers before it is computed with."""
    if field in _FLAGS:
        return
    if field in _LISTS:
        expected, fits = "a list of layer numbers", isinstance(value, list)
        fits = fits and all(type(number) is int for number in value)  # type: ignore[attr-defined]
    else:
        least = 1 if field in _DIVISORS else -1  # -1 stands for the last layer
        expected = "a number of layers"
        fits = type(value) is int and value >= least
    if not fits:
        raise StackError(
            f"config field `{field}` is {value!r}, not {expected}",
            hint="mend config.json, or take the field out if the model does not read it",
        )


def _first(field: str) -> Rule:
    """Layers below the field's number are of one kind, the others of another."""
    return Rule(
        (field,),
        lambda section, i, depth: i < section[field],
        lambda section, wanted: iter([{field: sum(map(bool, wanted))}]),
    )


def _sharing(field: str) -> Rule:
    """The last so many layers reuse keys and values of layers below, which have to stay."""

    def role(section: Section, i: int, depth: int) -> object:
        if not section[field]:
            return None
        return "reuses" if i >= depth - section[field] else i

    return Rule((field,), role, lambda section, wanted: iter([{field: wanted.count("reuses")}]))


def _members(field: str) -> Rule:
    """The field lists the numbers of the layers of one kind."""
    return Rule(
        (field,),
        lambda section, i, depth: i in section[field],
        lambda section, wanted: iter([{field: [i for i, member in enumerate(wanted) if member]}]),
    )


def _periodic(period: str, offset: str) -> Rule:
    """Every so many layers one of another kind, beginning at an offset."""

    def solve(section: Section, wanted: list[object]) -> Iterator[Section]:
        for every in range(1, len(wanted) + 2):
            for start in range(every):
                yield {period: every, offset: start}

    return Rule(
        (period, offset),
        lambda section, i, depth: i % section[period] == section[offset],
        solve,
    )


def _every(field: str) -> Rule:
    """Every so many layers one of another kind, beginning at layer 0."""
    return Rule(
        (field,),
        lambda section, i, depth: i % section[field] == 0,
        lambda section, wanted: iter([{field: n} for n in range(1, len(wanted) + 2)]),
    )


def _sparse_step() -> Rule:
    """Qwen MoE: every n-th layer has experts, but for the listed ones."""

    def sparse(section: Section, i: int, depth: int) -> bool:
        listed = i in section["mlp_only_layers"]
        return not listed and (i + 1) % section["decoder_sparse_step"] == 0

    def solve(section: Section, wanted: list[object]) -> Iterator[Section]:
        dense = [i for i, is_sparse in enumerate(wanted) if not is_sparse]
        yield {"mlp_only_layers": dense, "decoder_sparse_step": 1}

    return Rule(("mlp_only_layers", "decoder_sparse_step"), sparse, solve)


def _moe_interval() -> Rule:
    """ERNIE MoE: every n-th layer between two numbers has experts."""
    fields = ("moe_layer_interval", "moe_layer_start_index", "moe_layer_end_index")

    def sparse(section: Section, i: int, depth: int) -> bool:
        every, first, last = (section[field] for field in fields)
        last = depth - 1 if last == -1 else last
        return (i + 1) % every == 0 and first <= i <= last

    def solve(section: Section, wanted: list[object]) -> Iterator[Section]:
        places = [i for i, is_sparse in enumerate(wanted) if is_sparse] or [len(wanted)]
        for every in range(1, len(wanted) + 1):
            yield dict(zip(fields, (every, places[0], places[-1]), strict=True))

    return Rule(fields, sparse, solve)


def _by_number(field: str) -> Rule:
    """The field makes each layer compute with its own number, so no layer may move."""
    return Rule(
        (field,),
        lambda section, i, depth: i if section[field] else None,
        lambda section, wanted: iter(()),
    )


RULES: tuple[Rule, ...] = (
    _first("first_k_dense_replace"),
    _first("num_dense_layers"),
    _sharing("num_kv_shared_layers"),
    _members("moe_layers"),
    _members("global_attn_indexes"),
    _members("window_block_indices"),
    _members("fullatt_block_indexes"),
    _members("full_attn_idxs"),
    _members("attn_layer_indices"),
    _members("rope_scaling_layers"),
    _members("cross_attention_layers"),
    _periodic("attn_layer_period", "attn_layer_offset"),
    _periodic("expert_layer_period", "expert_layer_offset"),
    _every("cross_attention_frequency"),
    _sparse_step(),
    _moe_interval(),
    _by_number("scale_attn_by_inverse_layer_idx"),
)


def rewrite(section: Section, sources: Sequence[int], depth: int) -> Section:
    """The fields of this config section that a plan changes by the rules, with their new values."""
    changed: Section = {}
    for rule in RULES:
        if rule.applies(section):
            changed |= rule.rewrite(section, sources, depth)
    return changed
