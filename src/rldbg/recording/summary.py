"""What a recording holds, at a glance, and whether it looks healthy: listing and journals only, no file is decoded
except to count samples, and that within a limit that is stated when it is reached."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rldbg.core import Finding, Severity
from rldbg.recording.layouts import UNCOUNTED, Entry
from rldbg.recording.samples import causal_order
from rldbg.recording.verification import duplicates, empty_recording, holes, unread_files

if TYPE_CHECKING:
    from rldbg.recording.recording import Recording

# A step's samples are counted in the first of these kinds that the step has.
_SAMPLE_KINDS = (
    "trajectory",
    "prepared_trajectories",
    "datums",
    "old_log_probs",
    "forward_data",
    "is_loss_debug",
    "batch_inputs",
    "validation",
)
_MAX_OPENED = 1000
_MAX_OPENED_BYTES = 256 << 20


@dataclass(slots=True)
class KindSummary:
    """What there is of one kind."""

    steps: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    micros: list[int] = field(default_factory=list)
    records: int = 0
    bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "ranks": self.ranks,
            "micros": self.micros,
            "records": self.records,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """The answer of `rldbg show`; `to_dict()` is its JSON."""

    title: str
    layout: str
    kinds: dict[str, KindSummary]
    samples: int
    health: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "layout": self.layout,
            "kinds": {name: kind.to_dict() for name, kind in self.kinds.items()},
            "samples": self.samples,
            "health": [finding.to_dict() for finding in self.health],
        }


def summarise(recording: "Recording") -> Summary:
    entries = recording.listing.entries
    samples, uncounted = _count_samples(recording)
    health = list(recording.listing.findings)
    if recording.layout.is_regular:
        health += holes(entries)
    health += duplicates(entries)
    health += unread_files(recording.title, recording.listing)
    if not entries:
        health.append(empty_recording(recording.title))
    if uncounted:
        health.append(_uncounted(recording.title, uncounted))
    return Summary(recording.title, recording.layout.name, _by_kind(entries), samples, tuple(health))


def _by_kind(entries: Sequence[Entry]) -> dict[str, KindSummary]:
    steps: dict[str, set[int]] = defaultdict(set)
    ranks: dict[str, set[int]] = defaultdict(set)
    micros: dict[str, set[int]] = defaultdict(set)
    files: dict[str, dict[str, int]] = defaultdict(dict)
    records: dict[str, int] = defaultdict(int)
    for entry in entries:
        kind = entry.kind
        steps[kind].add(entry.step)
        ranks[kind].add(entry.rank)
        micros[kind].add(entry.micro)
        files[kind][entry.file] = entry.size_bytes
        records[kind] += 1
    return {
        kind: KindSummary(
            sorted(steps[kind]), sorted(ranks[kind]), sorted(micros[kind]), records[kind], sum(files[kind].values())
        )
        for kind in sorted(records, key=causal_order)
    }


def _count_samples(recording: "Recording") -> tuple[int, int]:
    """Samples over all steps, and how many records were left uncounted because opening them would take too long."""
    by_step: dict[int, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in recording.listing.entries:
        if entry.kind in _SAMPLE_KINDS and entry.epoch == 0:
            by_step[entry.step][entry.kind].append(entry)
    chosen = [
        entry for kinds in by_step.values() for entry in kinds[next(kind for kind in _SAMPLE_KINDS if kind in kinds)]
    ]
    opened: list[Entry] = []
    size = 0
    for entry in chosen:
        if entry.rows == UNCOUNTED:
            size += entry.size_bytes
            if len(opened) == _MAX_OPENED or size > _MAX_OPENED_BYTES:
                break
            opened.append(entry)
    known = sum(entry.rows for entry in chosen if entry.rows != UNCOUNTED)
    counted = sum(entry.rows for entry in recording.count_rows(opened))
    return known + counted, sum(entry.rows == UNCOUNTED for entry in chosen) - len(opened)


def _uncounted(title: str, records: int) -> Finding:
    return Finding(
        "samples-uncounted",
        Severity.INFO,
        title,
        (f"{records} records were not opened to count their samples",),
        "counting them all would take too long for a first look; the number of samples is a lower bound",
        (f"rldbg show {title} --step N counts one step",),
    )
