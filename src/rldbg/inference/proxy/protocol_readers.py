"""How the proxy reads an exchange: which fields to add to the request, and the generations in the answer.

Each protocol has one reader. It gets the request's body and the answer (events of a stream are put together first) and
gives generations; what has no token ids cannot be recorded and is counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rldbg.inference.conversation.answer import Answer
from rldbg.inference.conversation.messages import conversation_text
from rldbg.inference.protocols.generation_jobs import sample_seed
from rldbg.inference.proxy.captured import AnswerReader, Body, Captured, likeliest, token_named
from rldbg.inference.proxy.chat_readers import MessagesReader, ResponsesReader


def _seed(seed: Any, number: int) -> int | None:
    """The seed of one of several samples, as our server would draw it."""
    return sample_seed(seed, number) if isinstance(seed, int) else None


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
            stop=finish.get("matched") if isinstance(finish, Mapping) else None,
            seed=_seed(_sampling(request, number // count).get("sampling_seed"), number % count),
            top=[[(entry[1], entry[0]) for entry in place or ()] for place in meta.get("output_top_logprobs") or ()],
        )


def _sampling(request: Body, number: int) -> Body:
    """The sampling parameters of one prompt of a batch."""
    given = request.get("sampling_params") or {}
    return given[number] if isinstance(given, list) else given


def _completions(request: Body, answer: Any) -> Iterator[Captured]:
    prompt = request.get("prompt")
    given = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
    choices = answer.get("choices", [])
    count = max(1, len(choices) // len(given))
    for choice in choices:
        own = given[min(int(choice.get("index", 0)) // count, len(given) - 1)]
        logprobs = choice.get("logprobs") or {}
        ids = choice.get("token_ids") or _ids(logprobs.get("tokens") or [])
        # With `echo` an answer begins with its prompt.
        before = own if isinstance(own, str) and request.get("echo") else ""
        places = (logprobs.get("top_logprobs") or [])[-len(ids) :] if ids else []
        yield Captured(
            prompt=choice.get("prompt_token_ids") or (own if isinstance(own, list) else []),
            tokens=ids,
            logprobs=(logprobs.get("token_logprobs") or [])[-len(ids) :] if ids else [],
            prompt_text=own if isinstance(own, str) else None,
            text=(choice.get("text") or "").removeprefix(before),
            finish=choice.get("finish_reason"),
            version=answer.get("weight_version"),
            stop=choice.get("stop_reason"),
            seed=_seed(request.get("seed"), int(choice.get("index", 0)) % count),
            top=[[(token_named(name), score) for name, score in (place or {}).items()] for place in places],
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
            answer=Answer.of_message(choice.get("message") or {}),
            stop=choice.get("stop_reason"),
            seed=_seed(request.get("seed"), int(choice.get("index", 0))),
            top=likeliest(content),
        )


def _tokens(request: Body, answer: Any) -> Iterator[Captured]:
    """vLLM's tokens in, tokens out."""
    for choice in answer.get("choices", []):
        content = (choice.get("logprobs") or {}).get("content") or []
        yield Captured(
            prompt=request.get("token_ids") or [],
            tokens=choice.get("token_ids") or [],
            logprobs=[entry.get("logprob") for entry in content],
            finish=choice.get("finish_reason"),
            version=answer.get("weight_version"),
            seed=_seed(_sampling(request, 0).get("seed"), int(choice.get("index", 0))),
            top=likeliest(content),
        )


