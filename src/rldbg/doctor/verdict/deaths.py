"""Processes that died and left no traceback: who it was, what can have ended them, and what would prove each."""

import re
import signal
from collections.abc import Iterator, Sequence

from rldbg.doctor.clues.signals import sender_of
from rldbg.doctor.verdict.judgement import Judgement, Sighting

_DEATH = re.compile(
    r"(?:Worker|Engine core) proc (?P<name>\S+) died|Worker (?P<worker>\S+ pid \d+) died"
    r"|Engine process \(pid (?P<pid>\d+)\) died|Rank (?P<rank>\d+) scheduler (?:died|is dead)"
    r"|Scheduler or DataParallelController (?P<scheduler>\d+) terminated|Subprocess (?P<child>\S+) (?:crashed|died)"
)
_CODE = re.compile(r"(?i)(?:exit ?code|exit status|returncode|terminated with|\brc)[^\w-]{0,4}(?P<code>-?\d{1,3})\b")
_KINDS = {"pid": "process ", "scheduler": "scheduler process ", "rank": "the scheduler of rank ", "child": "process "}
_OF_SIGNALS = frozenset({"process-killed", "process-segfault"})
"""Symptoms that only repeat by which signal a process ended."""
_TOLD_TO_END = {-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT}
_MEMORY = (
    "possible cause: the host ran out of memory and the kernel killed it (SIGKILL), as when every rank loads weights; "
    'to confirm it run: dmesg -T | grep -iE "killed process|oom"; free -g; in a container also cat '
    "/sys/fs/cgroup/memory.events (oom_kill above 0 proves it)"
)
_NATIVE = (
    "possible cause: it crashed in native code (a kernel, NCCL, the driver); to confirm it run: dmesg -T | grep -i "
    "segfault; export PYTHONFAULTHANDLER=1 before the next run, which prints the stack"
)
_CARD = (
    "possible cause: a GPU failed; to confirm it run: dmesg -T | grep -i xid on its node; nvidia-smi -q -d "
    "ECC,PAGE_RETIREMENT"
)


def who_died(text: str) -> str:
    """The process whose end a line reports, or nothing."""
    found = _DEATH.search(text)
    kind = found.lastgroup if found else None
    return f"{_KINDS.get(kind, '')}{found[kind]}" if found and kind else ""


def steps_of_deaths(judgement: Judgement) -> Iterator[str]:
    """What to look for where processes died and no exception says why: only what the exit code, if there is one,
    leaves open."""
    if judgement.first_error is not None:
        return
    dead = list(dict.fromkeys(filter(None, (who_died(text) for text in _texts(judgement.fallout)))))
    if not dead:
        return
    codes = _codes(judgement.fallout)
    sent = next((code for code in codes if sender_of(code)), None)
    who = f"{', '.join(dead[:4])} died without a traceback in these logs"
    if sent is None and any(code > 0 for code in codes):
        yield f"{who}: its exit code is that of an exception of its own, which is in its own output"
        return
    yield f"{who}; {sender_of(sent)}" if sent is not None else f"{who}; the kernel's log of its node says what ended it"
    number = -sent if sent is not None and sent < 0 else (sent or 0) - 128
    if sent is None or number == signal.SIGKILL:
        yield _MEMORY
    if sent is None or number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGBUS):
        yield _NATIVE
        yield _CARD


def _codes(fallout: Sequence[Sighting]) -> list[int]:
    """The exit codes in the lines that report a death; else the only one beside them, unless it is that of processes
    which were told to end: those had not died first."""
    found = [(text, int(code["code"])) for text in _texts(fallout) if (code := _CODE.search(text))]
    own = [code for text, code in found if who_died(text)]
    others = {code for _text, code in found}
    return own or ([*others] if len(others) == 1 and not others & _TOLD_TO_END else [])


def only_reports_death(sighting: Sighting) -> bool:
    """Whether a symptom says no more than that a process died."""
    return sighting.entry.id in _OF_SIGNALS or any(who_died(hit.text) for hit in sighting.hits)


def _texts(sightings: Sequence[Sighting]) -> Iterator[str]:
    return (hit.text for sighting in sightings for hit in sighting.hits)
