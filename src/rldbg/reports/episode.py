"""An episode's conversation for a terminal: turn by turn, with tool calls, times and rewards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

_MOST = 2000
_STYLES = {"user": "cyan", "system": "magenta", "assistant": "green", "tool": "yellow", "prompt": "cyan"}


def episode_to_terminal(episode: Mapping[str, Any]) -> RenderableType:
    return Group(*_lines(episode), Text())


def _lines(episode: Mapping[str, Any]) -> Iterator[Text]:
    requests = sum(event["kind"] == "request" for event in episode["events"])
    yield Text.assemble(("episode ", "dim"), (episode["sample"], "bold"), ("  requests ", "dim"), str(requests))
    for event in episode["events"]:
        when = f"{event['start_ms']:9.1f} ms  +{event['duration_ms']:.1f} ms"
        if event["kind"] == "request":
            for message in event.get("messages", ()):
                yield from _message(message)
            counts = f"{event.get('prompt_tokens')} + {event.get('tokens')} tokens, {event.get('finish_reason')}"
            yield Text.assemble((f"  {when}  ", "dim"), event["name"], (f"  {counts}", "dim"))
            yield from _message(event.get("answer", {}))
        else:
            details = {name: value for name, value in event.get("details", {}).items() if value is not None}
            shown = "  ".join(f"{name}={_short(str(value))}" for name, value in details.items())
            yield Text.assemble((f"  {when}  ", "dim"), (event["kind"], "yellow"), f" {event['name']}  {shown}")
    if episode["rewards"]:
        yield Text("  rewards " + ", ".join(f"{reward:g}" for reward in episode["rewards"]), "bold")
    if episode["failure"]:
        yield Text(f"  failed: {episode['failure']}", "red")


def _message(message: Mapping[str, Any]) -> Iterator[Text]:
    role = str(message.get("role") or message.get("type") or "message")
    if message.get("reasoning_content"):
        yield Text.assemble((f"  {role} (reasoning)  ", "dim"), (_short(str(message["reasoning_content"])), "dim"))
    content = message.get("content", message.get("output", "")) or ""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    if text:
        yield Text.assemble((f"  {role}  ", _STYLES.get(role, "dim")), _short(text))
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        yield Text.assemble(
            (f"  {role} calls  ", _STYLES.get(role, "dim")),
            (str(function.get("name")), "bold"),
            f"({_short(str(function.get('arguments', '')))})",
        )


def _short(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]}… ({len(text):,} characters)"
