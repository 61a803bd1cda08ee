"""Sampling from a causal model: several continuations of one prompt, with the log prob of each token as it was drawn.

A sample's random numbers follow from (seed, prompt, which sample it is, position) and nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import torch

from rldbg.algorithms import LogprobMode, log_softmax, sample_tokens, token_log_probs
from rldbg.core import setting
from rldbg.inference import uniform
from rldbg.training_service.errors import ServiceRequestError, read_settings

_PLAIN = ("max_tokens", "temperature", "top_p", "top_k", "seed")
StopReason = Literal["stop", "length"]
SequenceDecoder = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True)
class ClientSamplingSettings:
    """How to continue a prompt, as a rule of `sample_tokens`: clients get the log probs that were sampled from."""

    max_tokens: int | None = setting(None, at_least=1)
    temperature: float = setting(1.0, at_least=0, at_most=1e6)
    top_p: float = setting(1.0, above=0, at_most=1)
    top_k: int = setting(0, at_least=-1)
    min_p: float = 0.0
    logprob_mode: LogprobMode = "sampled"
    seed: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    stop_at_end: bool = True
    """Whether the tokenizer's end token stops as well."""

    @classmethod
    def parse(cls, body: Any) -> "ClientSamplingSettings":
        """Sampling parameters as JSON, in either protocol's spelling."""
        if not isinstance(body, Mapping):
            raise ServiceRequestError("sampling_params is not a mapping")
        stop = body.get("stop")
        items = [stop] if isinstance(stop, str) else stop or []
        extra = body.get("stop_token_ids") or []
        if not all(isinstance(part, list) and all(type(x) in (str, int) for x in part) for part in (items, extra)):
            raise ServiceRequestError("sampling_params.stop and stop_token_ids are lists of strings and token ids")
        texts = tuple(item for item in items if isinstance(item, str))
        plain = {name: body[name] for name in _PLAIN if body.get(name) is not None}
        settings = replace(
            read_settings(cls, plain, "sampling_params"),
            stop_tokens=frozenset(item for item in (*items, *extra) if isinstance(item, int)),
            stop_texts=texts,
            # Tinker: a list of token ids replaces the end token, so that an empty one switches it off.
            stop_at_end=stop is None or bool(texts),
        )
        return replace(settings, top_k=max(settings.top_k, 0))


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The k likeliest tokens of each position, shape [positions, k]."""

    token_ids: np.ndarray
    logprobs: np.ndarray


@dataclass(frozen=True, slots=True)
class SampledSequence:
    tokens: list[int]
    logprobs: list[float]
    stop_reason: StopReason
    top: TopLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """What a sampling request gives; `prompt_logprobs` has NaN where nothing precedes a token."""

    sequences: tuple[SampledSequence, ...]
    prompt_logprobs: np.ndarray | None = None
    prompt_top: TopLogprobs | None = None


def prompt_logprobs(model: Any, prompt: np.ndarray, top_k: int = 0) -> tuple[np.ndarray, TopLogprobs | None]:
    """The model's own log prob of each prompt token after the first, and the k likeliest in its place."""
    tokens = torch.from_numpy(prompt).to(_device(model))[None]
    with torch.no_grad():
        log_probs_tv = log_softmax(model(input_ids=tokens, use_cache=False).logits[:, :-1].float())[0]
        chosen = token_log_probs(log_probs_tv, tokens[0, 1:])
    values = np.concatenate([[np.nan], chosen.cpu().numpy()]).astype(np.float32)
    if not top_k:
        return values, None
    logprobs, ids = log_probs_tv.topk(min(top_k, log_probs_tv.shape[-1]), dim=-1)
    blank = np.full((1, ids.shape[1]), np.nan, dtype=np.float32)
    top = TopLogprobs(
        np.concatenate([np.zeros((1, ids.shape[1]), dtype=np.int32), ids.cpu().numpy().astype(np.int32)]),
        np.concatenate([blank, logprobs.cpu().numpy()]),
    )
    return values, top


class Continuation:
    """The continuations of one prompt while they are drawn, all in one batch."""

    def __init__(
        self, model: Any, prompt: np.ndarray, count: int, settings: ClientSamplingSettings, *, seed: int, top_k: int = 0
    ) -> None:
        self._model = model
        self._prompt = prompt
        self._settings = settings
        self._top_k = top_k
        self._keys = [_sample_key(seed, prompt, number) for number in range(count)]
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self.logprobs: list[list[float]] = [[] for _ in range(count)]
        self._top: list[list[tuple[Any, Any]]] = [[] for _ in range(count)]
        self.stopped = [False] * count

    def run(self, limit: int, stop_tokens: frozenset[int], decode: SequenceDecoder) -> tuple[SampledSequence, ...]:
        """Samples up to `limit` tokens per sample; `decode` turns tokens into text, for stop texts."""
        count = len(self._keys)
        inputs = torch.from_numpy(self._prompt).to(_device(self._model))[None].repeat(count, 1)
        cache = None
        with torch.no_grad():
            for position in range(limit):
                output = self._model(input_ids=inputs, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                token_b = self._sample(output.logits[:, -1], position)
                self._keep(token_b.tolist(), stop_tokens, decode)
                if all(self.stopped):
                    break
                inputs = token_b[:, None]
        return tuple(self._sequence(number) for number in range(count))

    def _sample(self, logits_bv: "torch.Tensor", position: int) -> "torch.Tensor":
        count = len(self._keys)
        sampled = sample_tokens(logits_bv, [self._settings] * count, uniform(self._keys, [position] * count))
        for number, logprob in enumerate(sampled.logprob_b.tolist()):
            if not self.stopped[number]:
                self.logprobs[number].append(logprob)
        if self._top_k:
            self._keep_top(log_softmax(logits_bv))
        token_b: torch.Tensor = sampled.token_b
        return token_b

    def _keep_top(self, log_probs_bv: "torch.Tensor") -> None:
        logprobs, ids = log_probs_bv.topk(min(self._top_k, log_probs_bv.shape[-1]), dim=-1)
        for number, row in enumerate(zip(ids.cpu().numpy(), logprobs.cpu().numpy(), strict=True)):
            if not self.stopped[number]:
                self._top[number].append(row)

    def _keep(self, drawn: list[int], stop_tokens: frozenset[int], decode: SequenceDecoder) -> None:
        for number, token in enumerate(drawn):
            if self.stopped[number]:
                continue
            self.tokens[number].append(token)
            self.stopped[number] = token in stop_tokens or (
                bool(self._settings.stop_texts)
                and any(text in decode(self.tokens[number]) for text in self._settings.stop_texts)
            )

    def _sequence(self, number: int) -> SampledSequence:
        rows = self._top[number]
        top = TopLogprobs(np.stack([ids for ids, _ in rows]), np.stack([lps for _, lps in rows])) if rows else None
        reason: StopReason = "stop" if self.stopped[number] else "length"
        return SampledSequence(self.tokens[number], self.logprobs[number], reason, top)


def _sample_key(seed: int, prompt: np.ndarray, number: int) -> int:
    text = f"{seed}\0{number}\0".encode() + prompt.astype("<i8").tobytes()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def _device(model: Any) -> Any:
    return next(model.parameters()).device
