"""The settings of a run that its log shows above a failure: overrides and flags of a command, dumps of a configuration.

A setting counts only if the log has one value for its name: what two components set differently proves nothing.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.evidence import LogPlace
from rldbg.doctor.logs.exception_lines import TRACEBACK, as_exception
from rldbg.doctor.logs.sources import LogSource
from rldbg.doctor.logs.tracebacks import frame_in

_SIZES = (
    b"batch|mbs\\b|bsz|size|len|tokens|seq|gpu|node|world|num_|num-|rollout|n_samples|generations|heads|vocab|hidden|dim|"
    b"layers|context|position|utilization|fraction|limit|parallel|model|workers|nproc|group|experts"
)
_STATED = re.compile(
    r"(?<![\w./$-])(?P<flag>--|\+{1,2})?(?P<name>[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)[\"']?"
    r"(?:\s?=\s?|:\s?|\s?\.{3,}\s?|(?P<space>\s{1,4}))[\"']?"
    r"(?P<value>-?\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?|True|False|true|false|None|null)(?![\w.%/:-]*[\w%])"
)
"""`--name 8`, `a.b.name=8`, `"name": 8`, `name: 8`, and Megatron's `name ........ 8`."""
_WORDS = {"True": True, "true": True, "False": False, "false": False}
_COUNTS = re.compile(r"\d+%\||(?:it/s|s/it)\b|\bstep[ :=]{1,2}\d|\d+/\d+ \[")
"""A bar, or the numbers of a step: what is measured is no setting."""
_LONGEST = 1 << 16


class LoggedSetting(NamedTuple):
    """One setting, and where the log states it."""

    name: str
    """As written, without dashes before it, and with low lines in it: `data.train_batch_size`."""
    value: float | bool
    file: str
    line: int

    @property
    def leaf(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def shown(self) -> str:
        return f"{self.name} (line {self.line})"


class LoggedSettings:
    """All settings that a log states above a place."""

    def __init__(self, settings: Iterable[LoggedSetting] = (), text: str = "") -> None:
        self._by_leaf: dict[str, list[LoggedSetting]] = {}
        self.text = text
        """The lines in which they stand, for the name of a model."""
        for setting in settings:
            self._by_leaf.setdefault(setting.leaf, []).append(setting)

    @classmethod
    def above(cls, place: LogPlace, sources: Sequence[LogSource]) -> "LoggedSettings":
        """Those of the log of a place, above it."""
        source = next((each for each in sources if each.name == place.file), None)
        rows = rows_of(source)[: max(0, place.line)] if source is not None else []
        told = list(_telling(rows))
        settings = (each for number, text in told for each in _stated(text, place.file, number))
        return cls(settings, "\n".join(text for _number, text in told))

    def named(self, name: str) -> LoggedSetting | None:
        """The setting of a name, or of the last words of a longer one (`config.actor.n` is `actor.n`); None where the
        log has several values for it."""
        parts = name.replace("-", "_").split(".")
        same = self._by_leaf.get(parts[-1]) or self._longer(parts[-1])
        for start in range(len(parts)):
            asked = ".".join(parts[start:])
            fit = [each for each in same if each.name == asked or each.name.endswith(f".{asked}")]
            if fit:
                return _the_one(fit)
        return _the_one(same)

    def like(self, shape: re.Pattern[str]) -> list[LoggedSetting]:
        """The settings whose whole name fits an expression, those with one value only, each name once."""
        named: dict[str, list[LoggedSetting]] = {}
        for each in self:
            if shape.search(each.name):
                named.setdefault(each.name, []).append(each)
        found = [one for same in named.values() if (one := _the_one(same))]
        full = {one.name: one.value for one in found}
        return [one for one in found if not _is_repeated(one, full)]

    def __iter__(self) -> Iterator[LoggedSetting]:
        return (each for same in self._by_leaf.values() for each in same)

    def _longer(self, leaf: str) -> list[LoggedSetting]:
        """Settings whose names only begin otherwise: `max_prompt_length` for `prompt_length`."""
        ends = [each for name in self._by_leaf if name.endswith(f"_{leaf}") for each in self._by_leaf[name]]
        return ends if "_" in leaf and len({each.leaf for each in ends}) == 1 else []


def _is_repeated(one: LoggedSetting, full: dict[str, float | bool]) -> bool:
    """Whether a dump repeats, by its last word alone, what an override says in full."""
    return any(name != one.name and name.endswith(f".{one.name}") and full[name] == one.value for name in full)


def _the_one(same: Sequence[LoggedSetting]) -> LoggedSetting | None:
    return min(same, key=lambda each: (-each.name.count("."), each.line)) if len({s.value for s in same}) == 1 else None


def _telling(rows: Sequence[bytes]) -> Iterator[tuple[int, str]]:
    """The lines that may state settings of sizes, cleaned."""
    may_state = re.compile(_SIZES, re.IGNORECASE)
    for number, raw in enumerate(rows, 1):
        if may_state.search(raw[:_LONGEST]):
            text = clean(raw[:_LONGEST]).text
            is_failure = TRACEBACK in text or frame_in(text) or as_exception(text)
            if not is_failure and not _COUNTS.search(text[:400]):
                yield number, text


def _stated(text: str, file: str, line: int) -> Iterator[LoggedSetting]:
    for found in _STATED.finditer(text):
        if found["space"] and found["flag"] != "--":
            continue
        value = found["value"]
        if value not in ("None", "null"):
            name = found["name"].replace("-", "_")
            number = _WORDS[value] if value in _WORDS else float(value.replace("_", ""))
            yield LoggedSetting(name, number, file, line)
