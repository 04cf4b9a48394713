"""Module names inside a quantisation config, which follow their layers like the tensors do."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from typing import Any

from restack.anatomy.config import Config
from restack.errors import StackError
from restack.plan import Plan


def rename_modules(config: Config, prefixes: Sequence[str], plan: Plan) -> Config:
    """The config with every module name in its quantisation config moved to the layer's slots."""
    if not config.get("quantization_config") or plan.is_identity:
        return config
    new = copy.deepcopy(config)
    new["quantization_config"] = _moved(new["quantization_config"], _Names(prefixes, plan))
    return new


# Patterns instead of names: of compressed-tensors, and of GPTQModel's `dynamic` rules.
_PATTERN = re.compile(r"re:|[+-]:|.*[\\^$*(\[]")
_NUMBER = re.compile(r"(?<![A-Za-z_0-9{,])\d+(?![A-Za-z_0-9}])")


class _Names:
    def __init__(self, prefixes: Sequence[str], plan: Plan) -> None:
        longest_first = sorted(map(re.escape, prefixes), key=len, reverse=True)
        self.name = re.compile(rf"^((?:.*\.)?(?:{'|'.join(longest_first)}))(\d+)(\..*)?$")
        self.plan = plan

    def __call__(self, text: str) -> Iterator[str]:
        match = self.name.match(text)
        if match is None:
            if _PATTERN.match(text) and _NUMBER.search(text):
                raise StackError(
                    f"the quantisation config names layers by the pattern {text!r}",
                    hint="spell out the module names in quantization_config first",
                )
            yield text
            return
        for slot, source in enumerate(self.plan.sources):
            if source == int(match.group(2)):
                yield f"{match.group(1)}{slot}{match.group(3) or ''}"


def _moved(value: Any, names: _Names) -> Any:
    if isinstance(value, list):
        return [
            new
            for item in value
            for new in (names(item) if isinstance(item, str) else (_moved(item, names),))
        ]
    if isinstance(value, dict):
        return {new: _moved(item, names) for key, item in value.items() for new in names(key)}
    return value
