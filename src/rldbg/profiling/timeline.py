"""One trace of everything: phases, requests and pauses of all processes, torch and py-spy profiles, Ray's tasks.

Everything is on the broker's clock, in microseconds from `baseTimeNanoseconds`. Memory is bounded: profiles are read
and written one event at a time.
"""

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, Any

from rldbg.profiling.trace_events import ChromeTrace, spy_slices
from rldbg.profiling.tracks import Track, books_of, profiles_of, read_tracks

_BATCH = 1000
_RAY_PID = 10_000_000
_DEVICE_PID = 20_000_000
_OTHER_HOST_PID = 30_000_000
_PAUSE, _REQUEST = "pause", "request"


@dataclass(frozen=True, slots=True)
class Merged:
    """What a timeline holds, and how its clocks were put together."""

    path: Path
    events: int
    tracks: tuple[Track, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        clocks = [
            {
                "worker": track.worker,
                "host": track.host,
                "pid": track.pid,
                "offset_ms": None if track.offset_ns is None else track.offset_ns / 1e6,
                "known_to_ms": None if track.round_trip_ns is None else track.round_trip_ns / 2e6,
            }
            for track in self.tracks
        ]
        return {"path": str(self.path), "events": self.events, "clocks": clocks, "notes": list(self.notes)}


def write_timeline(run: Path, output: Path | None = None) -> Merged:
    """Merges what a run left behind into one file; a name ending in .gz is compressed."""
    tracks = read_tracks(run)
    output = output if output is not None else profiles_of(run) / "trace.json.gz"
    base_ns = min((span.start_ns for track in tracks for span in track.spans), default=0)
    sources = _Sources(run, tracks, base_ns)
    count = 0
    encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
    with _trace_file(output, base_ns) as file:
        events = sources.events()
        while batch := list(islice(events, _BATCH)):
            # Many events at once: one by one they cost three times as much.
            file.write((",\n" if count else "") + encode(batch)[1:-1])
            count += len(batch)
    return Merged(output, count, tuple(tracks), tuple(sources.notes))


@contextmanager
def _trace_file(path: Path, base_ns: int) -> Iterator[IO[str]]:
    """Visible only when whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    packed = path.suffix == ".gz"
    with (
        gzip.open(temporary, "wb", compresslevel=1) if packed else temporary.open("wb") as raw,
        TextIOWrapper(raw) as file,
    ):
        file.write(f'{{"displayTimeUnit":"ms","baseTimeNanoseconds":{base_ns},"traceEvents":[\n')
        yield file
        file.write("\n]}\n")
    temporary.replace(path)


@dataclass(slots=True)
class _Sources:
    run: Path
    tracks: list[Track]
    base_ns: int
    notes: list[str] = field(default_factory=list)

    def events(self) -> Iterator[dict[str, Any]]:
        for place, track in enumerate(self.tracks):
            yield from self._of_track(place, track)
        for number, path in enumerate(sorted(profiles_of(self.run).glob("*.torch.json.gz"))):
            yield from self._of_torch(number, path)
        for path in sorted(profiles_of(self.run).glob("*.speedscope.json")):
            yield from self._of_spy(path)
        for path in sorted(books_of(self.run).glob("ray_timeline_*.json")):
            yield from self._of_ray(path)
        reports = sorted(profiles_of(self.run).glob("*.nsys-rep"))
        if reports:
            self.notes.append(f"{len(reports)} nsys reports are not merged: open them together in Nsight Systems")

    def _of_track(self, place: int, track: Track) -> Iterator[dict[str, Any]]:
        rank = "" if track.rank is None or "/" in track.worker else f" rank {track.rank}"
        pid = self._pid(track)
        yield _name("process_name", pid, 0, f"{track.worker}{rank} ({track.host}:{track.pid})")
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": place}}
        threads: dict[int, int] = {}
        for span in track.spans:
            if span.thread not in threads:
                threads[span.thread] = len(threads) + 1
                yield _name("thread_name", pid, len(threads), "phases" if len(threads) == 1 else "phases, others")
            kind = span.phase if span.phase in (_PAUSE, _REQUEST) else "phase"
            yield {
                "ph": "X",
                "cat": kind,
                "name": span.phase,
                "pid": pid,
                "tid": threads[span.thread],
                "ts": (span.start_ns - self.base_ns) / 1e3,
                "dur": span.length_ns / 1e3,
                "args": {"step": span.step} if span.step >= 0 else {},
            }

    def _of_torch(self, number: int, path: Path) -> Iterator[dict[str, Any]]:
        trace = ChromeTrace(path)
        track = self._track_of(path)
        shift: float | None = None
        devices: set[int] = set()
        pid = self._pid(track) if track is not None else 0
        for event in trace.events():
            if shift is None:
                shift = (trace.base_ns - self.base_ns + self._offset(track)) / 1e3
            if event.get("ph") == "M" and event.get("name") in ("process_name", "process_sort_index", "process_labels"):
                continue
            own = event.get("pid")
            if isinstance(own, str):
                continue
            if track is not None and own == track.pid:
                event["pid"] = pid
            elif track is not None:
                event["pid"] = _DEVICE_PID + number * 1000 + int(own or 0)
                if event["pid"] not in devices:
                    devices.add(event["pid"])
                    yield _name("process_name", event["pid"], 0, f"{track.worker} GPU {own}")
            if "ts" in event:
                event["ts"] = event["ts"] + shift
            if "id" in event:
                event["id"] = f"{number}:{event['id']}"
            yield event

    def _of_spy(self, path: Path) -> Iterator[dict[str, Any]]:
        track = self._track_of(path)
        side = path.with_name(path.name.replace(".speedscope.json", ".pyspy.json"))
        if track is None or not side.exists():
            self.notes.append(f"{path.name} is not merged: its start time is unknown")
            return
        begin = int(json.loads(side.read_text())["started_at"] * 1e9) - self.base_ns + self._offset(track)
        threads: dict[str, int] = {}
        pid = self._pid(track)
        for thread, function, start, length in spy_slices(path):
            if thread not in threads:
                threads[thread] = 1000 + len(threads)
                yield _name("thread_name", pid, threads[thread], f"py-spy: {thread}")
            place = {"pid": pid, "tid": threads[thread]}
            times = {"ts": begin / 1e3 + start * 1e6, "dur": length * 1e6}
            yield {"ph": "X", "cat": "py-spy", "name": function} | place | times

    def _of_ray(self, path: Path) -> Iterator[dict[str, Any]]:
        """Ray's own events; nodes become processes and workers threads."""
        nodes: dict[str, int] = {}
        workers: dict[tuple[str, str], int] = {}
        for event in ChromeTrace(path).events():
            node, worker = str(event.get("pid")), str(event.get("tid"))
            if event.get("ph") != "X":
                continue
            if node not in nodes:
                nodes[node] = _RAY_PID + len(nodes)
                yield _name("process_name", nodes[node], 0, f"Ray tasks of node {node}")
            if (node, worker) not in workers:
                workers[node, worker] = len(workers) + 1
                yield _name("thread_name", nodes[node], workers[node, worker], worker)
            event |= {"pid": nodes[node], "tid": workers[node, worker], "ts": event["ts"] - self.base_ns / 1e3}
            yield event

    def _track_of(self, path: Path) -> Track | None:
        """Whose profile a file is: the manifest says it, else the process id at the end of the name."""
        pid = path.name.partition(".")[0].rpartition("_")[2]
        node = self._nodes().get(path.name, "")
        fits = [track for track in self.tracks if str(track.pid) == pid and node in ("", track.host)]
        return fits[0] if fits else None

    def _nodes(self) -> dict[str, str]:
        """The node of each profile, by file name."""
        manifest = profiles_of(self.run) / "manifest.json"
        if not manifest.exists():
            return {}
        entries = json.loads(manifest.read_text(encoding="utf-8"))["profiles"]
        return {Path(file["path"]).name: str(entry["node"]) for entry in entries for file in entry["files"]}

    def _pid(self, track: Track) -> int:
        """The process id, unless another host has the same one."""
        alike = [other for other in self.tracks if other.pid == track.pid]
        return track.pid if alike[0] is track else _OTHER_HOST_PID + self.tracks.index(track)

    def _offset(self, track: Track | None) -> int:
        return (track.offset_ns or 0) if track is not None else 0


def _name(kind: str, pid: int, tid: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": text}}
