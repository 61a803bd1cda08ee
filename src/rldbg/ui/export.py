"""A static report of runs: the same page, with its data in files. It opens from disk and needs no server.

    DIR/index.html   DIR/static/   DIR/data/index.js   DIR/data/N.js

A data file is a script, because a page from disk may load scripts but no other files: it hands over compressed JSON.
Answers are written most important first until the limit is reached; the report says what was left out.
"""

import base64
import gzip
import json
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rldbg.core import IncompleteDataError, RldbgError, SampleId, UsageError, explained_as
from rldbg.reports.json_text import to_json
from rldbg.ui import run_pages
from rldbg.ui.catalogue import Catalogue
from rldbg.ui.compare_pages import STATIC, compared
from rldbg.ui.opened_run import OpenedRun
from rldbg.ui.rank_pages import doctor_of
from rldbg.ui.sample_view import group_member, sample_views
from rldbg.ui.step_view import step_view
from rldbg.ui.timeline_page import timeline_of
from rldbg.ui.weights_view import weights_view

_LIMIT_BYTES = 28_000_000
_MAX_STEPS = 60
_MAX_COMPARED = 3
_POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'self' file:; "
    "style-src 'self' file:; img-src 'self' file: data: blob:; base-uri 'none'; form-action 'none'\">"
)
_DIGITS = 7
# Actions on processes: no part of a report.
_DEBUGGING = ("debugger.js", "ranks.js")


def export_report(catalogue: Catalogue, folder: Path) -> dict[str, Any]:
    """Writes the report into a new or empty folder and returns where it is, its size, and what was left out."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder", "choose another one for --export")
    _refuse_nothing(catalogue)
    with explained_as(UsageError, OSError, f"cannot write {folder}", "choose another folder for --export"):
        (folder / "data").mkdir(parents=True)
        shutil.copytree(STATIC, folder / "static", ignore=shutil.ignore_patterns("index.html", "alone.js", *_DEBUGGING))
        page = (STATIC / "index.html").read_text(encoding="utf-8")
        page = page.replace("<title>", f"{_POLICY}\n<title>", 1)
        scripts = '<script src="data/index.js"></script>\n<script src="static/exported.js"></script>\n'
        for name in _DEBUGGING:
            page = page.replace(f'<script src="static/{name}"></script>\n', "")
        page = re.sub(r'(?=<script src="static/app\.js">)', scripts, page)
        (folder / "index.html").write_text(page, encoding="utf-8")
        answers = _Answers(folder / "data")
        for key, answer in _answers(catalogue):
            answers.write(key, answer)
        answers.close()
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {"index": str(folder / "index.html"), "bytes": size, "left_out": answers.left_out}


class _Answers:
    """The data files, and their index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, int] = {}
        self._files = 0
        self._bytes = 0
        self.left_out = 0

    def write(self, key: str, answer: Any) -> None:
        """A group is written as the answers for its samples and for itself, in one file."""
        path, is_group, rest = key.partition("/group?")
        answers = {key: answer}
        if is_group and "error" not in answer:
            group, _, step = rest.rpartition("&")
            answers = {f"{path}/sample?{view['sample']}&{step}": view for view in answer}
            answers[key] = {"group": group, "step": int(step), "members": [group_member(view) for view in answer]}
        packed = base64.b64encode(gzip.compress(to_json(_rounded(answers)).encode(), 6, mtime=0)).decode()
        if self._bytes + len(packed) > _LIMIT_BYTES:
            self.left_out += len(answers)
            return
        self._places |= dict.fromkeys(answers, self._files)
        (self._folder / f"{self._files}.js").write_text(f'"use strict";\nrldbgAnswer({self._files},"{packed}");\n')
        self._files += 1
        self._bytes += len(packed)

    def close(self) -> None:
        index = json.dumps({"places": self._places, "left_out": self.left_out})
        (self._folder / "index.js").write_text(f'"use strict";\nconst rldbgIndex = {index};\n')


def _answers(catalogue: Catalogue) -> Iterator[tuple[str, Any]]:
    """Every answer that the page can ask for, under the key by which it asks; the most important first."""
    runs = catalogue.runs()
    yield "runs", run_pages.runs_page(catalogue)
    readable = [run for run in runs if not _is_broken(run)]
    for run in runs:
        yield from _about(run, run in readable)
    if 2 <= len(readable) <= _MAX_COMPARED:
        names = [run.name for run in readable]
        yield f"compare?{'&'.join(names)}", _or_error(lambda: {"state": "done", "result": compared(readable)})
    for run in readable:
        yield from _steps(run)
    for run in readable:
        yield from _samples(run)


