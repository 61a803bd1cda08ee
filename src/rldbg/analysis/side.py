"""One side of a comparison: a recording with its records at hand by kind and step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rldbg.recording import Record, Recording

# What `rldbg rerun` needs to repeat a step: inputs that other kinds already show, and where they came from.
_FOR_RERUN = frozenset({"capsule", "capsule_result"})


class Side:
    """A recording, listed once; records are read when their turn comes."""

    def __init__(
        self, recording: Recording, label: str, *, num_ranks: int | None = None, num_micros: int | None = None
    ) -> None:
        self.recording = recording
        self.label = label
        self._entries = defaultdict(list)
        for entry in recording.entries():
            if entry.kind in _FOR_RERUN:
                continue
            if (num_ranks is None or entry.rank < num_ranks) and (num_micros is None or entry.micro < num_micros):
                self._entries[entry.kind, entry.step].append(entry)

    @property
    def title(self) -> str:
        return self.recording.title

    def kinds(self) -> list[str]:
        return sorted({kind for kind, _ in self._entries})

    def steps(self, kind: str | None = None) -> set[int]:
        return {step for name, step in self._entries if kind is None or name == kind}

    def ranks(self, kind: str, step: int) -> list[int]:
        return sorted({entry.rank for entry in self._entries.get((kind, step), ())})

    def records(self, kind: str, step: int) -> Iterator[Record]:
        return (self.recording.read_entry(entry) for entry in self._entries.get((kind, step), ()))
