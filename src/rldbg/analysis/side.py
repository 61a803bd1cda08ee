"""One side of a comparison: a recording with its records by kind and step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from rldbg.analysis.response_columns import Extents
from rldbg.analysis.unpadding import (
    SEQUENCE_KINDS,
    extents,
    mark_padding,
    mark_trained,
    unpack,
    unpad_responses,
    unpad_sequences,
)
from rldbg.recording import Entry, Record, Recording, SharedLists
from rldbg.recording import open as open_recording

if TYPE_CHECKING:
    from rldbg.weights import WeightFault

# What `rldbg rerun` needs to repeat a step: inputs that other kinds already show, and where they came from; and
# fingerprints, which say of two weights that they differ but not by how much; and chosen experts, which rounding may
# change where two are equally likely.
_NOT_COMPARED = frozenset({"capsule", "capsule_result", "weights", "weight_values", "routing", "rollout_routing"})
# What one mode calls rollouts, and the other.
ROLLOUT_KINDS = ("trajectory", "prepared_trajectories")
# Kinds that tell which tokens a sample has: read repeatedly while a step is compared.
_KEPT = frozenset({*ROLLOUT_KINDS, "datums"})
# Small files are cached too: hypotheses read all of a step many times.
_KEPT_UP_TO_BYTES = 1 << 27
_SMALL_FILES, _SMALL_BYTES = 500, 1 << 24


_COMPARED_BYTES = 1 << 18
_WORTH_COMPARING_BYTES = 1 << 20


class SideSource(NamedTuple):
    """What another process needs to open the same side."""

    path: str
    layout: str
    label: str
    num_ranks: int | None
    num_micros: int | None
    shift: int
    first_update: bool
    updates_per_epoch: int | None

    def open(self) -> Side:
        path, layout, label, num_ranks, num_micros, shift, first_update, updates_per_epoch = self
        side = Side(
            open_recording(path, layout=layout),
            label,
            num_ranks=num_ranks,
            num_micros=num_micros,
            shift=shift,
            first_update=first_update,
        )
        side.updates_per_epoch = updates_per_epoch
        return side


class Side:
    """A recording, listed once; records are read lazily.

    `shift` is added to its steps: frameworks do not agree whether the first step is 0 or 1. `first_update` leaves out
    what follows the first optimizer step of each step.
    """

    def __init__(
        self,
        recording: Recording,
        label: str,
        *,
        num_ranks: int | None = None,
        num_micros: int | None = None,
        shift: int = 0,
        first_update: bool = False,
    ) -> None:
        self.recording = recording
        self.label = label
        self._narrowed = (num_ranks, num_micros, shift, first_update)
        self.shift = shift
        self._twin: Side | None = None
        self._lists: SharedLists | None = None
        self._entries = defaultdict(list)
        self._said: set[str] = set()
        self.updates_per_pass = 1
        self.updates_per_epoch: int | None = None
        self._kept: dict[tuple[str, int], list[Record]] = {}
        self._extents: tuple[int | None, Extents] = (None, {})
        for entry in recording.entries():
            if entry.kind in _NOT_COMPARED or (first_update and (entry.epoch or entry.mini_batch)):
                continue
            if (num_ranks is None or entry.rank < num_ranks) and (num_micros is None or entry.micro < num_micros):
                self._entries[entry.kind, entry.step + shift].append(entry)
        self.updates_per_pass = self._count_updates()
        if self.updates_per_pass > 1:
            self._merge_updates()

    def _count_updates(self) -> int:
        """How many optimizer steps follow each backward pass: 1, unless a recorded loop has more in all steps."""
        found = set()
        for step in self.steps("loss") & self.steps("param"):
            kinds = ("loss", "param", "training_metrics")
            passes, updates, logged = (sorted(number for _, number in self.updates(kind, step)) for kind in kinds)
            count = len(updates) // len(passes) or 1
            # `record_loop` counts each optimizer step, and notes its metrics.
            if passes != list(range(0, len(updates), count)) or not updates == logged == list(range(len(updates))):
                return 1
            found.add(count)
        return found.pop() if len(found) == 1 else 1

    def _merge_updates(self) -> None:
        """Merges optimizer steps after one pass: keeps the records before the first and the parameters after the
        last."""
        for (kind, _), entries in self._entries.items():
            last = self.updates_per_pass - 1 if kind == "param" else 0
            entries[:] = [entry for entry in entries if entry.mini_batch % self.updates_per_pass == last]

    def number_like(self, other: Side) -> None:
        """Numbers updates by epoch and mini-batch as `other` does, where this side counts them through each step.

        That is what `record_loop` does, and a loop of its own that leaves epochs out.
        """
        sizes = set()
        for step in self.steps() & other.steps():
            mine, theirs = self._all_updates(step), other._all_updates(step)
            size = 1 + max((number for _, number in theirs), default=0)
            epochs = 1 + max((epoch for epoch, _ in theirs), default=0)
            is_counted = mine == {(0, number) for number in range(size * epochs)}
            if mine == theirs == {(0, 0)}:
                continue
            if not is_counted or len(theirs) != size * epochs:
                return
            sizes.add((size, epochs))
        if len(sizes) == 1 and max(sizes)[1] > 1:
            self.updates_per_epoch = max(sizes)[0]

    def _all_updates(self, step: int) -> set[tuple[int, int]]:
        return {update for kind in self.kinds() for update in self.updates(kind, step)}

    def _update(self, epoch: int, mini_batch: int) -> tuple[int, int]:
        """The epoch and mini-batch by which analysis knows an update."""
        number = mini_batch // self.updates_per_pass
        return (epoch, number) if self.updates_per_epoch is None else divmod(number, self.updates_per_epoch)

    def _renumbered(self, record: Record) -> Record:
        epoch, number = self._update(record.key.epoch, record.key.mini_batch)
        return replace(record, key=record.key._replace(epoch=epoch, mini_batch=number))

    @cached_property
    def weight_faults(self) -> dict[int, list[WeightFault]] | None:
        """By version, what engine replicas hold that was not sent; None when that was not recorded."""
        if not self.recording.entries("weights"):
            return None
        from rldbg.weights import faults_of, snapshots_of  # few recordings have weights

        snapshots = list(snapshots_of(self.recording))
        if not any(item.side == "held" for item in snapshots):
            return None
        found: dict[int, list[WeightFault]] = defaultdict(list)
        for fault in faults_of(snapshots):
            found[fault.version + self.shift].append(fault)
        return found

    def not_compared(self, kind: str, step: int) -> Iterator[Record]:
        """Records of a kind that is not compared field by field, as they are."""
        return iter(self.recording.records(kind, step - self.shift))

    def first_time(self, subject: str) -> bool:
        """Whether nothing was said about a subject before: what is logged, is logged once per recording."""
        is_new = subject not in self._said
        self._said.add(subject)
        return is_new

    @property
    def title(self) -> str:
        return self.recording.title

    @property
    def source(self) -> SideSource:
        num_ranks, num_micros, shift, first_update = self._narrowed
        return SideSource(
            self.recording.title,
            self.recording.layout.name,
            self.label,
            num_ranks,
            num_micros,
            shift,
            first_update,
            self.updates_per_epoch,
        )

    def size_bytes(self, kind: str, step: int) -> int:
        """The size of the files of a kind and step."""
        files = {entry.file: entry.size_bytes for entry in self._entries.get((kind, step), ())}
        return sum(files.values())

    def kinds(self) -> list[str]:
        return sorted({kind for kind, _ in self._entries})

    def steps(self, kind: str | None = None) -> set[int]:
        return {step for name, step in self._entries if kind is None or name == kind}

    def ranks(self, kind: str, step: int) -> list[int]:
        return sorted({entry.rank for entry in self._entries.get((kind, step), ())})

    def updates(self, kind: str, step: int) -> set[tuple[int, int]]:
        """The optimizer steps, as (epoch, mini-batch), that have records of a kind."""
        entries = self._entries.get((kind, step), ())
        return {self._update(entry.epoch, entry.mini_batch) for entry in entries}

    def records(self, kind: str, step: int) -> Iterator[Record]:
        """Unpadded, in the order of their keys, each read lazily; those of the last step are cached if few
        enough, those of all steps in a small recording."""
        entries = self._entries.get((kind, step), ())
        if (kind, step) in self._kept:
            return iter(self._kept[kind, step])
        read = (self._unpadded(self._read(entry), step) for entry in entries)
        if kind not in _KEPT and self.size_bytes(kind, step) > _KEPT_UP_TO_BYTES:
            return read
        if not self._is_small:
            self._kept = {key: kept for key, kept in self._kept.items() if key[0] != kind}
        self._kept[kind, step] = list(read)
        return iter(self._kept[kind, step])

    @cached_property
    def _is_small(self) -> bool:
        """Whether all files can stay open."""
        files = {entry.file: entry.size_bytes for entries in self._entries.values() for entry in entries}
        return len(files) <= _SMALL_FILES and sum(files.values()) <= _SMALL_BYTES

    def compare_with(self, twin: Side) -> None:
        """What both sides hold in the same bytes is decoded once."""
        self._twin = twin
        self._lists = twin._lists = SharedLists()

    def _read(self, entry: Entry) -> Record:
        """A file that has the same bytes on the other side is decoded once, and so are lists in other files."""
        # Decoded number by number; tensors in pt files and files of other formats are mapped.
        is_decoded = entry.file.endswith(".jsonl") or (entry.file.endswith(".pt") and entry.kind in _KEPT)
        if self._lists is None or not is_decoded or entry.size_bytes < _WORTH_COMPARING_BYTES:
            return self.recording.read_entry(entry)
        twin = self._twin
        other = None if twin is None else twin._same_place(entry)
        if twin is None or other is None or not _same_bytes(self.recording, entry.file, twin.recording, other.file):
            with self._lists.in_use():
                return self.recording.read_entry(entry)
        kept = twin._kept.get((entry.kind, entry.step + twin.shift), ()) if entry.kind in SEQUENCE_KINDS else ()
        if found := next((record for record in kept if record.key == other.key), None):
            return found
        return self.recording.read_entry(entry, twin.recording.content(other.file))

    def _same_place(self, entry: Entry) -> Entry | None:
        """What this side has where the other has `entry`, under the same kind or the other mode's name for it."""
        kinds = ROLLOUT_KINDS if entry.kind in ROLLOUT_KINDS else (entry.kind,)
        others = (item for kind in kinds for item in self._entries.get((kind, entry.step + self.shift), ()))
        return next(
            (item for item in others if (item.key[1:], item.size_bytes) == (entry.key[1:], entry.size_bytes)), None
        )

    def _unpadded(self, record: Record, step: int) -> Record:
        if self.updates_per_pass > 1 or self.updates_per_epoch is not None:
            record = self._renumbered(record)
        if record.key.kind in SEQUENCE_KINDS:
            return unpad_sequences(record)

        def known() -> Extents:
            return self._step_extents(step)

        if record.key.kind == "batch_inputs":
            record = unpack(record, known)
        return mark_trained(mark_padding(unpad_responses(record, known), known), known)

    def _step_extents(self, step: int) -> Extents:
        if self._extents[0] != step:
            entries = [entry for kind in SEQUENCE_KINDS for entry in self._entries.get((kind, step), ())]
            known = [extents(self.recording.read_entry(entry)) for entry in entries]
            self._extents = (step, {sample: extent for found in known for sample, extent in found.items()})
        return self._extents[1]


def _same_bytes(one: Recording, file: str, other: Recording, other_file: str) -> bool:
    if one.layout.name != other.layout.name or type(one.tree) is not type(other.tree):
        return False
    left, right = bytearray(_COMPARED_BYTES), bytearray(_COMPARED_BYTES)
    with open(one.tree.local(file), "rb", 0) as a, open(other.tree.local(other_file), "rb", 0) as b:
        while (size := a.readinto(left)) == b.readinto(right):
            if left[:size] != right[:size]:
                return False
            if not size:
                return True
    return False
