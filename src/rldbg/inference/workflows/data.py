"""The rows a rollout runs on: a .jsonl file, or the user's own dataset by name; and the samples made of them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rldbg.core import IncompleteDataError, SampleId, UsageError, load_user_object, user_code

_MOST_ROWS = 1_000_000
_PROMPT_KEYS = ("prompt", "messages", "question", "input_ids", "prompt_ids")


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row of the data: its number, the group its samples form, and what the data says."""

    number: int
    group_id: str
    data: Mapping[str, Any]

    @property
    def prompt(self) -> Any:
        """What a plain function is given: the row's prompt, or the whole row when it has none."""
        return next((self.data[key] for key in _PROMPT_KEYS if key in self.data), dict(self.data))


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """One episode to run: a row, and which of its `n` runs this is."""

    row: DataRow
    run: int

    @property
    def sample(self) -> SampleId:
        return SampleId(self.row.group_id, self.run)


def load_rows(source: str, *, limit: int | None = None) -> list[DataRow]:
    """The first `limit` rows, in order. An empty source is an error, and so is a group id that comes twice."""
    items = _lines(Path(source)) if source.endswith((".jsonl", ".json")) else _dataset(source)
    rows: list[DataRow] = []
    seen: dict[str, str] = {}
    for number, (where, item) in enumerate(islice(items, limit if limit is not None else _MOST_ROWS + 1)):
        if number == _MOST_ROWS:
            raise UsageError(
                f"{source} has more than {_MOST_ROWS} rows, or is infinite", "choose how many with --limit"
            )
        row = _row(number, item, where)
        if row.group_id in seen:
            raise UsageError(
                f"{where} has the group id {row.group_id!r} of {seen[row.group_id]}",
                "give each row its own group_id, or none",
            )
        seen[row.group_id] = where
        rows.append(row)
    if not rows:
        raise IncompleteDataError(f"{source} has no rows", "give --data a file or dataset with at least one prompt")
    return rows


def specs_of(rows: Sequence[DataRow], *, n: int, only: str | None = None) -> list[EpisodeSpec]:
    """Every row `n` times, runs of a row together; `only` is a sample `GROUP/RUN`, or a group."""
    specs = [EpisodeSpec(row, run) for row in rows for run in range(n)]
    if only is None:
        return specs
    chosen = [spec for spec in specs if only in (str(spec.sample), spec.row.group_id)]
    if not chosen:
        first, last = specs[0].sample, specs[-1].sample
        raise UsageError(f"no sample {only!r}; they are {first} to {last}", "raise --limit or --n, or omit --sample")
    return chosen


def _row(number: int, item: Any, where: str) -> DataRow:
    if isinstance(item, str):
        item = {"prompt": item}
    if not isinstance(item, Mapping):
        raise UsageError(
            f"{where} is a {type(item).__name__}, not a row", 'a row is a mapping: {"prompt": "...", ...}, or a string'
        )
    group = next((item[key] for key in ("group_id", "uid") if item.get(key) is not None), number)
    return DataRow(number, str(group), item)


def _lines(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        with open(file, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{file}:{number}", _parsed(line, f"{file}:{number}")
    except OSError as error:
        raise UsageError(f"cannot read the data {file}: {error.strerror}", "check --data") from error
    except UnicodeDecodeError as error:
        raise IncompleteDataError(f"{file} is not UTF-8 text: {error}", "--data takes a .jsonl file") from error


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise IncompleteDataError(
            f"{where} is not JSON: {error}", "each line is one JSON object; fix or remove that line"
        ) from error


def _dataset(source: str) -> Iterator[tuple[str, Any]]:
    found = load_user_object(source, what="dataset")
    if callable(found) and not isinstance(found, Iterable):
        with user_code(f"{source}()"):
            found = found()
    if not isinstance(found, Iterable) and hasattr(found, "__getitem__") and hasattr(found, "__len__"):
        found = map(found.__getitem__, range(len(found)))
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise UsageError(
            f"{source} is a {type(found).__name__}, not a dataset",
            "name an iterable of rows, or a function without arguments that returns one",
        )
    return _numbered(found, source)


def _numbered(items: Iterable[Any], source: str) -> Iterator[tuple[str, Any]]:
    rows = enumerate(items)
    while True:
        with user_code(f"reading {source}"):
            number, item = next(rows, (-1, None))
        if number < 0:
            return
        yield f"{source}[{number}]", item
