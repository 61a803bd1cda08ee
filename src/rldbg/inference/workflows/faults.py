"""Faults that a rollout injects into an agent's requests, one per episode, and what the agent made of it.

Which fault an episode gets, and at which of its requests, depends on its sample and the seed alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any, Literal, get_args

from rldbg.core import UnreachableError
from rldbg.inference.workflows.completions import Completion

FaultKind = Literal["timeout", "truncation", "malformed-call", "server-death", "server-error", "empty-answer"]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
# Episodes of one request would never meet a fault of a later one.
_LATEST = 2


class InjectedFault(UnreachableError):
    """A request that fails because it is meant to."""

    def __init__(self, kind: FaultKind) -> None:
        status = {"timeout": 504, "server-death": 502, "server-error": 500}[kind]
        super().__init__(f"injected fault: {kind}", "the agent is being tested; see the report")
        self.fault = kind
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.fault,)


@dataclass(slots=True)
class Fault:
    """What is injected into one episode. `happened` says whether the episode came as far."""

    kind: FaultKind
    request: int
    happened: bool = False

    def before(self, number: int) -> None:
        """Raises what a client sees instead of an answer."""
        if number == self.request and self.kind in ("timeout", "server-death", "server-error"):
            self.happened = True
            raise InjectedFault(self.kind)

    def completion(self, number: int, answer: Completion) -> Completion:
        """An answer to `generate`, damaged."""
        if number != self.request or self.kind not in ("truncation", "malformed-call", "empty-answer"):
            return answer
        self.happened = True
        kept = 0 if self.kind == "empty-answer" else len(answer.tokens) // 2
        return replace(
            answer,
            tokens=answer.tokens[:kept],
            logprobs=answer.logprobs[:kept],
            versions=answer.versions[:kept],
            text=answer.text[: len(answer.text) * kept // max(1, len(answer.tokens))],
            finish_reason="length",
        )

    def body(self, number: int, answered: Mapping[str, Any]) -> dict[str, Any]:
        """An answer of chat completions or completions, damaged."""
        if number != self.request or self.kind not in ("truncation", "malformed-call", "empty-answer"):
            return dict(answered)
        self.happened = True
        return {**answered, "choices": [self._choice(choice) for choice in answered.get("choices", ())]}

    def _choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        message = dict(choice.get("message") or {})
        calls = [dict(call) for call in message.get("tool_calls") or ()]
        if self.kind == "malformed-call":
            calls = [_broken(call) for call in calls] or [_broken(_CALL)]
            return {**choice, "message": message | {"tool_calls": calls}, "finish_reason": "tool_calls"}
        text = "" if self.kind == "empty-answer" else str(message.get("content") or "")
        cut = message | {"content": text[: len(text) // 2], "tool_calls": []}
        whole = str(choice.get("text") or "")
        damaged = {**choice, "finish_reason": "length"}
        damaged |= {"message": cut} if message else {"text": "" if not text and not whole else whole[: len(whole) // 2]}
        return damaged


_CALL = {"id": "call_injected", "type": "function", "function": {"name": "no_such_tool", "arguments": "{}"}}


def _broken(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call whose arguments end in the middle."""
    function = dict(call.get("function") or {})
    arguments = str(function.get("arguments") or "{}")
    return {**call, "function": function | {"arguments": arguments[: max(1, len(arguments) // 2)]}}


def fault_of(sample: str, seed: int) -> Fault:
    drawn = int.from_bytes(blake2b(f"{seed}\0{sample}".encode(), digest_size=8).digest(), "little")
    return Fault(KINDS[drawn % len(KINDS)], (drawn // len(KINDS)) % _LATEST)


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """What became of an episode with a fault. `verdict` is `survived`, `not reached`, or what went wrong."""

    sample: str
    kind: FaultKind
    request: int
    verdict: str
    requests_after: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judged(sample: str, fault: Fault, requests: int, failure: Any, reward: float | None) -> FaultOutcome:
    """An agent gives up when a lost request ends its episode, and crashes when an answer does that it cannot read.

    An answer that was cut or empty and still earned a reward is named: a trainer would learn from it.
    """
    after = max(0, requests - fault.request - 1)
    verdict = "survived"
    if not fault.happened:
        verdict = "not reached"
    elif failure is not None:
        lost = fault.kind in ("timeout", "server-death", "server-error")
        verdict = f"gave up: {failure.error}" if lost else f"crashed: {failure.error}: {str(failure.message)[:200]}"
    elif fault.kind in ("truncation", "empty-answer") and not after and reward:
        verdict = f"gave a reward of {json.dumps(reward)} to an answer that was cut off"
    return FaultOutcome(sample, fault.kind, fault.request, verdict, after)
