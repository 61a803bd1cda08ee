"""Errors that a process without an agent has printed: the last tracebacks in the files that its standard output and
standard error are.

Whose they are: Python names a thread or process that an exception has ended; the name of a file, or what is before its
lines, may hold the number of a process; or only one is still in the function that caught the exception, and no longer
in the call that raised it. Else it is one of those that print into the file, or one that has ended.
"""

import os
import re
import stat
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from ..code.places import is_standard, is_users
from ..reading.kernel import Facts, all_processes

_TAIL = 256 * 1024
_LAST = 3
_TEXT = 300
_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_NUMBER = re.compile(r"\d+")
_THREAD_HEADLINE = re.compile(r"Exception in thread (?P<name>.+):")
# Another exception was raised while the one above was handled, or because of it: this one was caught.
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")

_File = tuple[int, int]
"""Device and inode."""


def add_said(entries: Sequence[Facts]) -> None:
    """Adds `said` to the processes of one host that printed an error."""
    files: dict[_File, list[Facts]] = {}
    paths: dict[_File, str] = {}
    for entry in entries:
        for path, identity in _outputs(int(entry["pid"])).items():
            paths.setdefault(identity, path)
            if entry not in (sharing := files.setdefault(identity, [])):
                sharing.append(entry)
    errors = {identity: _said_in(path) for identity, path in paths.items()}
    unseen = _unseen({identity for identity, said in errors.items() if said}, entries)
    for identity, said in errors.items():
        for error in said:
            _assign(error, files[identity], unseen=identity in unseen)


def _said_in(path: str) -> list[Facts]:
    text, age_s = _tail(path)
    found = tracebacks(text)
    name = set(map(int, _NUMBER.findall(_name(path)))) if found else set()
    for error in found:
        # When it was said is known of what was written last.
        error["ago_s"] = age_s if error.pop("ends") else None
        error["numbers"] |= name
    return found


def _name(path: str) -> str:
    """Ray names the files of its workers by their numbers."""
    try:
        return Path(path).readlink().name
    except OSError:
        return ""


def _unseen(files: Set[_File], entries: Sequence[Facts]) -> set[_File]:
    """Files that other processes print into as well, which are not looked at; their launchers have them too."""
    everyone = all_processes() if files else {}
    known = {int(entry["pid"]) for entry in entries}
    for pid in list(known):
        while pid in everyone and (pid := everyone[pid]["parent"]) not in known:
            known.add(pid)
    return {identity for pid in everyone if pid not in known for identity in _outputs(pid).values()} & files


def _outputs(pid: int) -> dict[str, _File]:
    """Regular files behind standard output and standard error, by what opens them: also in other containers."""
    found = {}
    for number in (1, 2):
        path = f"/proc/{pid}/fd/{number}"
        try:
            status = os.stat(path)  # noqa: PTH116 - a Path is not needed
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            found[path] = (status.st_dev, status.st_ino)
    return found


def _tail(path: str) -> tuple[str, float]:
    """The last part of a file, and how long nothing was written to it."""
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            file.seek(max(0, status.st_size - _TAIL))
            return file.read(_TAIL).decode("utf-8", "replace"), round(max(0.0, time.time() - status.st_mtime), 1)
    except OSError:
        # It may be another user's.
        return "", 0.0


def tracebacks(text: str) -> list[Facts]:
    """The last ones in a text, oldest first; of chained ones the last, which is the one that was caught. Loggers may
    have put the same words before each line."""
    lines = text.split("\n")
    heads = [number for number, line in enumerate(lines) if _HEAD in line]
    found: list[Facts] = []
    chained: Facts | None = None
    for number, head in enumerate(heads):
        following = heads[number + 1] if number + 1 < len(heads) else len(lines)
        before, chained = chained, None
        if (error := _read(lines, head)) is None:
            continue
        if before is not None:
            # Who prints it is said above the first one only.
            error |= {"above": before["above"], "numbers": error["numbers"] | before["numbers"]}
        between = lines[error["end"] : following]
        error["ends"] = not any(line.strip() for line in between)
        error["chained"] = following < len(lines) and any(mark in line for line in between for mark in _CHAINED)
        chained = error if error["chained"] else None
        found.append(error)
    caught = [error for error in found if not error.pop("chained")]
    return [{name: value for name, value in error.items() if name != "end"} for error in caught[-_LAST:]]


def _read(lines: Sequence[str], head: int) -> Facts | None:
    """One traceback: its frames, and the exception in the first line after them that is not indented."""
    before = lines[head].partition(_HEAD)[0]
    # A logger may have put them into the first line only.
    mark = before if before and all(line.startswith(before) for line in lines[head + 1 : head + 3]) else ""
    frames: list[Facts] = []
    for number, line in enumerate(lines[head + 1 :], start=head + 1):
        words = line.removeprefix(mark).rstrip("\r")
        if frame := _FRAME.match(words):
            frames.append({"file": frame["file"], "line": int(frame["line"]), "function": frame["function"]})
        elif words and not words[0].isspace():
            said = _EXCEPTION.match(words)
            if said is None or not frames:
                return None
            # Native code ends what it prints with a zero byte.
            above = lines[head - 1].removeprefix(mark).strip(" \t\r\0") if head else ""
            return {
                "message": words[:_TEXT],
                "logged": False,
                "place": _innermost(frames),
                # What leaves a thread or a callback is caught by a function of Python that all of them run.
                "caught_in": None if is_standard(frames[0]["file"]) else frames[0],
                "above": above,
                "numbers": set(map(int, _NUMBER.findall(f"{above} {before}"))),
                "end": number + 1,
            }
    return None


