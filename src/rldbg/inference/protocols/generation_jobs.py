"""From a request's fields to jobs: identities, seeds, and the settings all protocols share."""

import secrets
from collections.abc import Sequence
from hashlib import blake2b

from rldbg.algorithms import LOGPROB_MODES, LogprobMode
from rldbg.inference.generation import Constraint, GenerationJob, Penalties, SamplingSettings
from rldbg.inference.protocols.chat_jobs import ChatPrompt
from rldbg.inference.protocols.constraint_fields import constraint_of
from rldbg.inference.protocols.fields import Fields
from rldbg.inference.request_error import RequestError

_SEED_BITS = (1 << 64) - 1
_MOST_TOP = 100
# Some clients say "no limit" by a number larger than any vocabulary.
_UNLIMITED_TOP_K = 1 << 30


def settings_of(
    fields: Fields,
    *,
    max_new_tokens: int,
    stop_texts: Sequence[str],
    mode: LogprobMode,
    constraint: Constraint | None = None,
) -> SamplingSettings:
    """The sampling fields that all protocols call by the same name; a `constraint` comes before those of the fields."""
    top_k = fields.integer("top_k", 0, least=-1, most=_UNLIMITED_TOP_K)
    wanted = fields.text("logprobs_mode", mode)
    if wanted not in LOGPROB_MODES:
        raise RequestError(f"logprobs_mode is {wanted!r}; it must be one of {', '.join(LOGPROB_MODES)}")
    return SamplingSettings(
        max_new_tokens=max_new_tokens,
        min_new_tokens=fields.integer("min_new_tokens", fields.integer("min_tokens", 0)),
        temperature=fields.number("temperature", 1.0, least=0, most=1e6),
        top_p=_above_zero(fields, "top_p"),
        top_k=max(top_k, 0),
        min_p=fields.number("min_p", 0.0, least=0, most=1),
        stop_token_ids=frozenset(fields.tokens("stop_token_ids")),
        stop_texts=tuple(stop_texts),
        ignore_eos=fields.flag("ignore_eos"),
        logprob_mode=wanted,
        penalties=_penalties(fields),
        logit_bias=_logit_bias(fields),
        allowed_token_ids=frozenset(fields.tokens("allowed_token_ids")),
        constraint=constraint or constraint_of(fields),
    )


def _penalties(fields: Fields) -> Penalties | None:
    penalties = Penalties(
        presence=fields.number("presence_penalty", 0.0, least=-2, most=2),
        frequency=fields.number("frequency_penalty", 0.0, least=-2, most=2),
        repetition=fields.number("repetition_penalty", 1.0, least=0.01, most=100),
    )
    return None if penalties == Penalties() else penalties


def _logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    given = fields.object("logit_bias")
    values = Fields(given, "logit_bias.")
    if not all(str(token).isdecimal() for token in given):
        raise RequestError("logit_bias must have token ids as its names")
    return tuple((int(token), values.number(token, 0.0, least=-100, most=100)) for token in given)


def seed_of(fields: Fields, name: str) -> int | None:
    """Any whole number, taken modulo 2^64; None when the request leaves it open."""
    value = fields.raw(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} is {str(value)[:80]!r}; it must be an integer")
    return value & _SEED_BITS


def sample_seed(seed: int | None, number: int) -> int:
    """The seed of one of several samples of a request: the first has the request's own."""
    if seed is None:
        return secrets.randbits(64)
    if number == 0:
        return seed
    return int.from_bytes(blake2b(f"{seed}\0{number}".encode(), digest_size=8).digest(), "little")


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(16)}"


def samples(job: GenerationJob, count: int, seed: int | None) -> list[GenerationJob]:
    """The same job several times, each with an identity and a seed of its own."""
    from dataclasses import replace

    ids = [job.id if number == 0 else f"{job.id}-{number}" for number in range(count)]
    return [replace(job, id=name, seed=sample_seed(seed, number)) for number, name in enumerate(ids)]


def chat_job(
    fields: Fields,
    prompt: ChatPrompt,
    *,
    name: str,
    limit: int,
    stop_texts: Sequence[str],
    mode: LogprobMode,
    top: int = 0,
) -> GenerationJob:
    """The one job of a request of a conversation."""
    settings = settings_of(fields, max_new_tokens=limit, stop_texts=stop_texts, mode=mode, constraint=prompt.constraint)
    job = GenerationJob(name, prompt.tokens, settings, seed=0, top_logprobs=top, prompt_text=prompt.text)
    return samples(job, 1, seed_of(fields, "seed"))[0]


def top_count(fields: Fields, name: str) -> int:
    return fields.integer(name, 0, least=0, most=_MOST_TOP)


def _above_zero(fields: Fields, name: str) -> float:
    value = fields.number(name, 1.0, least=0, most=1)
    if value == 0:
        raise RequestError(f"{name} is 0; it must be above 0 and at most 1")
    return value
