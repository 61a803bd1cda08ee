"""Reads traces of others as a stream of events: a Chrome trace of any size, and a py-spy profile, in bounded memory."""

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_CHUNK = 1 << 20
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d+)')
_GAP = re.compile(r"[\s,]*")


class ChromeTrace:
    """A file of trace events; `base_ns` is known once the first event has been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.base_ns = 0

    def events(self) -> Iterator[dict[str, Any]]:
        """One event after the other; a file that was cut off gives those that are whole."""
        decoder = json.JSONDecoder()
        with open_text(self._path) as file:
            text, at = self._skip_header(file)
            while True:
                gap = _GAP.match(text, at)
                at = gap.end() if gap else at
                if text.startswith("]", at):
                    return
                try:
                    event, at = decoder.raw_decode(text, at)
                except ValueError:
                    more = file.read(_CHUNK)
                    if not more:
                        return
                    text, at = text[at:] + more, 0
                    continue
                yield event
                if at > _CHUNK:
                    text, at = text[at:], 0

    def _skip_header(self, file: IO[str]) -> tuple[str, int]:
        text = file.read(_CHUNK)
        if text.lstrip().startswith("["):
            return text, text.index("[") + 1
        while not (start := _EVENTS.search(text)):
            more = file.read(_CHUNK)
            if not more:
                return "]", 0
            text += more
        base = _BASE.search(text, 0, start.start())
        self.base_ns = int(base[1]) if base else 0
        return text, start.end()


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            yield file
    else:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield file


def spy_slices(path: Path) -> Iterator[tuple[str, str, float, float]]:
    """A speedscope file as slices (thread, function, start in s, length in s): equal neighbours in time are one."""
    data = json.loads(path.read_text(encoding="utf-8"))
    names = [_frame_name(frame) for frame in data["shared"]["frames"]]
    for profile in data["profiles"]:
        if profile.get("type") == "sampled":
            yield from _slices(str(profile["name"]), profile, names)


def _slices(thread: str, profile: dict[str, Any], names: list[str]) -> Iterator[tuple[str, str, float, float]]:
    opened: list[tuple[int, float]] = []
    now = 0.0
    for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
        same = 0
        while same < min(len(stack), len(opened)) and stack[same] == opened[same][0]:
            same += 1
        while len(opened) > same:
            frame, since = opened.pop()
            yield thread, names[frame], since, now - since
        opened += [(frame, now) for frame in stack[same:]]
        now += weight
    while opened:
        frame, since = opened.pop()
        yield thread, names[frame], since, now - since


def _frame_name(frame: dict[str, Any]) -> str:
    file = Path(frame.get("file") or "").name
    return f"{frame['name']} ({file}:{frame['line']})" if file and frame.get("line") else str(frame["name"])
