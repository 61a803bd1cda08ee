"""What the engine was asked and answered in each turn of verl's agent loops: their process alone knows it.

It travels with the sample to the driver, in the fields that verl lets an agent loop add.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.core import prompt_hash
from rldbg.frameworks.recorded import FrameworkRecording, RecordedCall

TURNS = "rldbg_turns"
OUTPUT = "rldbg_output"
"""Which of how many sequences of its rollout an output is; only verl's own key says it otherwise, which ranks lack."""


@dataclass(frozen=True, slots=True)
class _Request:
    """Token ids; verl changes its own lists in place."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    version: int | None


# Each rollout is a task of its own; what it starts sees the same list.
_requests: ContextVar[list[_Request] | None] = ContextVar("requests", default=None)


class AgentTurns(FrameworkRecording):
    """The process of an agent loop."""

    def agent_loop(self, *_: Any, **__: Any) -> RecordedCall:
        _requests.set([])
        yield

    def turn(self, client: Any, request_id: Any, *, prompt_ids: Any, **__: Any) -> RecordedCall:
        asked, prompt = _requests.get(), tuple(map(int, prompt_ids))
        output = yield
        # A picture or video has no tokens.
        if asked is not None and hasattr(output, "token_ids"):
            version = output.extra_fields.get("global_steps")
            answer = tuple(map(int, output.token_ids))
            asked.append(_Request(prompt, answer, None if version is None else int(version)))

    def scored(self, worker: Any, outputs: Sequence[Any], *_: Any, **__: Any) -> RecordedCall:
        """After the reward function, which is handed these fields, too."""
        yield
        if len(outputs) > 1:
            for number, output in enumerate(outputs):
                output.extra_fields[OUTPUT] = [number, len(outputs)]
        told: list[list[dict[str, Any]]] = [[] for _ in outputs]
        tokens = [np.asarray([*output.prompt_ids, *output.response_ids], "<i8") for output in outputs]
        for request in _requests.get() or ():
            turns = [_described(request, of_output) for of_output in tokens]
            whose = [
                number
                for number, output in enumerate(outputs)
                if len(outputs) == 1 or _is_answered_in(request, output, tokens[number])
            ]
            if whose:
                best = max(whose, key=lambda number: (turns[number]["tokens"], -len(told[number])))
                told[best].append(turns[best])
        for output, of_output in zip(outputs, told, strict=True):
            if of_output:
                output.extra_fields[TURNS] = of_output


def _is_answered_in(request: _Request, output: Any, tokens: np.ndarray) -> bool:
    """Whether an answer is part of this output's response; the prompt of a later one has it, too."""
    length = len(request.prompt)
    return length >= len(output.prompt_ids) and tuple(tokens[:length].tolist()) == request.prompt


def _described(request: _Request, tokens: np.ndarray) -> dict[str, Any]:
    prompt = np.asarray(request.prompt, "<i8")
    rest = tokens[len(prompt) : len(prompt) + len(request.answer)]
    same = rest == np.asarray(request.answer, "<i8")[: len(rest)]
    return {
        "prompt_tokens": len(prompt),
        "prompt_hash": prompt_hash(prompt.tobytes()),
        # As far as the sequence that is trained on has them.
        "tokens": int(np.argmin(np.append(same, False))),
        "version": request.version,
    }


def versions_of(turns: Sequence[Mapping[str, Any]], tokens: np.ndarray) -> np.ndarray | None:
    """Which weights made each token of a sequence, -1 where none did; None if the turns do not tell."""
    found = np.full(len(tokens), -1, np.int64)
    for turn in turns:
        start = turn["prompt_tokens"]
        before = np.asarray(tokens[:start], "<i8").tobytes()
        if turn["version"] is None or start > len(tokens) or prompt_hash(before) != turn["prompt_hash"]:
            return None
        found[start : start + turn["tokens"]] = turn["version"]
    return found
