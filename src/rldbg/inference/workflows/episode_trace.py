"""Each episode as one trace: messages, tool calls, times and the reward.

`RUN/generated/episodes.jsonl` has one line per episode: {"sample", "samples", "events", "rewards", "failure"}, where
`samples` are the rows that came of it. Events are in the order in which they began: {"kind", "name", "start_ms",
"duration_ms", ...}; a request has the messages that are new since the request before, and its answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rldbg.inference.workflows.outcome import EpisodeOutcome
from rldbg.inference.workflows.results import samples_of
from rldbg.inference.workflows.timeline import EpisodeSpan

FILE = Path("generated") / "episodes.jsonl"
_SHOWN = ("request", "tool", "reward")


def write_episodes(run: Path, outcomes: Sequence[EpisodeOutcome], exchanges: Iterator[Mapping[str, Any]]) -> None:
    asked = {(entry["sample"], entry["number"]): entry for entry in exchanges}
    names = iter(samples_of(outcomes))
    lines = []
    for outcome in outcomes:
        rows = [str(next(names)[0]) for _ in outcome.rows]
        lines.append(json.dumps(_episode(outcome, rows, asked), default=str))
    file = run / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_episode(run: Path, sample: str) -> dict[str, Any] | None:
    """The episode that a sample came of; None if the run has none."""
    try:
        lines = (run / FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    episodes = (json.loads(line) for line in lines)
    return next((item for item in episodes if sample in item["samples"] or sample == item["sample"]), None)


def _episode(
    outcome: EpisodeOutcome, rows: list[str], asked: Mapping[tuple[str, int], Mapping[str, Any]]
) -> dict[str, Any]:
    sample = str(outcome.spec.sample)
    spans = [] if outcome.timeline is None else sorted(outcome.timeline.spans, key=lambda span: span.start_us)
    start = spans[0].start_us if spans else 0
    known = _Known([])
    events = []
    for span in spans:
        if span.kind in _SHOWN:
            event = {"kind": span.kind, "name": span.name, "start_ms": (span.start_us - start) / 1000}
            event["duration_ms"] = (span.end_us - span.start_us) / 1000
            events.append(event | _content(span, sample, asked, known))
    return {
        "sample": sample,
        "samples": rows,
        "events": events,
        "rewards": [row.reward for row in outcome.rows],
        "failure": None if outcome.failure is None else f"{outcome.failure.error}: {outcome.failure.message}",
    }


@dataclass(slots=True)
class _Known:
    """The conversation up to the last request."""

    messages: list[Any]


def _content(
    span: EpisodeSpan, sample: str, asked: Mapping[tuple[str, int], Mapping[str, Any]], known: _Known
) -> dict[str, Any]:
    number = span.name.removeprefix("request ")
    entry = asked.get((sample, int(number))) if span.kind == "request" and number.isdigit() else None
    if entry is None:
        return {"details": span.details}
    messages = _messages(entry["request"])
    same = 0
    while same < min(len(messages), len(known.messages)) and _said(messages[same]) == _said(known.messages[same]):
        same += 1
    if "error" in entry:
        answer = {"role": "error", "content": entry["error"]["message"]}
    else:
        answer = _answer(entry["answer"], str(span.details.get("text", "")))
    is_rewritten = same < len(known.messages)
    known.messages = [*messages, answer]
    counts = {name: span.details.get(name) for name in ("prompt_tokens", "tokens", "finish_reason")}
    return {"messages": messages[same:], "rewritten": is_rewritten, "answer": answer, **counts}


def _said(message: Any) -> Any:
    """What a message says: clients send an answer back without the fields of it that are empty, or that they ignore."""
    if not isinstance(message, Mapping):
        return message
    calls = [call.get("function", call) for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    told = [(call.get("name"), call.get("arguments")) for call in calls]
    return message.get("role"), message.get("content") or "", message.get("tool_call_id"), told


def _messages(request: Any) -> list[Any]:
    """The request as messages; token ids are shown by their count."""
    for name in ("messages", "input", "prompt", "text", "input_ids"):
        value = request.get(name)
        if value is None:
            continue
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            return list(value)
        return [{"role": "prompt", "content": value if isinstance(value, str) else f"{len(value)} token ids"}]
    return []


def _answer(answer: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The message of an OpenAI answer with its tool calls, else the text."""
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0].get("message"), Mapping):
        message = choices[0]["message"]
        return {"role": "assistant", **message}
    return {"role": "assistant", "content": str(answer.get("text") or text)}
