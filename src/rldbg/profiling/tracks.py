"""The phases that every process of a run wrote down, read back onto one clock: the broker's.

Each process measured how far its own clock is from the broker's; one that did not takes the best measure of its host.
A file that ends in the middle of a line is a process that was killed: what is whole counts.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rldbg.agent.profiling import BEFORE_STEPS, PHASES
from rldbg.core import IncompleteDataError, Run
from rldbg.profiling.request import STATE_FOLDER

_NUMBERS = re.compile(r"(?:[-_/:]\d+)+$")
# Frameworks make the names of actors unique by hexadecimal digits: agent_loop_worker_0_1f0c88e2.
_RANDOM_END = re.compile(r"[-_/:](?=\d*[a-f])[0-9a-f]{8,}$")


class PhaseSpan(NamedTuple):
    phase: str
    start_ns: int
    length_ns: int
    step: int
    """BEFORE_STEPS before the first one."""
    thread: int
    memory_kib: Sequence[int | None] = ()
    """Entry, peak and exit of host memory, then of GPU memory; then, where known, what malloc has in use at entry and
    exit, and the number of Python's blocks."""
    cpu_ns: Sequence[int] = ()
    """Processor time of the process at both ends."""

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.length_ns


@dataclass(slots=True)
class Track:
    """One process: who it is, its clock, and its spans on the common axis."""

    worker: str
    role: str
    rank: int | None
    host: str
    pid: int
    offset_ns: int | None = None
    round_trip_ns: int | None = None
    spans: list[PhaseSpan] = field(default_factory=list)

    @property
    def group(self) -> str:
        """What several workers of a kind have in common: `policy/1` and `lm_policy-0-1` belong to `policy` and
        `lm_policy`."""
        return _NUMBERS.sub("", self.worker) or self.worker


def read_tracks(run: Path) -> list[Track]:
    """Every process that works, with or without phases, on the broker's clock, by name."""
    tracks = [track for track in map(_read, sorted(_folder(run).glob("*.jsonl"))) if track is not None]
    for track in tracks:
        if track.offset_ns is None:
            track.offset_ns = _offset_of_host(track.host, tracks)
        shift = track.offset_ns or 0
        track.spans = [span._replace(start_ns=span.start_ns + shift) for span in track.spans]
    return sorted(tracks, key=lambda track: (track.worker, track.rank or 0, track.pid))


def with_inner(spans: Iterable[PhaseSpan]) -> list[tuple[PhaseSpan, list[PhaseSpan]]]:
    """Each span with those directly inside it on the same thread."""
    answer: list[tuple[PhaseSpan, list[PhaseSpan]]] = []
    by_thread: dict[int, list[PhaseSpan]] = defaultdict(list)
    for span in spans:
        by_thread[span.thread].append(span)
    for members in by_thread.values():
        open_spans: list[tuple[PhaseSpan, list[PhaseSpan]]] = []
        for span in sorted(members, key=lambda each: (each.start_ns, -each.length_ns)):
            while open_spans and open_spans[-1][0].end_ns <= span.start_ns:
                open_spans.pop()
            if open_spans:
                open_spans[-1][1].append(span)
            open_spans.append((span, []))
            answer.append(open_spans[-1])
    return answer


def self_times(spans: Iterable[PhaseSpan]) -> list[tuple[PhaseSpan, int]]:
    """Each span with its own time, without that of the spans inside it."""
    found = with_inner(spans)
    return [(span, max(span.length_ns - sum(each.length_ns for each in inner), 0)) for span, inner in found]


def books_of(run: Path) -> Path:
    return run / STATE_FOLDER


def profiles_of(run: Path) -> Path:
    """Where the run's profiles are; `-o` may have put them elsewhere."""
    return Path(Run(run).read().get("profiles") or run / "profiles")


def _folder(run: Path) -> Path:
    folder = books_of(run) / PHASES
    if not folder.is_dir():
        raise IncompleteDataError(
            f"{run} contains no phases: no process was profiled",
            "rldbg profile --tool phases -- COMMAND records them at less than 1 % overhead",
        )
    return folder


def _offset_of_host(host: str, tracks: list[Track]) -> int | None:
    measured = [
        (track.round_trip_ns, track.offset_ns)
        for track in tracks
        if track.host == host and track.round_trip_ns is not None
    ]
    return min(measured)[1] if measured else None


def _read(path: Path) -> Track | None:
    """Where a recording does not say otherwise, phases before the first step have step 0."""
    track: Track | None = None
    before = 0
    for line in _lines(path):
        if isinstance(line, list):
            if track is not None:
                span = PhaseSpan(*line)
                track.spans.append(span._replace(step=BEFORE_STEPS) if span.step == before else span)
        elif "clock" in line and track is not None:
            clock = line["clock"]
            if track.round_trip_ns is None or clock["round_trip_ns"] < track.round_trip_ns:
                track.offset_ns, track.round_trip_ns = clock["offset_ns"], clock["round_trip_ns"]
        elif "worker" in line:
            before = line.get("before_steps", 0)
            known = (_RANDOM_END.sub("", line["worker"]), line["role"], line["rank"], line["host"], line["pid"])
            if track is None:
                track = Track(*known)
            track.worker, track.role, track.rank, track.host, track.pid = known
    return track


def _lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                # The last line of a process that was killed as it wrote.
                continue
