"""How far a run clips the ratio of its loss, as its configuration says."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

_LOW = ("clip_low", "clip_ratio_low", "eps_clip", "epsilon", "cliprange", "clip_ratio")
_HIGH = ("clip_high", "clip_ratio_high", "eps_clip_high", "epsilon_high", *_LOW[2:])


def clip_limits(config: Any) -> tuple[float, float] | None:
    """How far the ratio may go below and above 1; None where the configuration does not say."""
    numbers = dict(_numbers_of(config))
    low, high = (next((numbers[key] for key in keys if key in numbers), None) for keys in (_LOW, _HIGH))
    return None if low is None or high is None else (low, high)


def _numbers_of(config: Any) -> Iterator[tuple[str, float]]:
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _numbers_of(value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 < value < 10:
            yield str(key), float(value)
