"""Answers of servers that a client tells of: a status of HTTP means that the server is there and refused the request.

Clients print the address, the path and the status below their own words for a request that failed, so that these words
alone look like those of a server that does not answer.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus

from rldbg.doctor.clues.addresses import address_in, path_in
from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.evidence import Hit, LogEvidence
from rldbg.doctor.logs.sources import LogSource
from rldbg.doctor.logs.tracebacks import frame_in
from rldbg.doctor.logs.window import RECORD_START

INVALID, NOT_FOUND, REFUSED, FAILED = (
    "request-invalid",
    "request-not-found",
    "request-refused",
    "server-answered-error",
)
ANSWERED = frozenset({INVALID, NOT_FOUND, REFUSED, FAILED})
_NO_ANSWER = "engine-does-not-answer"
_STATUS = re.compile(
    r"(?:\bstatus(?:[_ ]code)?[\"']?[ =:]{1,3}|Error code: |Client error '|Server error '|\bHTTP(?:/[\d.]+)? )[\"']?"
    r"(?P<status>[45]\d\d)\b"
    r"|\b(?P<before>[45]\d\d)(?:, message=| (?:Client|Server) Error)"
    r"|(?:Error|Exception): .{0,160}\b(?:failed|returned|answered|got)[: ]{1,2}(?P<said>[45]\d\d)\b"
)
_ENDPOINT = re.compile(r"(?i)\b(?:endpoint|path|route|url)[\"']?[:=] ?[\"']?(?P<path>/[\w./-]{1,120})")
_SERVER = re.compile(r"(?i)\b(?:addr(?:ess)?|server|host|url)[\"']?[:=] ?[\"']?(?P<server>[\w.-]{1,80}:\w{2,5})\b")
_PASSED_ON = frozenset({502, 503, 504})
"""What stands between answers so, or a server that is not ready: whoever was asked did not answer."""
_ROWS = 6
_OF_WEIGHTS = re.compile(r"(?i)weight|lora|adapter|named_param|param_update|refit")
_STEPS_OF_WEIGHTS = (
    "Compare what is sent with what that server has loaded: names of parameters (prefixes, LoRA or merged weights), "
    "shapes, dtype, and how many tensors",
    "See that the group was made before, with the same name, world size and backend, that the engine is neither asleep "
    "nor generating, and that this release of the server has that path and these fields",
)
_OF_STATES = re.compile(r"(?i)/(?:sleep|wake_up|pause\w*|resume\w*|continue\w*|release_memory\w*|abort\w*|flush\w*)")
_OF_GENERATION = re.compile(r"(?i)/(?:generate|v1/|completions|chat|responses)")


def answers_told_below(evidence: LogEvidence, sources: Sequence[LogSource]) -> Iterator[Hit]:
    """The lines that say how a server answered, in place of those that say that it did not."""
    for hit in [each for each in evidence.hits if each.entry == _NO_ANSWER]:
        text = " ".join([hit.text, *_below(hit, sources)])
        status = status_in(text)
        if status and status not in _PASSED_ON:
            evidence.hits.remove(hit)
            yield replace(hit, entry=_entry_of(status), text=text, matched=hit.matched)


def _below(hit: Hit, sources: Sequence[LogSource]) -> Iterator[str]:
    """The lines under a line that belong to its message."""
    source = next((each for each in sources if each.name == hit.place.file), None)
    rows = rows_of(source) if source is not None else []
    for raw in rows[hit.place.line : hit.place.line + _ROWS]:
        line = clean(raw)
        begins = not line.text.strip() or RECORD_START.match(line.text) or frame_in(line.text)
        if begins or not hit.place.speaker.may_be(line.speaker):
            return
        yield line.text.strip()


def status_in(text: str) -> int:
    """The status of an answer; 0 where the text has none."""
    found = _STATUS.search(text)
    return int(found["status"] or found["before"] or found["said"]) if found else 0


def _entry_of(status: int) -> str:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return FAILED
    by_status = {401: REFUSED, 403: REFUSED, 404: NOT_FOUND}
    return by_status.get(status, INVALID)


def told_of_answer(hits: Sequence[Hit]) -> CauseWords | None:
    """Which server refused which request, and what to compare for a request of that kind."""
    text = next((hit.text for hit in hits if status_in(hit.text)), "")
    status = status_in(text)
    endpoint = _ENDPOINT.search(text)
    path = path_in(text) or (endpoint["path"] if endpoint else "")
    if not status or not path:
        return None
    said = f" ({HTTPStatus(status).phrase})" if status in {each.value for each in HTTPStatus} else ""
    server = _SERVER.search(text)
    named = server["server"] if server else ""
    at = f" at {address_in(text) or named}" if address_in(text) or named else ""
    lacks = "has no such path" if status == HTTPStatus.NOT_FOUND else "refused this request"
    detail = (
        f"the server{at} answered {status}{said} to {path}: it is alive and {lacks}; the body of its answer and its "
        "own log of that moment say why."
    )
    steps: tuple[str, ...] = (
        "Read the server's own log at this time, and print the body of the answer where the client raises it",
    )
    if _entry_of(status) != INVALID:
        return CauseWords(detail, fix=steps)
    if _OF_WEIGHTS.search(path):
        return CauseWords(
            detail,
            f"An inference server refused a weight update (HTTP {status})",
            f"推理服务拒绝了权重更新（HTTP {status}）",
            fix=(*steps, *_STEPS_OF_WEIGHTS),
        )
    if _OF_STATES.search(path):
        steps += ("See in which state the server was: asked to sleep, pause or resume twice, or while it generates",)
    elif _OF_GENERATION.search(path):
        steps += ("Compare model name, lengths and sampling fields of the request with what the server allows",)
    return CauseWords(detail, fix=steps)
