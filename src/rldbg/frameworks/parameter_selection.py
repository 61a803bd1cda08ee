"""Which parameters and gradients a run records by default: all of a small model, few of a large one."""

import re
from collections.abc import Sequence
from typing import Any

_MOST_BYTES = 64 * 2**20
_KINDS = frozenset({"param", "gradient", "optimizer_state"})


def parameter_patterns(model: Any, kinds: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Patterns for a Recorder, and in words what they leave out. A user who names the kinds gets every parameter.

    Of a model above the limit the smallest parameters are taken, the same in every run: norms, biases and routers show
    a difference as well as large matrices do, and cost little time.
    """
    sizes = {name: value.numel() * value.element_size() for name, value in model.named_parameters()}
    if _KINDS.intersection(kinds) or sum(sizes.values()) <= _MOST_BYTES:
        return (".",), "all"
    chosen, total = [], 0
    for name in sorted(sizes, key=lambda each: (sizes[each], each)):
        total += sizes[name]
        if total > _MOST_BYTES:
            break
        chosen.append(name)
    words = f"{len(chosen)} of {len(sizes)}, the smallest; all with --record KINDS that names param or gradient"
    return (f"^(?:{'|'.join(map(re.escape, chosen))})$",), words
