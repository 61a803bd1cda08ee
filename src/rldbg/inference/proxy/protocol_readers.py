"""What the proxy understands of an exchange: what to ask for beside, and the generations in the answer.

Each protocol has one reader. It gets the request's body and the answer (events of a stream are put together first) and
gives generations; what has no token ids cannot be recorded and is counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rldbg.inference.conversation.messages import conversation_text

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """One generation as it passed by. A prompt is known by its tokens, by its text, or by both."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    logprobs: Sequence[float | None]
    prompt_text: str | None
    text: str | None
    finish: str | None
    version: str | None


@dataclass(frozen=True, slots=True)
class Reader:
    """`wanted` are the fields to add to a request so that the answer has token ids and log probs."""

    wanted: Body
    read: Callable[[Body, Any], Iterator[Captured]]
    join: Callable[[Sequence[Body]], Any]


def _sglang(request: Body, answer: Any) -> Iterator[Captured]:
    answers = answer if isinstance(answer, list) else [answer]
    ids, text = request.get("input_ids"), request.get("text")
    prompts = ids if ids and isinstance(ids[0], list) else [ids] if ids is not None else [None]
    texts = text if isinstance(text, list) else [text]
    count = max(1, len(answers) // max(len(prompts), len(texts)))
    for number, item in enumerate(answers):
        meta = item.get("meta_info", {})
        drawn = meta.get("output_token_logprobs") or []
        finish = meta.get("finish_reason") or {}
        yield Captured(
            prompt=(prompts[min(number // count, len(prompts) - 1)] or []),
            tokens=[int(entry[1]) for entry in drawn] or item.get("output_ids") or [],
            logprobs=[entry[0] for entry in drawn],
            prompt_text=texts[min(number // count, len(texts) - 1)],
            text=item.get("text"),
            finish=finish.get("type") if isinstance(finish, Mapping) else finish,
            version=meta.get("weight_version"),
        )


def _completions(request: Body, answer: Any) -> Iterator[Captured]:
    prompt = request.get("prompt")
    given = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
    choices = answer.get("choices", [])
    count = max(1, len(choices) // len(given))
    for choice in choices:
        own = given[min(int(choice.get("index", 0)) // count, len(given) - 1)]
        logprobs = choice.get("logprobs") or {}
        ids = choice.get("token_ids") or _ids(logprobs.get("tokens") or [])
        yield Captured(
            prompt=choice.get("prompt_token_ids") or (own if isinstance(own, list) else []),
            tokens=ids,
            logprobs=logprobs.get("token_logprobs") or [],
            prompt_text=own if isinstance(own, str) else None,
            text=choice.get("text"),
            finish=choice.get("finish_reason"),
            version=answer.get("weight_version"),
        )


def _chat(request: Body, answer: Any) -> Iterator[Captured]:
    text = conversation_text(request.get("messages"))
    for choice in answer.get("choices", []):
        content = (choice.get("logprobs") or {}).get("content") or []
        ids = choice.get("token_ids") or _ids([entry.get("token", "") for entry in content])
        yield Captured(
            prompt=answer.get("prompt_token_ids") or choice.get("prompt_token_ids") or [],
            tokens=ids,
            logprobs=[entry.get("logprob") for entry in content],
            prompt_text=text,
            text=(choice.get("message") or {}).get("content"),
            finish=choice.get("finish_reason"),
            version=answer.get("weight_version"),
        )


def _trl(request: Body, answer: Any) -> Iterator[Captured]:
    prompts = answer.get("prompt_ids", [])
    completions = answer.get("completion_ids", [])
    count = max(1, len(completions) // max(1, len(prompts)))
    logprobs = answer.get("logprobs") or [[]] * len(completions)
    for number, (tokens, places) in enumerate(zip(completions, logprobs, strict=True)):
        values = [place[0] if isinstance(place, list) else place for place in places]
        yield Captured(prompts[number // count], tokens, values, None, None, None, None)


def _joined_choices(events: Sequence[Body]) -> Any:
    """The chunks of a streamed answer as the whole one would be."""
    whole: dict[str, Any] = {name: value for event in events for name, value in event.items() if name != "choices"}
    choices: dict[int, dict[str, Any]] = {}
    for part in (part for event in events for part in event.get("choices", [])):
        choice = choices.setdefault(int(part.get("index", 0)), {"index": part.get("index", 0), "text": ""})
        delta = part.get("delta") or {}
        choice["text"] += part.get("text") or delta.get("content") or ""
        choice["message"] = {"content": choice["text"]}
        choice.setdefault("token_ids", []).extend(part.get("token_ids") or [])
        if part.get("prompt_token_ids"):
            choice["prompt_token_ids"] = part["prompt_token_ids"]
        choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")
        for name, values in (part.get("logprobs") or {}).items():
            if isinstance(values, list):
                choice.setdefault("logprobs", {}).setdefault(name, []).extend(values)
    return whole | {"choices": [choices[index] for index in sorted(choices)]}


def _last(events: Sequence[Body]) -> Any:
    return events[-1] if events else {}


def _ids(names: Sequence[str]) -> list[int]:
    """Token ids out of names like token_id:42; nothing when the names are texts."""
    if not all(isinstance(name, str) and name.startswith("token_id:") for name in names):
        return []
    return [int(name.partition(":")[2]) for name in names]


_OPENAI = {"return_token_ids": True}
READERS: Mapping[str, Reader] = {
    "/generate": Reader({"return_logprob": True}, _sglang, _last),
    "/v1/completions": Reader(_OPENAI | {"logprobs": 0}, _completions, _joined_choices),
    "/v1/chat/completions": Reader(_OPENAI | {"logprobs": True}, _chat, _joined_choices),
    "/generate/": Reader({}, _trl, _last),
    "/chat/": Reader({}, _trl, _last),
}
# Routes that give the engine new weights; generations after one of them belong to the next policy version.
UPDATES = frozenset(
    {
        "/update_weights_from_disk",
        "/update_weights_from_tensor",
        "/update_weights_from_distributed",
        "/update_weight_version",
        "/areal_update_weights",
        "/areal_update_weights_xccl",
        "/update_weights",
    }
)
