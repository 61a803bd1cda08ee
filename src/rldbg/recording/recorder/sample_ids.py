"""Whose rows a record holds: what trainers name their samples by, as sample ids."""

from collections.abc import Iterable, Mapping
from typing import Any

from rldbg.core import SampleId

_UNCHANGING = frozenset({SampleId, tuple, str})
_MOST_REMEMBERED = 64


def as_sample_id(sample: Any) -> SampleId:
    """A sample id from itself, `group/run`, or a pair."""
    if type(sample) is SampleId:
        return sample
    if isinstance(sample, str):
        return SampleId.parse(sample)
    try:
        group_id, run_id = sample
        return SampleId(str(group_id), int(run_id))
    except (TypeError, ValueError) as error:
        raise ValueError(f"not a sample id: {sample!r} (expected a pair such as ('g0', 3), or 'g0/3')") from error


class SampleIds:
    """Makes sample ids, and remembers those of a micro-batch, because all of its kinds are recorded with the same."""

    def __init__(self) -> None:
        self._remembered: dict[int, tuple[tuple[Any, ...], tuple[SampleId, ...]]] = {}

    def given(self, samples: Iterable[Any]) -> tuple[SampleId, ...]:
        """The ids of the samples given with a record."""
        if id(samples) in self._remembered:
            return self._remembered[id(samples)][1]
        given = tuple(samples)
        types = set(map(type, given))
        ids: tuple[SampleId, ...] = given if types == {SampleId} else tuple(map(as_sample_id, given))
        if given is samples and types <= _UNCHANGING:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered = {}
            # The tuple is kept with them: as long as it lives, no other object has its identity.
            self._remembered[id(samples)] = given, ids
        return ids

    def named_by(self, fields: Mapping[str, Any]) -> tuple[SampleId, ...]:
        """The samples that the columns group_id and run_id name, or the same keys of each sample's extra fields."""
        groups, runs = fields.get("group_id"), fields.get("run_id")
        if groups is None or runs is None:
            extras = fields.get("extra_fields")
            if not isinstance(extras, list | tuple) or not all(isinstance(extra, Mapping) for extra in extras):
                return ()
            groups = [extra.get("group_id") for extra in extras]
            runs = [extra.get("run_id") for extra in extras]
        groups, runs = (column.tolist() if hasattr(column, "tolist") else column for column in (groups, runs))
        if any(group is None for group in groups) or any(run is None for run in runs):
            return ()
        return tuple(SampleId(str(group), int(run)) for group, run in zip(groups, runs, strict=True))
