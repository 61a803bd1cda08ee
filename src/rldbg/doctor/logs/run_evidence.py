"""What a run folder holds in addition to its logs: crash files, read as tracebacks, and stacks of all ranks.

A crash file is shown to the scanner as the text that Python would have printed, so that entries, ranks and the order
of events are found in it as in any log; line numbers count in that text.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rldbg.core import Finding, Severity
from rldbg.doctor.logs.cleaning import Speaker

_LINKS = {
    "cause": "The above exception was the direct cause of the following exception:",
    "context": "During handling of the above exception, another exception occurred:",
}
_SPOILT = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What reading a file of another shape raises."""


def is_crash_file(path: Path) -> bool:
    return path.suffix == ".json" and path.parent.name == "crashes"


def without_reports(files: Sequence[Path]) -> list[Path]:
    """Some crash files without those of launchers that only report the crash of a process which has its own."""
    reports = {file for file in files if _is_report(file)}
    return list(files) if len(reports) == len(files) else [file for file in files if file not in reports]


def _is_report(file: Path) -> bool:
    try:
        last = json.loads(file.read_bytes())["exceptions"][0]
        return bool(last["type"] == "ChildFailedError" or last.get("module") == "torch.multiprocessing.spawn")
    except _SPOILT:
        return False


def crash_text(path: Path) -> bytes:
    """The exception chain of a crash file, the first cause first; an unreadable one is shown as it is."""
    raw = path.read_bytes()
    try:
        return "\n".join(_chain(json.loads(raw))).encode("utf-8", "replace")
    except _SPOILT:
        return raw


def crash_speaker(path: Path) -> Speaker:
    """The process that wrote a crash file."""
    try:
        who = json.loads(path.read_bytes())["who"]
        rank, pid = who.get("rank"), who.get("pid")
        return Speaker(
            str(who.get("role") or ""),
            "" if pid is None else str(pid),
            str(who.get("host") or ""),
            "" if rank is None else str(rank),
        )
    except _SPOILT:
        return Speaker()


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash file: who raised what, and when."""

    file: str
    time: float
    who: str
    host: str
    pid: int
    ancestors: tuple[int, ...]
    is_end: bool
    """Nothing caught it in the main thread of its process."""
    is_driver: bool
    is_of_ray: bool
    errors: tuple[tuple[str, str], ...]
    """Type and message of each exception of its chain; the one that was raised first is the last."""
    functions: tuple[str, ...]
    """Where the first one was raised, the innermost function first."""

    @property
    def headlines(self) -> tuple[str, ...]:
        return tuple(_headline(kind, message) for kind, message in self.errors)


def _headline(kind: str, message: str) -> str:
    """The first line of an exception, without its module."""
    return f"{kind.rpartition('.')[2]}: {message.partition(chr(10))[0]}".rstrip(": ")


def crashes_in(files: Sequence[Path]) -> list[Crash]:
    """The readable ones of some crash files, the earliest first."""
    found = []
    for file in files:
        try:
            found.append(_crash(file, json.loads(file.read_bytes())))
        except _SPOILT:
            continue
    return sorted(found, key=lambda crash: crash.time)


def _crash(file: Path, record: dict[str, Any]) -> Crash:
    who, chain = record["who"], record["exceptions"]
    return Crash(
        str(file),
        float(record["time"]),
        str(who["role"]),
        str(who["host"]),
        int(who["pid"]),
        tuple(who.get("ancestors") or ()),
        is_end=record["where"] == "process",
        is_driver=who.get("kind") == "driver",
        is_of_ray=bool(who.get("ray")),
        errors=tuple((str(error["type"]), str(error["message"])) for error in chain),
        functions=tuple(str(frame["function"]).rpartition(".")[2] for frame in chain[-1]["frames"]),
    )


def _chain(record: dict[str, Any]) -> Iterator[str]:
    moment = datetime.fromtimestamp(record["time"]).strftime("%Y-%m-%d %H:%M:%S,%f")
    step = f", step {record['step']}" if record.get("step") is not None else ""
    yield f"{moment} raised in {record.get('where')} {record.get('thread')}{step}"
    chain: list[dict[str, Any]] = record["exceptions"]
    for position, error in reversed(list(enumerate(chain))):
        yield "Traceback (most recent call last):"
        for frame in reversed(error["frames"]):
            yield f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}'
        module = error.get("module") or "builtins"
        name = error["type"] if module in ("builtins", "__main__") else f"{module}.{error['type']}"
        yield from f"{name}: {error['message']}".split("\n")
        yield from (str(note) for note in error.get("notes") or ())
        if position:
            yield from ("", _LINKS.get(error["relation"], _LINKS["context"]), "")


def stack_findings(files: Sequence[Path]) -> list[Finding]:
    """Who held the others up by the stacks that were kept; files that say nothing about it give nothing."""
    from rldbg.live import diagnose_stacks

    found = []
    for file in files:
        try:
            stacks = json.loads(file.read_text(encoding="utf-8"))["stacks"]
            verdict = diagnose_stacks(stacks, stacks)
        except _SPOILT as error:
            fix = ("remove the file; the rest of the run is read without it",)
            reason = "these stacks are unreadable"
            found.append(Finding("stacks-unreadable", Severity.WARNING, str(file), (str(error),), reason, fix))
            continue
        if verdict.ranks:
            # What it advises is for processes that still live.
            fix = ("read the crash files and logs of these ranks first",)
            found.append(replace(verdict.to_finding(), fix=fix))
    return found
