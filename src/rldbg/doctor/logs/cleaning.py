"""A raw log line as a person reads it, and who wrote it.

Taken away: terminal colours (also when pasting has eaten the escape character), Ray's and other launchers' prefixes,
container and shipping wrappers, typographic quotes. What the prefixes say about the writer is kept.
"""

import html
import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

_COLOUR = re.compile(
    r"(?:\x1b|␛|\^\[|\\x1b|\\u001b|\\033|#033)(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-B])"
    r"|\[(?:\d{1,3};?){1,5}m"
)
_QUOTES = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "\xa0": " ", "\u200b": "", "\ufeff": "", "：": ":"})

_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        # (WorkerDict pid=1234, ip=10.0.0.7)   (VllmWorker rank=3 pid=9)   (Policy[rank=0] pid=4)
        r"\((?P<name>[\w.:<>*\[\]/@=-]{1,90}(?:\([^()]{0,60}\))?)(?: rank=(?P<rank>\d+))? pid=(?P<pid>\d+)"
        r"(?:, (?:ip=(?P<node>[\w.:-]+))?)?\) ?",
        # (raylet)   (raylet, ip=10.0.0.7)   (autoscaler +18s)   (gcs_server)
        r"\((?P<name>raylet|gcs_server|autoscaler|dashboard\w*|log_monitor|pid=(?P<pid>\d+))"
        r"(?: \+[\dhms]+)?(?:, ip=(?P<node>[\w.:-]+))?\) ?",
        # torchrun, mpirun, srun -l
        r"\[(?:rank|default|Rank |trainer)(?P<rank>\d+)\]:? ?",
        r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>: ?",
        r"(?P<rank>\d{1,4}): (?=\S| {2,}\S)",
        # docker compose, kubectl logs --prefix, container runtime, quoting in mail and forums
        r"(?P<name>[A-Za-z][\w.-]{2,60}?) +\| ",
        r"\[pod/(?P<node>[\w.-]+)/(?P<name>[\w.-]+)\] ",
        r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?",
        # a logger that was given a stream: the level is of the stream, not of the line
        r"\d{4}-\d\d-\d\d [\d:,.]+ [|-] [A-Z]{4,8} [|-] std(?:out|err) [|-] ",
        r"> ",
    )
)
_BAR = re.compile(r"\d(?:/\d+| \w+) \[[\d:]+(?:<[\d:?]+)?, [^\[\]]{1,200}\]")
"""The end of a progress bar; it does not end its line, so that another process may write right behind it."""
_GROUP = re.compile(r" {2,}(?:\| ?|\+ (?=Exception Group Traceback))")
"""What Python draws before the lines of a group of exceptions."""
_REPEATED = re.compile(r"\s*\[repeated (\d+)x across cluster\](?:\s*\(Ray deduplicates logs.*)?$")
_TAIL_OF_DEDUP = re.compile(r"\s*\(Ray deduplicates logs by default\..*$")
_RANK_IN_TEXT = re.compile(r"\[(?:[Rr]ank ?|.{0,60} Rank )(\d+)\]|\bTP(\d+)\]")
_NCCL_HOST = re.compile(r"^(?:\[[\d: -]+\] )?(?P<node>[\w.-]+):(?P<pid>\d+):\d+ \[(?:\d+|\w+)\] ")
_OF_RLDBG = "rldbg: "
"""How rldbg's own notes in a program's output begin: what they tell of a failure was taken from it, so they are none of
its words."""
_JSON_TEXT = ("message", "msg", "log", "textPayload", "event", "text")
_JSON_REASON = ("reason", "error", "err", "exception", "exitCode", "exit_code")


