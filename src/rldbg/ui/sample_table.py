"""The samples of a recording as columns: one numpy array per quantity, one row per sample, built record by record.

Columns come from the kind that holds a step's samples (trajectories where there are any). What only other kinds know,
such as the trainer's log probs, is joined for one step or sample at a time, on request.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rldbg.core import Finding, IncompleteDataError
from rldbg.recording import EncodedArray, Entry, Ragged, Record, Recording, sample_entries
from rldbg.ui.filtering import matching

# How findings name a sample: with its step, or at any.
_SAMPLE = re.compile(r"(?:step (\d+)\b.*?)?\bsample (.+?/\d+)")
_TEXT_LIMIT = 200
_BINS = 24
_MAX_EXTRA = 16
_NUMBERS = "biuf"
# Columns that are made of all rows.
_LATER = ("truncated", "finding")
_OWN = frozenset(
    {"step", "group", "run", "length", "trained", "turns", "group_id", "run_id", "finding", "truncated", "prompt_hash"}
)
_FIRST = ("step", "group", "run", "reward", "length", "trained", "turns", "truncated", "finding")
# Not shown; filters know the second: the same prompt over steps is `prompt_hash == "..."`.
_HIDDEN = ("last_token", "prompt_hash")


class SampleTable:
    """Rows stay where they are: later records are appended."""

    def __init__(self) -> None:
        self.columns: dict[str, np.ndarray] = {}
        self.count = 0
        self.unreadable: list[str] = []
        self._done: set[Entry] = set()
        self._named: dict[tuple[str, str], str] | None = None

    @property
    def records(self) -> int:
        """How many records were read."""
        return len(self._done)

    def pending(self, recording: Recording) -> list[Entry]:
        """The records with samples that are not part of the table yet, in the order of steps."""
        entries = sorted(sample_entries(recording.listing.entries), key=lambda entry: (entry.step, entry))
        return [entry for entry in entries if entry not in self._done]

    def add(self, recording: Recording, entries: Sequence[Entry]) -> None:
        """Reads these records into the table; one that cannot be read is named and left out."""
        parts = []
        for entry in entries:
            self._done.add(entry)
            try:
                record = recording.read_entry(entry)
            except IncompleteDataError as error:
                self.unreadable.append(error.message)
                continue
            if record.samples:
                parts.append(dict(_columns_of(record)))
        if parts:
            self._append(parts)

    def _append(self, parts: list[dict[str, np.ndarray]]) -> None:
        before = [{name: column for name, column in self.columns.items() if name not in _LATER}] if self.count else []
        names = dict.fromkeys(name for part in [*before, *parts] for name in part)
        every = [*before, *parts]
        lengths = [len(part["step"]) for part in every]
        self.columns = {name: _joined([part.get(name) for part in every], lengths) for name in names}
        self.count = sum(lengths)
        truncated = _truncated(self.columns.get("last_token"))
        if truncated is not None:
            self.columns["truncated"] = truncated
        self._mark()

    def names(self) -> list[str]:
        known = [name for name in _FIRST if name in self.columns]
        return known + [name for name in self.columns if name not in _FIRST and name not in _HIDDEN]

    def select(self, filter: str = "", sort: str = "", *, descending: bool = False) -> np.ndarray:
        """Numbers of the rows that match, in the order asked for; equal values keep the order of the recording."""
        known = {name: self.columns[name] for name in (*self.names(), "prompt_hash") if name in self.columns}
        rows = np.flatnonzero(matching(filter, known, self.count))
        column = self.columns.get(sort)
        if column is None:
            return rows
        values = column[rows]
        if values.dtype == object:
            _, values = np.unique(values.astype(str), return_inverse=True)
        elif values.dtype.kind == "f":  # what is not known comes last in both orders
            values = np.where(np.isnan(values), -np.inf if descending else np.inf, values)
        order = np.argsort(-values.astype(np.float64) if descending else values, kind="stable")
        return rows[order]

    def rows(self, numbers: np.ndarray) -> list[list[Any]]:
        columns = [self.columns[name][numbers].tolist() for name in self.names()]
        return [list(row) for row in zip(*columns, strict=True)]

    def histograms(self, numbers: np.ndarray) -> dict[str, Any]:
        """For each column: bins of numbers, or the most frequent texts."""
        return {name: _histogram(self.columns[name][numbers]) for name in self.names()}

    def mark_findings(self, findings: Sequence[Finding]) -> None:
        """A column that names the first finding which speaks of a sample, also of rows that are read later."""
        self._named = {}
        for finding in findings:
            for text in (finding.where, *finding.evidence):
                for step, name in _SAMPLE.findall(text):
                    self._named.setdefault((step, name), finding.id)
        self._mark()

    def _mark(self) -> None:
        if self._named is not None and self.count:
            rows = zip(*(self.columns[name].tolist() for name in ("step", "group", "run")), strict=True)
            named = self._named
            marks = (
                named.get((str(step), f"{group}/{run}")) or named.get(("", f"{group}/{run}"), "")
                for step, group, run in rows
            )
            self.columns["finding"] = np.array([*marks, None], object)[:-1]


def _columns_of(record: Record) -> Iterator[tuple[str, np.ndarray]]:
    count = len(record.samples)
    yield "step", np.full(count, record.key.step)
    groups, runs = zip(*record.samples, strict=True)
    yield "group", np.array([*groups, None], object)[:-1]
    yield "run", np.array(runs)
    if len(record.fields.get("reward", ())) == count:
        yield "reward", record.array("reward").astype(np.float64)
    tokens, mask = _ragged(record, "tokens", "input_tokens", "input_ids"), _ragged(record, "loss_mask", "response_mask")
    if tokens is not None:
        yield "length", tokens.lengths
    if mask is not None:
        yield from _of_mask(mask, tokens)
        for column, name in (("log_prob", "logprobs"), ("advantage", "advantages"), ("entropy", "entropy")):
            values = _ragged(record, name)
            if values is not None and np.array_equal(values.offsets, mask.offsets):
                yield column, _mean_where(values, np.asarray(mask.values) != 0)
    versions = _ragged(record, "policy_versions")
    if versions is not None:
        known = np.asarray(versions.values) >= 0
        yield "version", _mean_where(versions, known)
    if len(record.prompt_hashes) == count:
        yield "prompt_hash", np.array([*record.prompt_hashes, None], object)[:-1]
    yield from _other_columns(record, count)


def _of_mask(mask: Ragged, tokens: Ragged | None) -> Iterator[tuple[str, np.ndarray]]:
    values = (np.asarray(mask.values) != 0).astype(np.int64)
    starts, ends = mask.offsets[:-1], mask.offsets[1:]
    totals = np.concatenate([[0], np.cumsum(values)])
    yield "trained", totals[ends] - totals[starts]
    begins = values.copy()
    begins[1:] &= 1 - values[:-1]
    inside = starts[starts < len(values)]
    begins[inside] = values[inside]
    turns = np.concatenate([[0], np.cumsum(begins)])
    yield "turns", turns[ends] - turns[starts]
    if tokens is not None and np.array_equal(tokens.offsets, mask.offsets) and len(values):
        places = np.append(np.flatnonzero(values), -1)
        last = places[np.searchsorted(places[:-1], ends) - 1]
        ids = np.asarray(tokens.values)[np.maximum(last, 0)].astype(np.int64)
        yield "last_token", np.where((last >= starts) & (last >= 0), ids, -1)


def _other_columns(record: Record, count: int) -> Iterator[tuple[str, np.ndarray]]:
    """What the framework says per sample beyond the schema: numbers, and short texts."""
    found: dict[str, list[Any]] = {}
    mappings = record.fields.get("extra_fields")
    if isinstance(mappings, list) and len(mappings) == count:
        for number, item in enumerate(mappings):
            for name, value in item.items() if isinstance(item, dict) else ():
                if isinstance(value, bool | int | float | str) and (name in found or len(found) < _MAX_EXTRA):
                    found.setdefault(str(name), [None] * count)[number] = value
    for name, value in {**record.extra, **record.fields}.items():
        if name in ("reward", "extra_fields") or name.startswith("_") or not _is_per_sample(value, count):
            continue
        found.setdefault(name, list(np.asarray(value).tolist()))
    for name, values in found.items():
        is_name = name.isidentifier() and name not in _OWN
        column = _column(values) if is_name else None
        if column is not None:
            yield name, column


def _is_per_sample(value: Any, count: int) -> bool:
    if isinstance(value, np.ndarray | EncodedArray):
        return value.shape == (count,) and np.asarray(value).dtype.kind in _NUMBERS
    return (
        isinstance(value, list)
        and len(value) == count
        and all(isinstance(item, bool | int | float | str) for item in value)
    )


def _column(values: list[Any]) -> np.ndarray | None:
    known = [value for value in values if value is not None]
    if all(isinstance(value, bool | int | float) for value in known):
        return np.array([np.nan if value is None else float(value) for value in values])
    if all(isinstance(value, str) and len(value) <= _TEXT_LIMIT for value in known):
        return np.array([*("" if value is None else value for value in values), None], object)[:-1]
    return None


def _ragged(record: Record, *names: str) -> Ragged | None:
    """The first of these fields, with rows of their own lengths: padded ones end at their width."""
    for name in names:
        value = record.fields.get(name)
        if isinstance(value, Ragged):
            return value if len(value) == len(record.samples) else None
        if (
            isinstance(value, np.ndarray | EncodedArray)
            and len(value.shape) == 2
            and value.shape[0] == len(record.samples)
        ):
            array = np.asarray(value)
            return Ragged(array.reshape(-1), np.arange(len(array) + 1, dtype=np.int64) * array.shape[1])
    return None


def _mean_where(values: Ragged, chosen: np.ndarray) -> np.ndarray:
    numbers = np.where(chosen, np.asarray(values.values, np.float64), 0.0)
    sums, counts = (np.concatenate([[0], np.cumsum(part)]) for part in (numbers, chosen))
    starts, ends = values.offsets[:-1], values.offsets[1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((sums[ends] - sums[starts]) / (counts[ends] - counts[starts]))


def _joined(parts: Sequence[np.ndarray | None], lengths: Sequence[int]) -> np.ndarray:
    is_text = any(part is not None and part.dtype == object for part in parts)
    missing: Any = "" if is_text else np.nan
    filled = [
        part if part is not None else np.full(length, missing, object if is_text else np.float64)
        for part, length in zip(parts, lengths, strict=True)
    ]
    if is_text:
        filled = [part if part.dtype == object else part.astype(str).astype(object) for part in filled]
    return np.concatenate(filled)


def _truncated(last: np.ndarray | None) -> np.ndarray | None:
    """1 where a response does not end with the token that ends most of them; None when there is no such token."""
    if last is None:
        return None
    ends = Counter(int(token) for token in last[last >= 0])
    if not ends or ends.most_common(1)[0][1] <= sum(ends.values()) // 2:
        return None
    return np.where(last >= 0, (last != ends.most_common(1)[0][0]).astype(np.float64), np.nan)


def _histogram(values: np.ndarray) -> dict[str, Any]:
    if values.dtype == object:
        common = Counter(map(str, values)).most_common(_BINS + 1)
        return {"texts": [list(item) for item in common[:_BINS]], "more": len(common) > _BINS}
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return {"edges": [], "counts": [], "unknown": len(values)}
    low, high = float(finite.min()), float(finite.max())
    whole = bool(np.all(finite == np.round(finite)))
    if whole and high - low < _BINS:
        edges = np.arange(low, high + 2)
    else:
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    counts = np.histogram(finite, edges)[0]
    return {"edges": edges.tolist(), "counts": counts.tolist(), "unknown": int(len(values) - finite.size)}
