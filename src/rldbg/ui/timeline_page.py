"""The JSON behind the timeline of a run: phases, requests and pauses of every process on one clock."""

from heapq import nlargest
from pathlib import Path
from typing import Any

from rldbg.core import RldbgError
from rldbg.profiling import make_report, read_tracks, write_timeline
from rldbg.ui.jobs import Jobs
from rldbg.ui.opened_run import OpenedRun

_MAX_SPANS = 6000


def timeline_page(run: OpenedRun, jobs: Jobs, step: int | None) -> dict[str, Any]:
    """One step, or the whole run; read again when the run has written more steps."""
    run.run_folder("timeline")
    return jobs.ask(("timeline", run.name, step), run.state_stamp(), lambda: timeline_of(run, step))


def trace_file(run: OpenedRun, folder: Path) -> Path:
    """The timeline as one file for Perfetto or Chrome, written below this folder."""
    return write_timeline(run.run_folder("timeline"), folder / "trace.json.gz").path


def timeline_of(run: OpenedRun, step: int | None) -> dict[str, Any]:
    """Lanes of spans in seconds from the first; of very many, the longest. With what `rldbg profile report` says."""
    folder = run.run_folder("timeline")
    tracks = read_tracks(folder)
    steps = sorted({span.step for track in tracks for span in track.spans if span.step is not None and span.step >= 0})
    chosen = [
        (number, span)
        for number, track in enumerate(tracks)
        for span in track.spans
        if step is None or span.step == step
    ]
    begin = min((span.start_ns for _, span in chosen), default=0)
    kept = nlargest(_MAX_SPANS, chosen, key=lambda item: item[1].length_ns)
    lanes: list[dict[str, Any]] = [
        {"worker": track.worker, "rank": track.rank, "host": track.host, "pid": track.pid, "spans": []}
        for track in tracks
    ]
    for number, span in kept:  # longest first: what lies within another span is drawn above it
        place = [(span.start_ns - begin) / 1e9, span.length_ns / 1e9, span.phase, span.step]
        lanes[number]["spans"].append(place)
    try:
        report: dict[str, Any] | None = make_report(folder).to_dict()
    except RldbgError:  # a run without whole steps has a timeline and no report
        report = None
    return {"lanes": lanes, "steps": steps, "step": step, "left_out": len(chosen) - len(kept), "report": report}
