"""TRL: completions/completions_<step>.parquet: prompt and completion as text, one column per reward function."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.recording import Record, Tree
from rldbg.recording.formats.parquet import count_rows, read_columns
from rldbg.recording.layouts.base import IDS_FROM, Entry, Layout, Listing, listing_of, matches
from rldbg.recording.layouts.columns import ids_in_order, numbers, text_group

_FILE = re.compile(r"(?:^|/)completions_(?P<step>\d+)\.parquet$")
_OWN = frozenset({"step", "prompt", "completion", "advantage"})


class TrlLayout(Layout):
    name = "trl"
    looks_for = "completions_<step>.parquet"
    files = _FILE

    def survey(self, tree: Tree) -> Listing:
        entries = [
            Entry("prepared_trajectories", int(found["step"]), 0, 0, 0, 0, fact.name, fact.size)
            for fact, found in matches(tree, _FILE)
        ]
        return listing_of(tree, entries)

    def load(self, tree: Tree, file: str) -> dict[str, list[Any]]:
        return read_columns(tree.local(file))

    def count_rows(self, tree: Tree, entry: Entry) -> int:
        return count_rows(tree.local(entry.file))

    def record(self, content: Any, entry: Entry) -> Record:
        columns: dict[str, list[Any]] = content
        count = len(next(iter(columns.values()), []))
        prompts = columns.get("prompt", [None] * count)
        fields: dict[str, Any] = {}
        rewards = _reward_columns(columns)
        if rewards:
            fields["reward"] = _summed([numbers(columns[name]) for name in rewards])
        if "advantage" in columns:
            fields["advantages"] = numbers(columns["advantage"])
        others = [name for name in columns if name not in ("step", "advantage")]
        fields["extra_fields"] = [{name: columns[name][row] for name in others} for row in range(count)]
        extra = {IDS_FROM: "prompt and order in the file", "reward_columns": list(rewards)}
        samples = ids_in_order(text_group(prompt) for prompt in prompts)
        return Record(entry.key, fields, samples, extra=extra, source=entry.file)


def _summed(rewards: Sequence[np.ndarray]) -> np.ndarray:
    """A function that gives a completion no reward does not count there; NaN where none gives one."""
    table = np.stack(rewards)
    total: np.ndarray = np.where(np.isnan(table).all(axis=0), np.nan, np.nansum(table, axis=0))
    return total


def _reward_columns(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """The reward functions' columns, whose sum TRL trains on (weights are not in the file).

    They lie between `completion` and `advantage` with whatever else was logged; those named for a reward count,
    or the only one that holds numbers. None when that cannot be told: every column is in extra_fields anyway.
    """
    numeric = [
        name
        for name, values in columns.items()
        if name not in _OWN and any(_is_number(value) for value in values) and all(map(_is_number_or_none, values))
    ]
    named = [name for name in numeric if "reward" in name.lower()]
    return named or (numeric if len(numeric) == 1 else [])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_number_or_none(value: Any) -> bool:
    return value is None or _is_number(value)


LAYOUT = TrlLayout()
