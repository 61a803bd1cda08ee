"""The bodies of requests and answers: SGLang's /generate, and vLLM's and OpenAI's completions and chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rldbg.core import RldbgError
from rldbg.inference.workflows.completions import Completion
from rldbg.inference.workflows.settings import GenerationSettings

Protocol = Literal["sglang", "openai"]
_TOKEN_PREFIX = "token_id:"


class UnexpectedResponse(RldbgError):
    """A server answered, but not with what the protocol promises."""

    kind = "protocol"


def sglang_body(
    prompt: str | Sequence[int], settings: GenerationSettings, *, seed: int | None, rid: str
) -> dict[str, Any]:
    body: dict[str, Any] = {"sampling_params": settings.for_sglang(seed), "return_logprob": True, "stream": False}
    if rid:
        body["rid"] = rid
    if isinstance(prompt, str):
        # Log probs of the prompt are asked for because they name its tokens.
        return body | {"text": prompt, "logprob_start_len": 0}
    return body | {"input_ids": list(prompt)}


def sglang_answer(body: Any, prompt: str | Sequence[int]) -> Completion:
    meta = body.get("meta_info") if isinstance(body, Mapping) else None
    if not isinstance(meta, Mapping) or not isinstance(meta.get("output_token_logprobs"), list):
        raise _unexpected(
            body, "meta_info.output_token_logprobs", "start the server with log probs, or --protocol openai"
        )
    drawn = meta["output_token_logprobs"]
    if isinstance(prompt, str):
        prompt = [int(item[1]) for item in meta.get("input_token_logprobs") or ()]
        if not prompt:
            raise _unexpected(body, "meta_info.input_token_logprobs", "give --tokenizer, so that prompts go as tokens")
    reason = meta.get("finish_reason") or {}
    return Completion(
        prompt_tokens=tuple(prompt),
        tokens=tuple(int(item[1]) for item in drawn),
        logprobs=tuple(float(item[0]) for item in drawn),
        versions=(version_number(meta.get("weight_version")),) * len(drawn),
        text=str(body.get("text", "")),
        finish_reason=str(reason.get("type", "stop") if isinstance(reason, Mapping) else reason),
        id=str(meta.get("id", "")),
    )


def completions_body(
    prompt: str | Sequence[int], settings: GenerationSettings, *, seed: int | None, model: str
) -> dict[str, Any]:
    prompt = prompt if isinstance(prompt, str) else list(prompt)
    return settings.for_openai(seed) | {"model": model, "prompt": prompt, "logprobs": 0} | TOKEN_IDS


# What makes vLLM and its relatives say which tokens they mean, in chat as in completions.
TOKEN_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True, "stream": False}


def openai_answers(body: Any, prompt: Sequence[int] = ()) -> list[Completion]:
    """Every choice of a completion or chat completion; the server must have named the tokens."""
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list) or not choices:
        raise _unexpected(body, "choices", "is this an OpenAI-compatible server?")
    return [_choice(body, choice, prompt) for choice in choices]


def _choice(body: Mapping[str, Any], choice: Mapping[str, Any], prompt: Sequence[int]) -> Completion:
    message = choice.get("message") or {}
    logprobs = choice.get("logprobs") or {}
    content = logprobs.get("content") or []
    names = logprobs.get("tokens") or [item.get("token") for item in content]
    values = logprobs.get("token_logprobs") or [item.get("logprob") for item in content]
    tokens = choice.get("token_ids")
    if tokens is None:
        tokens = [int(name.removeprefix(_TOKEN_PREFIX)) for name in names if str(name).startswith(_TOKEN_PREFIX)]
    asked = choice.get("prompt_token_ids") or body.get("prompt_token_ids") or prompt
    if len(tokens) != len(values):
        raise _unexpected(
            body, "one token id for each log prob", "use a server that knows return_token_ids (vLLM, rldbg serve)"
        )
    if not asked:
        raise _unexpected(body, "prompt_token_ids", "use a server that knows return_token_ids (vLLM, rldbg serve)")
    return Completion(
        prompt_tokens=tuple(int(token) for token in asked),
        tokens=tuple(int(token) for token in tokens),
        logprobs=tuple(float(value) for value in values),
        versions=(version_number(body.get("weight_version")),) * len(tokens),
        text=str(choice.get("text") or message.get("content") or ""),
        finish_reason=str(choice.get("finish_reason") or "stop"),
        id=str(body.get("id", "")),
    )


def version_number(value: Any) -> int:
    """The version of the weights; a server that names none has never been given new ones: 0, as AReaL counts."""
    text = str(value if value is not None else "")
    return int(text) if text.lstrip("-").isdigit() else 0


def _unexpected(body: Any, missing: str, hint: str) -> UnexpectedResponse:
    return UnexpectedResponse(f"the server's answer has no {missing}: {body!r:.300}", hint)
