"""The JSON behind the pages of a run: the list, the overview, the table of samples, check, metrics and one step."""

import csv
import io
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import RldbgError, UsageError
from rldbg.live import is_alive
from rldbg.ui.catalogue import Catalogue
from rldbg.ui.jobs import Jobs
from rldbg.ui.opened_run import OpenedRun
from rldbg.ui.sample_table import SampleTable

_MAX_ROWS = 500
_FIRST_LOOK_S = 0.6
_RECORDS_AT_ONCE = 8
_CHECKED_RUNS = 16
_CHECKED_BYTES = 64_000_000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def runs_page(catalogue: Catalogue, jobs: Jobs | None = None, *, begin_checks: bool = False) -> dict[str, Any]:
    """One row per run, with the verdict of its check if that is known; a recording that cannot be opened says why.

    With `begin_checks` small recordings are checked, unless a job runs that this would slow down.
    """
    runs = catalogue.runs()
    rows = [_row(run) for run in runs]
    begin_checks = begin_checks and all(row["state"] != "running" for row in rows)
    small = [row["name"] for row in rows if row.get("healthy") is not None and row["bytes"] < _CHECKED_BYTES]
    for run, row in zip(runs, rows, strict=True):
        if jobs is not None and begin_checks and row["name"] in small[:_CHECKED_RUNS]:
            jobs.begin(("check", run.name), _stamp(run), partial(_checked, run))
        row["verdict"] = _verdict(jobs, run.name) if jobs is not None else None
    return {"roots": list(catalogue.roots), "runs": rows}


def _verdict(jobs: Jobs, name: str) -> str | None:
    report = jobs.known(("check", name))
    return report["verdict"] if report else "running" if jobs.is_running(("check", name)) else None


def _row(run: OpenedRun) -> dict[str, Any]:
    row: dict[str, Any] = {"name": run.name, "path": run.path, "state": state_of(run)}
    if run.is_unrecorded():
        nothing: dict[str, Any] = {
            "layout": "",
            "kinds": [],
            "steps": None,
            "ranks": None,
            "samples": None,
            "bytes": None,
        }
        return row | nothing | {"healthy": None, "findings": 0}
    try:
        with run.lock:
            summary = run.recording.summary()
    except RldbgError as error:
        return row | {"error": error.to_dict()}
    steps = sorted({step for kind in summary.kinds.values() for step in kind.steps})
    return row | {
        "layout": summary.layout,
        "kinds": list(summary.kinds),
        "steps": [steps[0], steps[-1], len(steps)] if steps else None,
        "ranks": len({rank for kind in summary.kinds.values() for rank in kind.ranks}),
        "samples": summary.samples,
        "bytes": sum(kind.bytes for kind in summary.kinds.values()),
        "healthy": summary.is_healthy and bool(summary.kinds),
        "findings": len(summary.health),
    }


def state_of(run: OpenedRun) -> str:
    """running, ended, failed or recording, as run.json and the broker say."""
    folder = run.folder
    if folder is None:
        return "recording"
    try:
        facts = run.facts()
    except RldbgError:
        return "recording"
    if facts.get("ended_at") is not None:
        return "failed" if facts.get("exit_code") else "ended"
    return "running" if is_alive(folder) else "recording" if not facts.get("started_at") else "not running"


def overview_page(run: OpenedRun) -> dict[str, Any]:
    """What `rldbg show` says, and what is known of the run."""
    facts = run.facts()
    if run.is_unrecorded():
        shown: dict[str, Any] = {"kinds": {}, "samples": None, "layout": "", "health": [], "title": run.path}
    else:
        with run.lock:
            summary = run.recording.summary()
        shown = summary.to_dict() | {"title": summary.title}
    known = (
        "command",
        "started_at",
        "ended_at",
        "exit_code",
        "versions",
        "git_commit",
        "hosts",
        "cwd",
        "name",
        "framework",
    )
    return shown | {
        "name": run.name,
        "path": run.path,
        "state": state_of(run),
        "now": time.time(),
        "run": {name: facts[name] for name in known if facts.get(name) is not None},
    }


def check_page(run: OpenedRun, jobs: Jobs) -> dict[str, Any]:
    """What `rldbg check` says, when it is done; its findings then mark samples in the table."""
    return jobs.ask(("check", run.name), _stamp(run), partial(_checked, run))


def _checked(run: OpenedRun) -> dict[str, Any]:
    from rldbg.analysis import check

    report = check(run.reopened())
    with run.lock:
        run.table().mark_findings(report.findings)
    return report.to_dict()


def metrics_page(run: OpenedRun, jobs: Jobs) -> dict[str, Any]:
    """Curves over steps: what `rldbg check --metrics` computes, and what the trainer reported itself."""
    return jobs.ask(("metrics", run.name), _stamp(run), lambda: metrics_of(run))