def _about(run: OpenedRun, is_readable: bool) -> Iterator[tuple[str, Any]]:
    from rldbg.analysis import check

    base = f"runs/{run.name}"
    yield base, _or_error(lambda: run_pages.overview_page(run))
    yield f"{base}/timeline", _or_error(lambda: {"state": "done", "result": timeline_of(run, None)})
    yield f"{base}/doctor", _or_error(lambda: {"state": "done", "result": doctor_of(run)})
    if not is_readable:
        return

    def checked() -> dict[str, Any]:
        report = check(run.reopened())
        run_pages.read_samples(run, None)[0].mark_findings(report.findings)
        return {"state": "done", "result": report.to_dict()}

    yield f"{base}/check", _or_error(checked)
    yield f"{base}/metrics", _or_error(lambda: {"state": "done", "result": run_pages.metrics_of(run)})
    yield f"{base}/mismatch", _or_error(lambda: {"state": "done", "result": run_pages.mismatch_of(run)})
    yield f"{base}/weights", _or_error(lambda: {"state": "done", "result": weights_view(run.reopened())})
    yield f"{base}/template", _or_error(lambda: {"state": "done", "result": run_pages.template_of(run)})
    table, _, _ = run_pages.read_samples(run, None)
    columns = {name: table.columns[name].tolist() for name in (*table.names(), "prompt_hash") if name in table.columns}
    yield f"{base}/table", {"columns": columns, "count": table.count, "unreadable": table.unreadable[:20]}


def _steps(run: OpenedRun) -> Iterator[tuple[str, Any]]:
    recording = run.reopened()
    for step in recording.steps()[:_MAX_STEPS]:
        yield (
            f"runs/{run.name}/step/{step}",
            _or_error(lambda step=step: {"state": "done", "result": step_view(recording, step)}),
        )


def _samples(run: OpenedRun) -> Iterator[tuple[str, Any]]:
    """Groups with their samples: those that a finding names first, then in the order of the recording."""
    table = run.table()
    if not table.count:
        return
    rows = zip(*(table.columns[name].tolist() for name in ("step", "group", "run")), strict=True)
    marked = table.columns["finding"].tolist() if "finding" in table.columns else [""] * table.count
    groups: dict[tuple[int, str], list[SampleId]] = {}
    urgent: set[tuple[int, str]] = set()
    for (step, group, member), mark in zip(rows, marked, strict=True):
        groups.setdefault((int(step), str(group)), []).append(SampleId(str(group), int(member)))
        urgent |= {(int(step), str(group))} if mark else set()
    steps = sorted({step for step, _ in groups}, key=lambda step: (not any(step == each for each, _ in urgent), step))
    for step in steps:
        ids = [id for (each, _), members in groups.items() if each == step for id in members]
        try:
            views = {view["sample"]: view for view in sample_views(run, step, ids)}
        except RldbgError as error:
            yield from _unread(run, step, [group for each, group in groups if each == step], ids, error)
            continue
        for (each, group), members in groups.items():
            found = [views[str(id)] for id in dict.fromkeys(members) if str(id) in views] if each == step else []
            if found:
                yield f"runs/{run.name}/group?{group}&{step}", found


def _unread(
    run: OpenedRun, step: int, groups: Sequence[str], ids: Sequence[SampleId], error: RldbgError
) -> Iterator[tuple[str, Any]]:
    """A step with a damaged file: what the server would say of its samples; the others are exported."""
    for kind, name in [*(("group", group) for group in groups), *(("sample", str(id)) for id in ids)]:
        yield f"runs/{run.name}/{kind}?{name}&{step}", {"error": error.to_dict()}


def _refuse_nothing(catalogue: Catalogue) -> None:
    """A report of nothing would look like one in which nothing is wrong."""
    rows = run_pages.runs_page(catalogue)["runs"]
    if not rows:
        raise IncompleteDataError(
            f"no runs found in {', '.join(map(str, catalogue.roots))}", "rldbg run --record -- COMMAND makes one"
        )
    if all("error" in row for row in rows):
        raise IncompleteDataError(rows[0]["error"]["message"], rows[0]["error"]["hint"])


def _is_broken(run: OpenedRun) -> bool:
    try:
        with run.lock:
            return not run.recording.listing.entries
    except RldbgError:
        return True


def _or_error(work: Any) -> Any:
    """The answer, or what the server would say instead."""
    try:
        return work()
    except RldbgError as error:
        return {"error": error.to_dict()}


def _rounded(value: Any) -> Any:
    """Seven digits are what a single-precision number has; the rest would be half of the report."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else value
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        if set(map(type, value)) <= {int, str, bool, type(None)}:
            return value
        return [_rounded(item) for item in value]
    return value
