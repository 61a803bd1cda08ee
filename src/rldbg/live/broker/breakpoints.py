"""Breakpoints set from outside: kept by the broker, applied to every process they are meant for, also to later ones."""

import contextlib
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from rldbg.agent import WireError
from rldbg.core import UnreachableError, UsageError
from rldbg.live.broker.breakpoint import (
    EXCEPTION_FILTERS,
    Break,
    check_condition,
    described_break,
    identity,
    restored_break,
)
from rldbg.live.broker.debug_session import DebugSession
from rldbg.live.broker.kept_files import KeptFiles
from rldbg.live.broker.processes import Process

_FAILED_CONDITION = "pydevd: Error while evaluating expression in conditional breakpoint:"
_LOG_LINES_KEPT = 1000


class BreakTable:
    """All breakpoints of the run."""

    def __init__(self, files: KeptFiles) -> None:
        self._files = files
        self._breaks: dict[int, Break] = {}
        # The highest number that was given; also of one that was cleared since. Those of steps are negative: users
        # count their own.
        self.last_id = self._last_step = 0
        # The paths, as each process knows them, of files with breakpoints: clearing them means sending these paths
        # again.
        self._paths: dict[int, dict[str, str]] = {}
        self._file: Path | None = None
        self._owner = 0
        # Incremented with every change, so that a caller can tell whether what it configured is still current.
        self.revision = 0

    def keep_in(self, file: Path, *, owner: int) -> None:
        """Writes all breakpoints to this file from now on, and restores those of a killed broker of the same owner."""
        self._file, self._owner = file, owner
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
            if body["owner"] != owner:
                return
            kept = {int(each["id"]): restored_break(each) for each in body["breakpoints"]}
            last = max([int(body.get("last_id") or 0), *kept])
        except (OSError, ValueError, KeyError, TypeError, UsageError):
            # No file, or not one of ours.
            return
        self._breaks, self.last_id, self._last_step = kept, last, min([0, *kept])

    def forget_file(self) -> None:
        """The broker was told to end: the next one starts without breakpoints."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _changed(self) -> None:
        self.revision += 1
        if self._file is None:
            return
        rows = [each.to_dict() | {"spent": sorted(each.spent)} for each in self._breaks.values()]
        body = {"schema_version": 1, "owner": self._owner, "last_id": self.last_id, "breakpoints": rows}
        self._files.write(self._file, json.dumps(body), "a broker that replaces this one begins without them")

    def __len__(self) -> int:
        return len(self._breaks)

    def add(self, body: Mapping[str, Any]) -> Break:
        return self.add_all([body])[0]

    def add_all(self, bodies: Sequence[Mapping[str, Any]]) -> list[Break]:
        """All of them, or none if one is refused."""
        made = [described_break(0, body) for body in bodies]
        for each in made:
            if each.step:
                self._last_step -= 1
            else:
                self.last_id += 1
            each.number = self._last_step if each.step else self.last_id
            self._breaks[each.number] = each
        self._changed()
        return made

    def clear(self, numbers: list[int]) -> list[Break]:
        """Removes breakpoints, all of the user's if no number is given, and returns them."""
        unknown = [number for number in numbers if number not in self._breaks]
        if unknown:
            raise UsageError(f"no such breakpoint: {unknown[0]}", "`rldbg break --list` lists them")
        chosen = dict.fromkeys(numbers or [number for number in self._breaks if number > 0])
        cleared = [self._breaks.pop(number) for number in chosen]
        self._changed()
        return cleared

    def all(self) -> list[Break]:
        return list(self._breaks.values())

    def meant_for(self, process: Process) -> list[Break]:
        return [each for each in self._breaks.values() if each.is_meant_for(process)]

    def concerns(self, process: Process) -> bool:
        return bool(self.meant_for(process))

    async def configure(self, session: DebugSession, process: Process) -> None:
        """Sends the breakpoints of this table to the process."""
        meant = self.meant_for(process)
        paths = self._paths.setdefault(process.number, {})
        for file in {each.file for each in meant if each.file} - set(paths):
            if path := await _path_in(process, file):
                paths[file] = path
        for each in meant:
            each.verified.setdefault(process.who, False)
            each.paths[process.number] = paths.get(each.file, "")
            if each.file in paths and process.number not in each.wanted:
                each.wanted[process.number] = await _line_in(process, paths[each.file], each.line)
        # A file may have been named in several ways; the debuggee takes all its breakpoints at once.
        for path in set(paths.values()):
            lines = [each for each in meant if paths.get(each.file) == path]
            body = {
                "source": {"path": path, "name": PurePath(path).name},
                "breakpoints": [each.request_for(process) for each in lines],
            }
            answer = await session.request("setBreakpoints", body)
            for each, result in zip(lines, answer.get("breakpoints") or [], strict=False):
                each.verified[process.who] = bool(result.get("verified"))
                each.lines[process.number] = int(result.get("line") or each.line)
        filters = {name for each in meant if each.exception for name in EXCEPTION_FILTERS[each.exception]}
        # A worker that Ray stopped after an exception waits for this filter; without it the stop silently ends.
        if process.agent is None:
            filters.add("uncaught")
        await session.set_exception_filters(sorted(filters))
        for each in meant:
            if each.exception:
                each.verified[process.who] = True

    def lines_in(self, process: Process, path: str) -> list[dict[str, Any]]:
        """The breakpoints of one file, as they are sent to the debuggee."""
        paths = self._paths.get(process.number, {})
        return [
            each.request_for(process) for each in self.meant_for(process) if each.file and paths.get(each.file) == path
        ]

    def note_output(self, process: Process, text: str) -> bool:
        """True for pydevd's error about a condition, which it repeats at every hit."""
        if not text.startswith(_FAILED_CONDITION):
            return False
        condition = text.removeprefix(_FAILED_CONDITION).partition("\n")[0].strip()
        reason = text.strip().splitlines()[-1]
        for each in self.meant_for(process):
            if each.condition == condition:
                each.failures[process.who] = reason
        return True

    def is_looking(self, process: Process) -> bool:
        """Whether a file with breakpoints was not loaded in it when it was last asked: it may be loaded by now."""
        paths = self._paths.get(process.number, {})
        return any(each.file and each.file not in paths for each in self.meant_for(process))

    def set_condition(self, number: int, condition: str) -> Break:
        """Changes a breakpoint in its place; an empty condition is always true."""
        check_condition(condition)
        if number not in self._breaks:
            raise UsageError(f"no such breakpoint: {number}", "`rldbg break --list` lists them")
        self._breaks[number].condition = condition
        self._breaks[number].failures.clear()
        self._changed()
        return self._breaks[number]

    def note_stop(self, process: Process, *, is_taken_over: bool = False) -> bool:
        """Counts a stop for its breakpoint; True when a breakpoint with `once` is used up there. A stop taken over from
        a killed broker may have been counted by it already."""
        stop = process.stop
        if stop is None:
            return False
        paths = self._paths.get(process.number, {})
        steps = [each for each in self.meant_for(process) if each.step]
        for each in steps:
            del self._breaks[each.number]
        if steps:
            self._changed()
        spent = bool(steps)
        for each in self.meant_for(process):
            if is_taken_over and not each.once:
                continue
            if (each.exception and stop.reason == "exception") or (
                each.file
                and each.lines.get(process.number, each.line) == stop.line
                and paths.get(each.file) == stop.file
            ):
                each.hits[process.who] += 1
                if each.once:
                    each.spent.add(identity(process))
                    spent = True
                    if each.selection.text == f"@{process.facts.get('pid')}":
                        # As tbreak does: it was for this process alone.
                        del self._breaks[each.number]
                self._changed()
        return spent


