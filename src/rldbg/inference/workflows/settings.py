"""How requests sample: one object for all shapes of workflow, with the names that AReaL's configuration has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any

from rldbg.core import UsageError, setting, validated

# What AReaL sends for "no limit".
_NO_TOP_K = 100_000_000
_LISTS = ("stop_token_ids", "stop")


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """Sampling of one request. `new` and `new_with_stop_and_pad_token_ids` are what AReaL's workflows call."""

    max_new_tokens: int = setting(256, at_least=0)
    """Maximum number of new tokens."""
    temperature: float = setting(1.0, at_least=0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = setting(1.0, at_least=0)
    """Sample from the most likely tokens whose probabilities add up to this."""
    top_k: int = setting(_NO_TOP_K, at_least=0)
    """Sample from the k most likely tokens."""
    greedy: bool = False
    """Take the most likely token, whatever the temperature."""
    stop_token_ids: tuple[int, ...] = ()
    """Additional stop tokens."""
    stop: tuple[str, ...] = ()
    """Stop strings."""
    ignore_eos: bool = False
    """Continue after the model's own end token."""
    frequency_penalty: float = setting(0.0, at_least=0)
    """Penalty per earlier occurrence of a token."""
    n_samples: int = setting(1, at_least=0)
    """Samples per prompt (`--n`)."""

    def new(self, **changes: Any) -> GenerationSettings:
        return replace(self, **changes)

    def new_with_stop_and_pad_token_ids(self, tokenizer: Any) -> GenerationSettings:
        """A copy with the tokenizer's pad and end tokens among the stop tokens."""
        ids = [tokenizer.pad_token_id, tokenizer.eos_token_id]
        missing = [int(token) for token in ids if token is not None and token not in self.stop_token_ids]
        return replace(self, stop_token_ids=(*self.stop_token_ids, *missing))

    @classmethod
    def from_object(cls, source: Any, default: GenerationSettings) -> GenerationSettings:
        """Settings from any object or mapping with some of these names; missing ones have the defaults."""
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
        for name in _LISTS:
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


@dataclass(frozen=True, slots=True)
class ArealRollout:
    """The keys of AReaL's `rollout` block that are used here."""

    enable_rollout_tracing: bool = False
    """Write the timeline of every episode (`--trace`)."""
    max_concurrent_rollouts: int = setting(64, at_least=0)
    """Episodes at once (`--concurrency`)."""
    request_timeout: float = setting(300.0, at_least=0)
    """Seconds until a request to a server fails (`--request-timeout`)."""


@dataclass(frozen=True, slots=True)
class ArealOverrides:
    """The `key=value` overrides that AReaL's guide passes to a debug program."""

    rollout: ArealRollout = field(default_factory=ArealRollout)
    gconfig: GenerationSettings = field(default_factory=GenerationSettings)


_OPTIONS = {
    "enable_rollout_tracing": "trace",
    "max_concurrent_rollouts": "concurrency",
    "request_timeout": "request_timeout",
}


def parse_overrides(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of `rldbg rollout` and the generation settings that AReaL's overrides set; a later one wins."""
    if not words:
        return {}, {}
    data: dict[str, dict[str, Any]] = {}
    for word in words:
        key, separator, text = word.lstrip("+").partition("=")
        block, dot, name = key.partition(".")
        if not separator or not dot:
            raise UsageError(
                f"{word!r} is not an override", "write key=value, for example rollout.enable_rollout_tracing=True"
            )
        value = _yaml(text)
        data.setdefault(block, {})[name] = [value] if name in _LISTS and not isinstance(value, list) else value
    # Without overrides nothing needs to be installed that checks them.
    made = validated(ArealOverrides, data, source="overrides", page="rollout.md") if data else ArealOverrides()
    options = {_OPTIONS[name]: getattr(made.rollout, name) for name in data.get("rollout", ())}
    generation = {name: getattr(made.gconfig, name) for name in data.get("gconfig", ())}
    if "n_samples" in generation:
        options["n"] = generation.pop("n_samples")
    return options, generation


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