def metrics_of(run: OpenedRun) -> dict[str, Any]:
    from rldbg.analysis import metrics_by_step, reported_metrics

    recording = run.reopened()
    reported = reported_metrics(recording.run.metrics_path) if recording.run else {}
    return {
        "computed": metrics_by_step(recording),
        "reported": [{"step": step, **_numbers(row)} for step, row in sorted(reported.items())],
    }


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {
        name: value for name, value in row.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }


def mismatch_page(run: OpenedRun, jobs: Jobs) -> dict[str, Any]:
    """What `rldbg mismatch` says: which share of the gap between rollout and trainer each cause accounts for."""
    return jobs.ask(("mismatch", run.name), _stamp(run), lambda: mismatch_of(run))


def mismatch_of(run: OpenedRun) -> dict[str, Any]:
    from rldbg.mismatch import explain_mismatch

    return explain_mismatch(run.reopened()).to_dict()


def weights_page(run: OpenedRun, jobs: Jobs) -> dict[str, Any]:
    """What was sent to the engine and what each replica holds."""
    from rldbg.ui.weights_view import weights_view

    return jobs.ask(("weights", run.name), _stamp(run), lambda: weights_view(run.reopened()))


def template_page(run: OpenedRun, jobs: Jobs) -> dict[str, Any]:
    """What `rldbg check-template` says of the tokenizer that the run was recorded with."""
    return jobs.ask(("template", run.name), _stamp(run), lambda: template_of(run))


def template_of(run: OpenedRun) -> dict[str, Any]:
    from rldbg.templates import examine_template, load_template, standard_conversations

    folder = str(run.tokenizer_file().parent)
    if not _has_template(Path(folder)):  # to load a tokenizer only to say so takes seconds
        raise UsageError(f"the tokenizer of {folder!r} has no chat template", "rldbg check-template --template FILE")
    return examine_template(load_template(folder), standard_conversations(), model=folder).to_dict()


def _has_template(folder: Path) -> bool:
    settings = folder / "tokenizer_config.json"
    return any(folder.glob("chat_template*")) or (settings.is_file() and "chat_template" in settings.read_text("utf-8"))


def step_page(run: OpenedRun, jobs: Jobs, step: int) -> dict[str, Any]:
    """One step: the checks that fired there, and the samples that carry most of its loss."""
    from rldbg.ui.step_view import step_view

    return jobs.ask(("step", run.name, step), _stamp(run), lambda: step_view(run.reopened(), step))


def samples_page(
    run: OpenedRun, *, filter: str = "", sort: str = "", descending: bool = False, offset: int = 0, limit: int = 100
) -> dict[str, Any]:
    """Rows of the table. Of a large recording, the first answers tell how much is read so far."""
    table, remaining, total = read_samples(run, _FIRST_LOOK_S)
    with run.lock:
        numbers = table.select(filter, sort, descending=descending)
        page = numbers[max(offset, 0) : max(offset, 0) + min(max(limit, 0), _MAX_ROWS)]
        return {
            "columns": table.names(),
            "count": table.count,
            "matched": len(numbers),
            "offset": max(offset, 0),
            "rows": table.rows(page) if table.count else [],
            "histograms": table.histograms(numbers) if offset <= 0 and table.count else None,
            "remaining": remaining,
            "records": total,
            "unreadable": table.unreadable[:20],
            "live": state_of(run) == "running",
        }


def read_samples(run: OpenedRun, patience_s: float | None) -> tuple[SampleTable, int, int]:
    """The table, how many records it lacks after so many seconds (None: all are read), and of how many."""
    table = run.table()
    began = time.monotonic()
    while True:
        with run.lock:
            recording = run.recording
            pending = table.pending(recording)
            if not pending or (patience_s is not None and time.monotonic() - began > patience_s):
                return table, len(pending), len(pending) + table.records
            table.add(
                recording, pending if patience_s is None else pending[: max(_RECORDS_AT_ONCE, table.records // 2)]
            )


def samples_csv(run: OpenedRun, *, filter: str = "", sort: str = "", descending: bool = False) -> Iterator[str]:
    """The whole table as CSV; texts that a spreadsheet would run as formulas are quoted."""
    table, _, _ = read_samples(run, None)
    with run.lock:
        numbers = table.select(filter, sort, descending=descending)
        columns = {name: table.columns[name] for name in table.names()}
    # Without the lock: other threads request the parts, and a client may disconnect.
    yield _csv_lines([columns])
    for first in range(0, len(numbers), 1000):
        part = numbers[first : first + 1000]
        yield _csv_lines(zip(*(column[part].tolist() for column in columns.values()), strict=True))


def _csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow([_harmless(cell) for cell in row])
    return text.getvalue().encode("utf-8", "backslashreplace").decode()


def _harmless(cell: Any) -> Any:
    if isinstance(cell, str):
        return f"'{cell}" if cell.startswith(_FORMULA) else cell
    return "" if isinstance(cell, float) and np.isnan(cell) else cell


def _stamp(run: OpenedRun) -> tuple[int, object]:
    """Changes when the recording does: answers about fewer records are no longer the answer."""
    entries = run.recording.listing.entries
    return len(entries), entries[-1] if entries else None