class LogPoints:
    """What log points say: appended to RUN/logs/log_points.jsonl, one line per message; the last ones are kept here."""

    def __init__(self, run: Path, files: KeptFiles) -> None:
        self._files = files
        self.path = run / "logs" / "log_points.jsonl"
        self._recent: deque[dict[str, Any]] = deque(maxlen=_LOG_LINES_KEPT)

    def add(self, who: str, text: str) -> None:
        if not text.strip():
            return
        line = {"time": time.time(), "who": who, "text": text.rstrip("\n")}
        self._recent.append(line)
        self._files.append(self.path, json.dumps(line), "the last messages are in `rldbg break --list`")

    def recent(self) -> list[dict[str, Any]]:
        return list(self._recent)


async def _path_in(process: Process, file: str) -> str:
    """What the process calls the file; empty when it does not know it yet."""
    if process.agent is None:
        return file
    with contextlib.suppress(WireError, TimeoutError, UnreachableError):
        answer = await process.agent.request("resolve", {"path": file}, timeout_s=5.0)
        return str(answer["path"])
    return ""


async def _line_in(process: Process, path: str, line: int) -> int:
    """The line at which the process stops for this one, as far as it can tell."""
    if process.agent is None:
        return line
    with contextlib.suppress(WireError, TimeoutError, UnreachableError):
        return int(
            (await process.agent.request("line_to_stop_at", {"path": path, "line": line}, timeout_s=5.0))["line"]
        )
    return line