def _innermost(frames: Sequence[Facts]) -> Facts:
    users = [frame for frame in frames if is_users(frame["file"])]
    own = [frame for frame in frames if not is_standard(frame["file"])]
    return (users or own or frames)[-1]


def _assign(error: Facts, sharing: Sequence[Facts], *, unseen: bool) -> None:
    """Gives an error to the process that said it, and to the thread or task which is still in what caught it. Where no
    thread is, one that has ended may have printed it, or a process that has."""
    numbers, above = error.pop("numbers"), error.pop("above")
    ended = [(entry, each) for entry in sharing for each in entry.get("ended") or [] if _is_headline(above, each)]
    if len({(each["kind"], each.get("pid")) for _, each in ended if each["kind"] == "process"}) == 1:
        # Those that were forked later remember it as well; who started it knows how it ended.
        ended = sorted(ended, key=lambda known: str(known[1].get("exit")).startswith("unknown"))[:1]
    if len(ended) == 1:
        entry, gone = ended[0]
        _add(entry, error | {"gone": f"{gone['kind']} {gone['name']}"})
        return
    named = [entry for entry in sharing if entry["pid"] in numbers]
    possible = named if len(named) == 1 else sharing
    if _ended_a_program(error["caught_in"], possible):
        for entry in possible:
            _add(entry, error | {"caught_in": None, "one_of": [each["pid"] for each in possible], "or_others": True})
        return
    speakers = [(entry, each) for entry in possible for each in _speakers(entry, error["caught_in"])]
    have_ended = any(each["kind"] == "process" for entry in sharing for each in entry.get("ended") or [])
    is_known = len(named) == 1 or not (unseen or have_ended)
    if len(speakers) == 1 and is_known:
        entry, speaker = speakers[0]
        who = {"task_key": speaker["key"], "task": speaker["task"]} if "task" in speaker else _thread(speaker)
        _add(entry, error | who)
    elif len(named) == 1 or (is_known and len(possible) == 1 and _is_of(possible[0], error)):
        _add(possible[0], error)
    else:
        # All of them have what is said, and the numbers of the others.
        those = [entry for entry in possible if any(entry is each for each, _ in speakers)] or possible
        others = {"one_of": sorted(each["pid"] for each in those), "or_others": not speakers or not is_known}
        thread = _THREAD_HEADLINE.fullmatch(above)
        others["thread_ended"] = thread["name"] if thread else ""
        for entry in those:
            _add(entry, error | others)


def _ended_a_program(caught: Facts | None, entries: Sequence[Facts]) -> bool:
    """Whether an exception went through the outermost function of a program that none of these processes runs: it has
    ended another one that prints into the same file."""
    threads = [thread for entry in entries for thread in entry.get("threads") or []]
    frames = [frame for thread in threads for frame in thread.get("frames") or []]
    if caught is None or caught["function"] != "<module>":
        return False
    return not any(frame["file"] == caught["file"] for frame in frames)


def _is_of(entry: Facts, error: Facts) -> bool:
    """Whether a process runs code of the file in which an exception was raised or caught, and is not in that call."""
    caught, places = error["caught_in"], [each for each in (error["place"], error["caught_in"]) if each]
    every = [*(entry.get("threads") or []), *(entry.get("tasks") or [])]
    frames = [frame for each in every for frame in each.get("frames") or []]
    still = caught and any(frame["file"] == caught["file"] and frame["line"] == caught["line"] for frame in frames)
    return not still and any(frame["file"] in {each["file"] for each in places} for frame in frames)


def _is_headline(line: str, gone: Facts) -> bool:
    """Whether it is what Python prints above the exception that has ended this thread or process."""
    heads = {"thread": f"Exception in thread {gone['name']}:", "process": f"Process {gone['name']}:"}
    return heads.get(gone["kind"]) == line


def _thread(speaker: Mapping[str, object]) -> Facts:
    return {"ident": speaker["ident"], "thread": speaker["thread"]}


def _add(entry: Facts, error: Facts) -> None:
    entry.setdefault("said", []).insert(0, error)


def _speakers(entry: Facts, caught: Facts | None) -> list[Facts]:
    """Threads and tasks of a process that are in the function that caught an exception, and have left the call that
    raised it."""
    every = [*(entry.get("threads") or []), *(entry.get("tasks") or [])] if caught is not None else []
    return [each for each in every if any(caught and _is_in(frame, caught) for frame in each.get("frames") or [])]


def _is_in(frame: Facts, caught: Facts) -> bool:
    """A traceback has the bare name of a function."""
    names = {str(each).rpartition(".")[2] for each in (frame["function"], caught["function"])}
    return frame["file"] == caught["file"] and len(names) == 1 and frame["line"] != caught["line"]
