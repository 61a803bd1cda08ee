"""Groups the answers of many ranks: identical ones once with their ranks, numbers with their range, outliers marked."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from rldbg.core import number_ranges

_RANKED = re.compile(r"(.*)/(\d+)")


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """What one process answered: a value when it could, the reason when it could not."""

    who: str
    ok: bool
    value: Any
    text: str

    def to_dict(self) -> dict[str, Any]:
        return {"who": self.who, "ok": self.ok, "value": self.value}


@dataclass(frozen=True, slots=True)
class AnswerGroup:
    """Processes with the same answer; `odd` when they are a small minority, or far from the others."""

    text: str
    value: Any
    who: tuple[str, ...]
    odd: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "who": list(self.who), "odd": self.odd}


@dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, median and maximum of numeric answers."""

    low: float
    middle: float
    high: float

    def to_dict(self) -> dict[str, float]:
        return {"min": self.low, "median": self.middle, "max": self.high}


def group_answers(answers: Iterable[RankAnswer]) -> tuple[list[AnswerGroup], Spread | None]:
    """Largest group first, then by first rank. A lone answer against a majority is odd; so is an outlying number."""
    groups: dict[tuple[bool, str], list[RankAnswer]] = {}
    for answer in answers:
        groups.setdefault((answer.ok, answer.text), []).append(answer)
    total = sum(map(len, groups.values()))
    numbers = [float(a.value) for group in groups.values() for a in group if a.ok and _is_number(a.value)]
    spread = _spread(numbers) if len(numbers) == total and total > 1 else None
    outlying = _outliers(numbers) if spread else set()
    majority = max(map(len, groups.values()), default=0)
    found = []
    for (ok, text), group in groups.items():
        rare = len(group) < majority and len(group) * 2 < total
        value = group[0].value
        odd = not ok or (_is_number(value) and float(value) in outlying) or (rare and majority * 2 > total)
        odd = odd or (_is_number(value) and not math.isfinite(float(value)) and len(groups) > 1)
        found.append(AnswerGroup(text, value if ok else None, tuple(a.who for a in group), odd and len(groups) > 1))
    return sorted(found, key=lambda each: -len(each.who)), spread


def compress(names: Iterable[str]) -> str:
    """policy/0, policy/1, policy/2 and driver as `policy/0-2 driver`."""
    runs: dict[str, list[int]] = {}
    plain: list[str] = []
    for name in names:
        match = _RANKED.fullmatch(name)
        if match:
            runs.setdefault(match[1], []).append(int(match[2]))
        else:
            plain.append(name)
    return " ".join([*(f"{role}/{_ranges(sorted(ranks))}" for role, ranks in runs.items()), *plain])


def _ranges(ranks: list[int]) -> str:
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in number_ranges(ranks))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _spread(numbers: list[float]) -> Spread | None:
    finite = [number for number in numbers if math.isfinite(number)]
    return Spread(min(finite), median(finite), max(finite)) if finite else None


def _outliers(numbers: list[float]) -> set[float]:
    """Numbers further than ten median deviations from the median: too far to be chance."""
    finite = [number for number in numbers if math.isfinite(number)]
    if len(finite) < 4:
        return set()
    middle = median(finite)
    deviation = median(abs(number - middle) for number in finite)
    limit = 10 * deviation if deviation else 1e-9 * max(abs(middle), 1.0)
    return {number for number in finite if abs(number - middle) > limit}
