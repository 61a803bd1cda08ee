"""A draft of an entry for an unknown failure, from a log that contains it."""

import re
from typing import Any

import yaml

from rldbg.core import IncompleteDataError, redact_text
from rldbg.doctor.answer.diagnosis import Diagnosis
from rldbg.doctor.logs.evidence import Failure
from rldbg.doctor.search.anchors import NoAnchorError, anchors_of

_VARIABLE = re.compile(
    r"(?P<path>(?:/[\w.@+-]+){2,}/?)|(?P<hex>\b(?:0x)?[0-9a-f]{8,}\b)|(?P<number>\d+(?:\.\d+)*)|(?P<quoted>'[^']{1,80}')"
)
_STANDS_FOR = {"path": r"\S{1,200}", "hex": r"[0-9a-fx]+", "number": r"[\d.]+", "quoted": r"'[^']{1,80}'"}
_MAX_MESSAGE = 160


def draft(diagnosis: Diagnosis) -> str:
    """YAML that loads as it is; the words in angle brackets are for the author."""
    failure = diagnosis.first_error
    if failure is None:
        known = ", ".join(cause.id for cause in (*diagnosis.root_causes, *diagnosis.fallout))
        raise IncompleteDataError(
            "every failure in this log has an entry" + (f"; it has {known}" if known else ""),
            "give the log of the process that failed first",
        )
    return str(yaml.safe_dump([_entry(failure)], sort_keys=False, allow_unicode=True, width=110))


def _entry(failure: Failure) -> dict[str, Any]:
    headline = redact_text(failure.headline)
    name = re.sub(r"[^a-z0-9]+", "-", f"{failure.kind.rpartition('.')[2]} {failure.message}".lower())
    return {
        "id": "-".join(part for part in name.split("-") if part)[:48].strip("-"),
        "title": f"<in one line: {headline[:60]}>",
        "title_zh": "<中文标题>",
        "signatures": [{"match": expression_for(headline), "examples": [headline[:400]]}],
        "cause": "<why it happens>",
        "fix": ["<what to do, with the exact command>"],
        "leads_to": ["ray-actor-died"],
        "sources": [f"{failure.place.file}:{failure.place.line}"],
        "evidence": "reporter",
    }


def expression_for(text: str) -> str:
    """An expression for a message in which paths, numbers, addresses and quoted names may differ."""
    text = text[:_MAX_MESSAGE]
    pieces, at, wide = [], 0, 0
    for found in _VARIABLE.finditer(text):
        kind = str(found.lastgroup)
        wide += kind in ("path", "quoted")
        if wide > 2 and kind in ("path", "quoted"):
            text = text[: found.start()]
            break
        pieces += [_escaped(text[at : found.start()]), _STANDS_FOR[kind]]
        at = found.end()
    expression = "".join([*pieces, _escaped(text[at:])])
    try:
        anchors_of(expression)
    except NoAnchorError:
        return _escaped(text)
    return expression


def _escaped(text: str) -> str:
    """Like re.escape, but spaces stay readable."""
    return re.escape(text).replace(r"\ ", " ").replace(r"\-", "-")
