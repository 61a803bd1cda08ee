"""One side of a comparison at one step, pass by pass: what hypotheses infer a side's rules from."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rldbg.analysis.samples import common_prefix
from rldbg.analysis.side import Side
from rldbg.analysis.tokens import RESPONSE_KINDS, SampleTokens, read_tokens
from rldbg.core import SampleId
from rldbg.recording import Ragged, Record, RecordKey, part_held

# An optimizer step of the step that is looked at: (epoch, mini-batch).
UpdateInStep = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MicroPass:
    """One forward and backward pass: the records of one (rank, micro-batch) at one optimizer step."""

    update: UpdateInStep
    rank: int
    micro: int
    records: dict[str, Record]

    def array(self, kind: str, name: str) -> np.ndarray | None:
        """A field in double precision; rows of different lengths are padded on the right with 0."""
        record = self.records.get(kind)
        if record is None or name not in record.fields:
            return None
        rows = record.fields[name]
        values = rows.to_padded() if isinstance(rows, Ragged) else record.array(name)
        return values.astype(np.float64) if values.dtype.kind in "fiub" else None

    def number(self, kind: str, name: str) -> float | None:
        found = self.array(kind, name)
        return float(found) if found is not None and found.size == 1 else None


class SideStep:
    """All passes of one side at one step."""

    def __init__(self, side: Side, step: int) -> None:
        self.side = side
        self.step = step
        self._at: dict[UpdateInStep, dict[SampleId, SampleTokens]] = {}

    @cached_property
    def samples(self) -> dict[SampleId, SampleTokens]:
        """Every sample with what the first pass over it says."""
        return read_tokens(self.side, self.step)

    def samples_at(self, update: UpdateInStep) -> dict[SampleId, SampleTokens]:
        """Every sample; per-token quantities of the passes are those of one optimizer step."""
        if update not in self._at:
            others = {place for kind in RESPONSE_KINDS[1:] for place in self.side.updates(kind, self.step)} - {update}
            self._at[update] = read_tokens(self.side, self.step, update) if others else self.samples
        return self._at[update]

    @cached_property
    def micros(self) -> list[MicroPass]:
        """The passes in the order in which they happen."""
        found: dict[tuple[UpdateInStep, int, int], dict[str, Record]] = defaultdict(dict)
        for kind in ("forward_data", "is_loss_debug", "loss", "batch_inputs"):
            for record in self.side.records(kind, self.step):
                key = record.key
                found[(key.epoch, key.mini_batch), key.rank, key.micro][kind] = record
        for records in found.values():
            inputs = records.get("batch_inputs")
            if inputs is not None and not inputs.samples:
                records["batch_inputs"] = replace(inputs, samples=self._samples_of(inputs, records))
        return [MicroPass(*place, records) for place, records in sorted(found.items(), key=lambda item: item[0])]

    def _samples_of(self, inputs: Record, records: dict[str, Record]) -> tuple[SampleId, ...]:
        """The samples that a model was given, where the loop did not say: those of its pass, or whose response the
        attended ids end with; none where a row cannot be told."""
        for record in records.values():
            if record.samples and len(record.samples) == len(list(inputs.rows("input_ids"))):
                return record.samples
        if "attention_mask" not in inputs.fields:
            return ()
        left, found = dict(self.samples), []
        for ids, seen in zip(inputs.rows("input_ids"), inputs.rows("attention_mask"), strict=True):
            attended = np.asarray(ids)[np.asarray(seen) != 0][::-1]
            reach = {name: _shared_end(attended, sample) for name, sample in left.items()}
            best = max(reach, key=lambda name: reach[name], default=None)
            if best is None or not reach[best]:
                return ()
            found.append(best)
            del left[best]
        return tuple(found)

    @cached_property
    def every(self) -> list[MicroPass]:
        """All passes, also where `micros` are some of them: what a mini-batch holds depends on all."""
        return self.micros

    def of_passes(self, what: str, numbers: set[int]) -> SideStep:
        """The same with the passes of some ranks (`rank`) or micro-batches (`micro`) only."""
        view = copy.copy(self)
        view.__dict__["every"] = self.every
        view.__dict__["micros"] = [item for item in self.micros if getattr(item, what) in numbers]
        return view

    def until(self, update: UpdateInStep) -> SideStep:
        """The same with the passes up to an optimizer step only."""
        view = copy.copy(self)
        view.__dict__["micros"] = [item for item in self.micros if item.update <= update]
        return view

    @cached_property
    def homes(self) -> dict[SampleId, RecordKey]:
        """The first pass over each sample: its rank, micro-batch and mini-batch."""
        found: dict[SampleId, RecordKey] = {}
        for item in self.micros:
            for record in item.records.values():
                for sample in record.samples:
                    found.setdefault(sample, record.key)
        return found

    def in_update(self, update: UpdateInStep) -> list[MicroPass]:
        return [item for item in self.micros if item.update == update]

    def tensors(self, kind: str, update: UpdateInStep) -> dict[tuple[str, int], np.ndarray]:
        """Gradients or parameters of one optimizer step, by (name, rank); sharded ones are left out."""
        return dict(self._tensors(kind, self.step, update))

    def _tensors(self, kind: str, step: int, update: UpdateInStep) -> Iterator[tuple[tuple[str, int], np.ndarray]]:
        for record in self.side.records(kind, step):
            key = record.key
            whole = part_held(record) == ()
            if (key.epoch, key.mini_batch) == update and kind in record.fields and whole:
                name = str(record.fields.get("param_name", key.micro))
                yield (name, key.rank), record.array(kind).astype(np.float64)

    def updates(self, kind: str) -> list[tuple[int, UpdateInStep]]:
        """The optimizer steps of the whole recording up to this step, in order, as (step, (epoch, mini-batch))."""
        steps = (step for step in self.side.steps(kind) if step <= self.step)
        return sorted((step, update) for step in steps for update in self.side.updates(kind, step))

    def tensors_of(self, kind: str, place: tuple[int, UpdateInStep]) -> dict[str, np.ndarray]:
        """Gradients or parameters of rank 0 at any optimizer step of the recording."""
        return {name: value for (name, at), value in self._tensors(kind, *place) if at == 0}


def _shared_end(backwards: np.ndarray, sample: SampleTokens) -> int:
    """How many tokens at its end a sample shares with ids, given backwards; 0 where its response is not all there."""
    shared = common_prefix(backwards, sample.tokens[::-1])
    response = (
        len(sample.tokens) - int(np.argmax(sample.loss_mask != 0)) if sample.loss_mask.any() else len(sample.tokens)
    )
    return shared if shared >= response else 0