@dataclass(frozen=True, slots=True)
class Speaker:
    """The process that wrote a line, as far as the line and its file say."""

    name: str = ""
    pid: str = ""
    node: str = ""
    rank: str = ""
    relay: str = ""
    """The pid of the process that printed the line for it, as an actor does for its engine."""

    def __str__(self) -> str:
        parts = [self.name]
        parts += [f"rank {self.rank}"] if self.rank else []
        parts += [f"pid {self.pid}"] if self.pid else []
        parts += [f"on {self.node}"] if self.node else []
        return " ".join(part for part in parts if part)

    @property
    def known(self) -> bool:
        return bool(self.pid or self.rank or self.node)

    def may_be(self, other: "Speaker") -> bool:
        """Whether two descriptions can be of one process: by their pids, or where one has none by their ranks."""
        if self.pid and other.pid:
            return self.pid == other.pid
        return not (self.rank and other.rank) or self.rank == other.rank

    def is_beside(self, other: "Speaker") -> bool:
        """Whether two descriptions can be of one process, or of one and the one that prints for it."""
        return self.may_be(other) or bool({self.pid, self.relay} & {other.pid, other.relay} - {""})

    def filled_from(self, other: "Speaker") -> "Speaker":
        """This speaker, with what it does not know taken from another description of it."""
        known = (self.name or other.name, self.pid or other.pid, self.node or other.node, self.rank or other.rank)
        return Speaker(*known, self.relay or other.relay)


class Line(NamedTuple):
    """A clean line: its words, its writer, and how often Ray says it was repeated."""

    text: str
    speaker: Speaker
    repeated: int = 1


_INSTALLATION = re.compile(r"^.*(?=/(?:(?:site|dist)-packages|lib(?:64)?/python\d[\d.]*)/)")


def without_environment(place: str) -> str:
    """A file from its installation on: an environment may be called like a package it runs."""
    return _INSTALLATION.sub("", place)


def clean(raw: bytes | bytearray | str) -> Line:
    """The words and the writer of one raw line."""
    return _cleaned(raw if isinstance(raw, str) else raw.decode("utf-8", "replace"))


@lru_cache(maxsize=1024)
def _cleaned(text: str) -> Line:
    """The lines around a place are looked at again and again, by every entry that has a hit there."""
    text = text.rstrip("\r\n\x00 \t")
    if text.startswith('{"'):
        text = _from_json(text)
    text = _behind_bars(_COLOUR.sub("", text).translate(_QUOTES))
    if "&" in text and ";" in text:
        text = html.unescape(text)
    text, speaker = _without_prefixes(text)
    if group := _GROUP.match(text):
        text = text[group.end() :]
    if text.startswith(_OF_RLDBG):
        return Line("", speaker)
    repeated = 1
    if "Ray dedup" in text or "across cluster]" in text:
        if found := _REPEATED.search(text):
            repeated, text = int(found[1]) + 1, text[: found.start()]
        text = _TAIL_OF_DEDUP.sub("", text)
    return Line(text, speaker, repeated)


def _behind_bars(text: str) -> str:
    """What is written behind a progress bar; a line with nothing but bars as it is."""
    if "/s" not in text and "s/" not in text:
        return text
    behind = text[max((bar.end() for bar in _BAR.finditer(text)), default=0) :]
    return text if not behind or behind[0].isspace() else behind


def _without_prefixes(text: str) -> tuple[str, Speaker]:
    speaker = Speaker()
    at = 0
    for _ in range(5):
        spaces = len(text) - at - len(text[at:].lstrip(" \t"))
        found = next((m for prefix in _PREFIXES if (m := prefix.match(text, at + spaces))), None)
        if found is None:
            break
        said = {key: value for key, value in found.groupdict().items() if value}
        if "pid" in said and speaker.pid:
            said["relay"] = speaker.pid
        speaker = replace(speaker, **said)  # the innermost prefix is of the process that wrote the line
        at = found.end()
    text = text[at:]
    if not speaker.rank and (rank := _RANK_IN_TEXT.search(text[:160])):
        speaker = replace(speaker, rank=rank[1] or rank[2])
    if not speaker.pid and (host := _NCCL_HOST.match(text)):
        speaker = replace(speaker, node=speaker.node or host["node"], pid=host["pid"])
    return text, speaker


def _from_json(text: str) -> str:
    """The message of a line that a log shipper wrapped in JSON; the line itself when it is something else."""
    try:
        record = json.loads(text)
    except ValueError:
        return text
    for key in _JSON_TEXT:
        if isinstance(record, dict) and isinstance(record.get(key), str):
            reasons = [f" {name}: {record[name]}" for name in _JSON_REASON if isinstance(record.get(name), str | int)]
            return str(record[key]).rstrip("\n") + "".join(reasons)
    return text
