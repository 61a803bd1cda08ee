"""An address that is asked again and again until the log ends, and at which nothing answers.

Programs that catch the error log it at any level, or at none, and go on asking: then no line says that anything failed.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rldbg.doctor.clues.addresses import address_in, path_in, says_nobody_listens
from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.cleaning import Line, clean
from rldbg.doctor.logs.evidence import Hit, LogEvidence, LogPlace
from rldbg.doctor.logs.progress import LogProgress
from rldbg.doctor.logs.sources import LogSource

ENTRY = "address-never-answers"
_UNREACHED = re.compile(
    r"(?i)connection refused|connect call failed|no route to host|failed to establish a new connection"
    r"|max retries exceeded with url|connection attempts failed|cannot connect to host|network is unreachable"
    r"|name or service not known|\bconnect(?:ion)? ?time(?:d )?-?out\b|failed to connect"
)
_UNNEEDED = re.compile(
    r"(?i)wandb|swanlab|mlflow|tensorboard|clearml|comet|huggingface|modelscope|prometheus|grafana|metrics?\b|otel|"
    r"opentelemetry|telemetry|trac(?:e|ing)\b|jaeger|usage.?stats|sentry|dashboard|slack|webhook|notif"
)
"""What a program does without."""
_GOES_ON = re.compile(
    r"(?i)\b(?:200\b|succe\w*|connected\b|reconnect\w*|recover\w*|is (?:up|alive)|ready\b"
    r"|started\b|startup complete|complete[sd]?\b|finished|done\b|falling back|fallback|skipp\w*|instead|default\w*"
    r"|shut(?:ting)? ?down|stopp\w*|exit\w*)"
)
_LAST_ROWS = 300
_ROWS_BELOW = 3
_TIMES = 3
_FILE = re.compile(r"\b(?P<file>[\w/]{2,80}\.py):\d+")
_SERVERS = (
    (
        "reward or judge server",
        re.compile(r"(?i)reward|(?:^|[_/\W])rm(?:[_/\W]|$)|judge|scor(?:e|ing)|grad(?:e|ing)|verif"),
    ),
    (
        "tool, sandbox or search server",
        re.compile(r"(?i)sandbox|tool|execut|run_?code|search|retriev|browser|environment"),
    ),
    ("inference server", re.compile(r"(?i)generate|/v1/|health|weights|completion|rollout|engine")),
)


class _Attempt(NamedTuple):
    number: int
    offset: int
    line: Line


def asked_in_vain(evidence: LogEvidence, sources: Sequence[LogSource], library: Library) -> Iterator[Hit]:
    """The lines of the address that a log ends with, where nothing says that it answered or was not needed."""
    for source in sources:
        attempts = _attempts(source)
        if not attempts or sum(each.line.repeated for each in attempts) < _TIMES:
            continue
        if _is_told_elsewhere(evidence, source.name, attempts, library):
            continue
        if evidence.progress.get(source.name, LogProgress()).went_on_after(attempts[0].offset):
            continue
        for number, offset, line in attempts:
            place = LogPlace(source.name, number, offset, line.speaker.filled_from(source.speaker), None)
            yield Hit(ENTRY, place, line.text, line.text)


def _attempts(source: LogSource) -> list[_Attempt]:
    """Those of the address that is named last, if the log ends with it."""
    rows = rows_of(source)
    while rows and not rows[-1].strip():
        rows.pop()
    if not any(_is_refused(clean(raw).text) for raw in rows[-1 - _ROWS_BELOW :]):
        return []
    first = max(0, len(rows) - _LAST_ROWS)
    offset = sum(len(raw) + 1 for raw in rows[:first])
    lines: list[_Attempt] = []
    for number, raw in enumerate(rows[first:], first + 1):
        lines.append(_Attempt(number, offset, clean(raw)))
        offset += len(raw) + 1
    refused = [each for each in lines if _is_refused(each.line.text)]
    if not refused or len(rows) - refused[-1].number > _ROWS_BELOW:
        return []
    asked = address_in(refused[-1].line.text)
    own = [each for each in refused if address_in(each.line.text) == asked]
    after = [each.line.text for each in lines if each.number > own[0].number and each not in refused]
    answered = any(_GOES_ON.search(text) and (str(asked) in text or not _names_address(text)) for text in after)
    return [] if answered else own


def _is_refused(text: str) -> bool:
    return bool(_UNREACHED.search(text)) and address_in(text) is not None and not _UNNEEDED.search(text)


def _names_address(text: str) -> bool:
    return address_in(text) is not None


def _is_told_elsewhere(evidence: LogEvidence, file: str, attempts: Sequence[_Attempt], library: Library) -> bool:
    """Whether a known cause, or an exception, is one of them or comes later: that one says more."""
    since = attempts[0].number
    causes = (hit.place for hit in evidence.hits if library.entries[hit.entry].can_be_cause)
    places = [*causes, *(failure.place for failure in evidence.failures)]
    return any(place.file == file and place.line >= since for place in places)


def told_of_address(hits: Sequence[Hit]) -> CauseWords | None:
    """What the lines say of the address, and of who asks."""
    last = hits[-1].text
    address = address_in(last)
    if address is None:
        return None
    nobody = any(says_nobody_listens(hit.text) for hit in hits)
    path = path_in(last)
    server = _server(path, hits)
    who = _who(hits)
    what = f"{address}{path}"
    answer = "was refused each time: no program has that port open" if nobody else "never got a connection"
    where = (
        f"; {address.host} is the node of the process that asks, and on another node another machine"
        if address.is_local
        else ""
    )
    it = f"the {server}" if server else "the server"
    missing = f"Nothing {'listens' if nobody else 'answers'} at {address}"
    return CauseWords(
        f"{who} asks {what} until the log ends, and {answer}{where}.",
        f"{missing}, which the program asks again and again",
        f"{address} {'上没有服务在监听' if nobody else '没有响应'}，程序在不断重试",
        fix=(
            f"Start {it} that should listen at {address}"
            + (" on that same node" if address.is_local else "")
            + ", or correct the address where the launch command or the configuration names it; if it was started, its "
            "own log says why it ended",
            f"On the node of that process: ss -ltnp | grep :{address.port}; curl -m 5 http://{what}",
        ),
        is_whole=True,
    )


def _who(hits: Sequence[Hit]) -> str:
    """The process and the source file of the lines."""
    names = list(dict.fromkeys(hit.place.speaker.name for hit in hits if hit.place.speaker.name))
    pids = {hit.place.speaker.pid for hit in hits if hit.place.speaker.pid}
    name = " and ".join(names[:2]) or "the program"
    some = f" ({len(pids)} processes)" if len(pids) > 1 else ""
    file = next((found["file"] for hit in hits if (found := _FILE.search(hit.text))), "")
    return f"{name}{some}" + (f", in {file}," if file else "")


def _server(path: str, hits: Sequence[Hit]) -> str:
    """What the path, or else the name of who asks, says of the server."""
    last = hits[-1]
    file = found["file"] if (found := _FILE.search(last.text)) else ""
    for said in (path, f"{last.place.speaker.name} {file}"):
        if server := next((name for name, shape in _SERVERS if shape.search(said)), ""):
            return server
    return ""
