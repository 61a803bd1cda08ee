"""Failures on one node only: what is missing there and not elsewhere is a matter of that node."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import Speaker, clean
from rldbg.doctor.logs.evidence import Hit
from rldbg.doctor.logs.sources import LogSource

_MISSING = re.compile(
    r"(?i)do(?:es)? not exist|no such file|FileNotFoundError|not a directory|\bnot found\b|no module named|"
    r"cannot open shared object|can(?:not|'t) (?:find|open|load)|couldn't find|find a valid|no valid checkpoint|"
    r"is missing|permission denied|no space left|read-only file system|no (?:CUDA|such) (?:GPUs?|devices?)|"
    r"stale file handle"
)
_RAISED = re.compile(
    r"ray::(?P<name>[\w.:\[\]=-]{1,90}?)(?:\(\)|\.__init__\(\)| ?\(\)).{0,4}\(pid=(?P<pid>\d+), ip=(?P<ip>[\w.:-]+)"
    r"(?:, actor_id=\w+)?(?:, repr=(?P<repr>.{0,160}))?"
)
_RANK = re.compile(r"\brank ?[=:] ?(?P<rank>\d{1,5})\b|\(rank (?P<other>\d{1,5})\)")
_OF_DRIVER = re.compile(r"(?i)task|runner|driver|controller|trainer|main")
"""Who only waited for the others."""
_GPUS_OF_NODE = 8
_PATH = re.compile(r"(?<![\w.:/])(?P<path>/(?!(?:usr|lib|opt|proc|sys|tmp)/)[\w@.+-]+(?:/[\w@.+=-]+){1,30})")
_SITE = re.compile(r"/(?:site|dist)-packages/")
_OF_PACKAGES = re.compile(r"(?i)no module named|shared object|cannot import")
_SHOWN = 8


class _Failed(NamedTuple):
    pids: frozenset[str]
    ranks: tuple[int, ...]
    node: str
    names: frozenset[str] = frozenset()
    """What processes like them are called."""


class OnOneNode(NamedTuple):
    """Where all that failed is, in words, and what to compare there."""

    words: str
    step: str


def is_about_missing(text: str) -> bool:
    """Whether a message says that something is not there."""
    return bool(_MISSING.search(text))


def told_of_one_node(said: str, hits: Sequence[Hit], sources: Sequence[LogSource]) -> OnOneNode | None:
    """Where all processes that miss something are on one node, and the logs show processes elsewhere."""
    if not is_about_missing(said):
        return None
    failed = _of_ray(sources) or _of_speakers(hits)
    if failed is None:
        return None
    others = _elsewhere(failed, list(_speakers(sources)))
    if not others:
        return None
    ranks = f" (ranks {', '.join(map(str, failed.ranks[:_SHOWN]))})" if failed.ranks else ""
    who = f"all {len(failed.pids)} processes that failed{ranks} are on node {failed.node}, {others}"
    path = next((found["path"] for found in _PATH.finditer(said) if not _SITE.search(found["path"])), "").rstrip(
        ".,:;'"
    )
    if _OF_PACKAGES.search(said):
        return OnOneNode(
            f"{who}: the environment of that node may be another one",
            f"Compare node {failed.node} with another one: which python; pip list; echo $LD_LIBRARY_PATH, in the same "
            "container and environment",
        )
    if path:
        return OnOneNode(
            f"{who}: {path} may not be visible on that node, because it is not on a file system that all nodes share, "
            "or not mounted there or in its container",
            f"On node {failed.node}, and on another one: ls -ld {path}; findmnt -T {path}; if only that node lacks it, "
            "mount it there, copy the files, or write and read them on shared storage",
        )
    return OnOneNode(f"{who}: look at that node first", f"Compare node {failed.node} with another one")


def _of_ray(sources: Sequence[LogSource]) -> _Failed | None:
    """The tasks whose exceptions Ray reports with their node."""
    rows = (raw for source in sources for raw in rows_of(source) if b"ray::" in raw)
    reported = [found for raw in rows if (found := _RAISED.search(clean(raw).text))]
    raised = [found for found in reported if not _OF_DRIVER.search(found["name"])] or reported
    nodes = {found["ip"] for found in raised}
    pids = frozenset(found["pid"] for found in raised)
    if len(nodes) != 1 or len(pids) < 2:
        return None
    numbers = (_RANK.search(found["repr"] or "") for found in raised)
    ranks = sorted({int(found["rank"] or found["other"]) for found in numbers if found})
    names = frozenset(
        name for found in raised for name in re.findall(r"\b([A-Z]\w+)", f"{found['name']} {found['repr']}")
    )
    return _Failed(pids, tuple(ranks), nodes.pop(), names)


def _of_speakers(hits: Sequence[Hit]) -> _Failed | None:
    """The processes that wrote the lines, where each line has its node."""
    own = {hit.place.speaker for hit in hits}
    nodes = {each.node for each in own}
    names = frozenset(each.pid or each.rank for each in own)
    if len(nodes) != 1 or "" in nodes or "" in names or len(names) < 2:
        return None
    ranks = sorted({int(each.rank) for each in own if each.rank.isdigit()})
    return _Failed(names, tuple(ranks), nodes.pop())


def _speakers(sources: Sequence[LogSource]) -> Iterator[Speaker]:
    seen: set[Speaker] = set()
    for source in sources:
        for raw in rows_of(source):
            speaker = clean(raw).speaker.filled_from(source.speaker)
            if speaker.pid and speaker not in seen:
                seen.add(speaker)
                yield speaker


def _elsewhere(failed: _Failed, speakers: Sequence[Speaker]) -> str:
    """What the logs show of processes on other nodes that did not fail: a sentence, or nothing."""
    own_names = failed.names | {each.name for each in speakers if each.pid in failed.pids}
    other = sorted(
        {each.node or "that of the driver" for each in speakers if each.node != failed.node and each.name in own_names}
    )
    if other:
        return f"and none of those on another node ({', '.join(other[:3])}) did"
    if len(failed.ranks) > 1 and failed.ranks[0] and failed.ranks[0] % _GPUS_OF_NODE == 0:
        return f"and none of ranks 0 to {failed.ranks[0] - 1} is among them"
    return ""
