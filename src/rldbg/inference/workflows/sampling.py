"""How requests sample: one object for all shapes of workflow, with the names that AReaL's configuration has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import Any

# What AReaL sends for "no limit".
_NO_TOP_K = 100_000_000


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """Sampling of one request. `new` and `new_with_stop_and_pad_token_ids` are what AReaL's workflows call."""

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = _NO_TOP_K
    greedy: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    frequency_penalty: float = 0.0
    n_samples: int = 1

    def new(self, **changes: Any) -> GenerationSettings:
        return replace(self, **changes)

    def new_with_stop_and_pad_token_ids(self, tokenizer: Any) -> GenerationSettings:
        """With the tokenizer's pad and end tokens among the stop tokens."""
        ids = [tokenizer.pad_token_id, tokenizer.eos_token_id]
        missing = [int(token) for token in ids if token is not None and token not in self.stop_token_ids]
        return replace(self, stop_token_ids=(*self.stop_token_ids, *missing))

    @classmethod
    def from_object(cls, source: Any, default: GenerationSettings) -> GenerationSettings:
        """Any object or mapping with some of these names; what it does not say is the default's."""
        if source is None:
            return default
        if isinstance(source, cls):
            return source
        values = (
            source if isinstance(source, Mapping) else {name: getattr(source, name, None) for name in cls.__slots__}
        )
        said: dict[str, Any] = {
            item.name: values[item.name] for item in fields(cls) if values.get(item.name) is not None
        }
        for name in ("stop_token_ids", "stop"):
            if name in said:
                said[name] = (said[name],) if isinstance(said[name], str | int) else tuple(said[name])
        return replace(default, **said)

    def for_sglang(self, seed: int | None = None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "temperature": 0.0 if self.greedy else self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "ignore_eos": self.ignore_eos,
            "frequency_penalty": self.frequency_penalty,
        }
        if self.stop_token_ids:
            body["stop_token_ids"] = list(self.stop_token_ids)
        if self.stop:
            body["stop"] = list(self.stop)
        if seed is not None:
            body["sampling_seed"] = seed
        return body

    def for_openai(self, seed: int | None = None) -> dict[str, Any]:
        body = self.for_sglang()
        body["max_tokens"] = body.pop("max_new_tokens")
        # vLLM writes "no limit" as -1, and refuses a number beyond the vocabulary in some versions.
        body["top_k"] = -1 if self.top_k >= _NO_TOP_K else self.top_k
        if seed is not None:
            body["seed"] = seed
        return body


def request_seed(seed: int | None, sample: str, number: int) -> int | None:
    """The seed of one request of one sample: the same in every run, alone or among thousands."""
    if seed is None:
        return None
    digest = blake2b(f"{seed}\0{sample}\0{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF
