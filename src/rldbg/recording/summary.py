"""The summary of a recording and its obvious problems, from the listing and the journals only. Files are decoded only
to count samples, up to a limit that is reported when it is reached."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rldbg.core import Finding, IncompleteDataError, Severity, worst
from rldbg.lazy import shown_by
from rldbg.recording.layouts import UNCOUNTED, Entry, Listing
from rldbg.recording.problems import problem
from rldbg.recording.records import OTHER_MODEL
from rldbg.recording.samples import causal_order
from rldbg.recording.source import RecordSource
from rldbg.recording.verification import damage, duplicates, empty_recording, holes, unread_files

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
_PLACES = {kind: place for place, kind in enumerate(_SAMPLE_KINDS)}
# Kinds whose records are numbered by parameter, and by who has the weights: such numbers are not micro-batches.
_BY_PARAMETER = ("param", "gradient", "optimizer_state")
_BY_HOLDER = "weights"
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
    parts: dict[str, int] = field(default_factory=dict)
    """What the numbers in `micros` stand for where they are not micro-batches, and how many there are of each."""


@shown_by("recording")
@dataclass(frozen=True, slots=True)
class Summary:
    """The answer of `rldbg show`; `to_dict()` is its JSON."""

    title: str
    layout: str
    kinds: dict[str, KindSummary]
    samples: int
    health: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        return worst(self.health) in (None, Severity.INFO)

    @classmethod
    def from_dict(cls, title: str, data: Mapping[str, Any]) -> "Summary | None":
        """What to_dict gave; None when it is not that."""
        try:
            kinds = {str(name): KindSummary(**kind) for name, kind in data["kinds"].items()}
            health = tuple(Finding.from_dict(finding) for finding in data["health"])
            return cls(title, str(data["layout"]), kinds, int(data["samples"]), health)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return None

    def to_dict(self) -> dict[str, Any]:
        return {
            "layout": self.layout,
            "kinds": {name: asdict(kind) for name, kind in self.kinds.items()},
            "samples": self.samples,
            "health": [finding.to_dict() for finding in self.health],
        }


def summarise(recording: RecordSource) -> tuple[Summary, Listing]:
    """The summary, and the listing with the samples that were counted on the way."""
    listing, uncounted, damaged = _count_samples(recording)
    entries = listing.entries
    health = [*listing.findings, *damaged]
    if recording.layout.is_regular:
        health += holes(entries)
    health += duplicates(entries)
    health += unread_files(recording.title, listing)
    if not entries:
        health.append(empty_recording(recording))
    if uncounted:
        said = f"{uncounted} records were not opened to count their samples"
        fix = f"rldbg show {recording.title} --step N counts one step"
        health.append(problem("samples-uncounted", recording.title, said, fix=fix))
    samples = sum(max(entry.rows, 0) for entry in sample_entries(entries))
    kinds = _by_kind(entries)
    for kind, each in kinds.items():
        each.parts = _parts(recording, kind, each.micros)
    return Summary(recording.title, recording.layout.name, kinds, samples, tuple(health)), listing


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


def _parts(recording: RecordSource, kind: str, numbers: Sequence[int]) -> dict[str, int]:
    if kind == _BY_HOLDER:
        counted = {"sent": numbers.count(0), "held": len(numbers) - numbers.count(0)}
    elif kind in _BY_PARAMETER:
        others = sum(number >= OTHER_MODEL for number in numbers)
        counted = {"parameters": len(numbers) - others}
        if others:
            counted[f"{_other_model(recording, kind)} parameters"] = others
    else:
        return {}
    return {name: count for name, count in counted.items() if count}


def _other_model(recording: RecordSource, kind: str) -> str:
    """Its name is the first word of the names of its parameters: one of them is read."""
    entry = next(each for each in recording.listing.entries if each.kind == kind and each.micro >= OTHER_MODEL)
    try:
        return str(recording.read_entry(entry).fields["param_name"]).partition(".")[0]
    except (IncompleteDataError, KeyError):
        return "another model's"


def sample_entries(entries: Sequence[Entry]) -> list[Entry]:
    """The entries whose rows are the samples of each step: those of the first kind that the step has."""
    first: dict[int, int] = {}
    for entry in entries:
        if entry.kind in _PLACES:
            first[entry.step] = min(first.get(entry.step, len(_PLACES)), _PLACES[entry.kind])
    return [entry for entry in entries if not entry.epoch and _PLACES.get(entry.kind, -1) == first.get(entry.step)]


def _count_samples(recording: RecordSource) -> tuple[Listing, int, list[Finding]]:
    """The listing with its samples counted, how many records were not opened for want of time, and damaged files."""
    uncounted = [entry for entry in sample_entries(recording.listing.entries) if entry.rows == UNCOUNTED]
    counted: dict[Entry, Entry] = {}
    damaged: dict[str, Finding] = {}
    size = 0
    for entry in uncounted:
        size += entry.size_bytes
        if len(counted) == _MAX_OPENED or (counted and size > _MAX_OPENED_BYTES):
            break
        try:
            counted[entry] = entry._replace(rows=recording.count_rows(entry))
        except IncompleteDataError as error:
            counted[entry] = entry._replace(rows=0)
            where = recording.tree.place(entry.file)
            damaged[where] = damage(where, error)
    if not counted:
        return recording.listing, len(uncounted), []
    entries = tuple(counted.get(entry, entry) for entry in recording.listing.entries)
    return replace(recording.listing, entries=entries), len(uncounted) - len(counted), list(damaged.values())