def _trl(request: Body, answer: Any) -> Iterator[Captured]:
    prompts = answer.get("prompt_ids", [])
    completions = answer.get("completion_ids", [])
    count = max(1, len(completions) // max(1, len(prompts)))
    asked = request.get("prompts") or [conversation_text(item) for item in request.get("messages") or ()]
    logprobs = answer.get("logprobs") or [[]] * len(completions)
    ids = answer.get("logprob_token_ids") or [[]] * len(completions)
    for number, (tokens, places, beside) in enumerate(zip(completions, logprobs, ids, strict=True)):
        values = [place[0] if isinstance(place, list) else place for place in places]
        top = [list(zip(known, place, strict=True)) for known, place in zip(beside, places, strict=False)]
        is_asked = any(len(place) > 1 for place in top)
        prompt = asked[number // count] if len(asked) == len(prompts) else None
        yield Captured(
            prompts[number // count],
            tokens,
            values,
            prompt_text=prompt if isinstance(prompt, str) else None,
            seed=_seed(request.get("seed"), number % count),
            top=top if is_asked else (),
        )


def _joined_choices(events: Sequence[Body]) -> Any:
    """The chunks of a streamed answer as the whole one would be."""
    whole: dict[str, Any] = {name: value for event in events for name, value in event.items() if name != "choices"}
    choices: dict[int, dict[str, Any]] = {}
    for part in (part for event in events for part in event.get("choices", [])):
        choice = choices.setdefault(int(part.get("index", 0)), {"index": part.get("index", 0), "text": ""})
        delta = part.get("delta") or {}
        choice["text"] += part.get("text") or delta.get("content") or ""
        message = choice.setdefault("message", {"reasoning": "", "tool_calls": []})
        message["content"] = choice["text"]
        message["reasoning"] += delta.get("reasoning_content") or delta.get("reasoning") or ""
        _join_calls(message["tool_calls"], delta.get("tool_calls") or ())
        choice.setdefault("token_ids", []).extend(part.get("token_ids") or [])
        if part.get("prompt_token_ids"):
            choice["prompt_token_ids"] = part["prompt_token_ids"]
        for name in ("finish_reason", "stop_reason"):
            choice[name] = part.get(name) or choice.get(name)
        for name, values in (part.get("logprobs") or {}).items():
            if isinstance(values, list):
                choice.setdefault("logprobs", {}).setdefault(name, []).extend(values)
    return whole | {"choices": [choices[index] for index in sorted(choices)]}


def _join_calls(calls: list[dict[str, Any]], deltas: Sequence[Body]) -> None:
    """Calls come whole, or their arguments in pieces."""
    for delta in deltas:
        while len(calls) <= int(delta.get("index", 0)):
            calls.append({"id": None, "function": {"name": "", "arguments": ""}})
        call, function = calls[int(delta.get("index", 0))], delta.get("function") or {}
        call["id"] = delta.get("id") or call["id"]
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        call["function"]["arguments"] += function.get("arguments") or ""


def _last(events: Sequence[Body]) -> Any:
    return events[-1] if events else {}


def _ids(names: Sequence[str]) -> list[int]:
    """Token ids out of names like token_id:42; nothing when the names are texts."""
    if not all(isinstance(name, str) and name.startswith("token_id:") for name in names):
        return []
    return [int(name.partition(":")[2]) for name in names]


_OPENAI = {"return_token_ids": True}


def readers() -> Mapping[str, AnswerReader]:
    """A proxy's readers, by the routes they are for."""
    responses, messages = ResponsesReader(), MessagesReader()
    return {
        "/generate": AnswerReader({"return_logprob": True}, _sglang, _last),
        "/v1/completions": AnswerReader(_OPENAI | {"logprobs": 0}, _completions, _joined_choices),
        "/v1/chat/completions": AnswerReader(_OPENAI | {"logprobs": True}, _chat, _joined_choices),
        "/v1/responses": AnswerReader(_OPENAI, responses.read, responses.join),
        "/v1/messages": AnswerReader(_OPENAI, messages.read, messages.join),
        "/inference/v1/generate": AnswerReader({"sampling_params": {"logprobs": 0}}, _tokens, _last),
        "/generate/": AnswerReader({}, _trl, _last),
        "/chat/": AnswerReader({}, _trl, _last),
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
        "/finish_weight_update",
    }
)
