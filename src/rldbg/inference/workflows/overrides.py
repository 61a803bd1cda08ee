"""AReaL's `key=value` overrides, as its guide passes them to a debug program: those that mean something here."""

from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from rldbg.core import UsageError
from rldbg.inference.workflows.sampling import GenerationSettings

_GENERATION = "gconfig."
# The documented key, the option of `rldbg rollout` it sets, and what it must be.
_OPTIONS: dict[str, tuple[str, type]] = {
    "rollout.enable_rollout_tracing": ("trace", bool),
    "rollout.max_concurrent_rollouts": ("concurrency", int),
    "rollout.request_timeout": ("request_timeout", float),
    "gconfig.n_samples": ("n", int),
}


def parse_overrides(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options and the generation settings that the overrides set; a later one wins."""
    options: dict[str, Any] = {}
    generation: dict[str, Any] = {}
    for word in words:
        key, separator, text = word.lstrip("+").partition("=")
        if not separator:
            raise UsageError(f"{word!r} is not an override", "write key=value, as rollout.enable_rollout_tracing=True")
        if key in _OPTIONS:
            name, kind = _OPTIONS[key]
            options[name] = _value(key, text, kind)
        elif key.removeprefix(_GENERATION) in GenerationSettings.__slots__ and key.startswith(_GENERATION):
            generation[key.removeprefix(_GENERATION)] = _value(key, text, _kind_of(key.removeprefix(_GENERATION)))
        else:
            raise _unknown(key)
    return options, generation


def _kind_of(name: str) -> type:
    default = next(item.default for item in fields(GenerationSettings) if item.name == name)
    return type(default)


def _value(key: str, text: str, kind: type) -> Any:
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is tuple and isinstance(value, list | int | str):
        value = tuple(value) if isinstance(value, list) else (value,)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{key}={text} is not a {kind.__name__}", f"give {key} a {kind.__name__}")
    if isinstance(value, int | float) and value < 0:
        raise UsageError(f"{key}={text} is negative", f"give {key} a non-negative number")
    return value


def _unknown(key: str) -> UsageError:
    known = [*_OPTIONS, *(f"{_GENERATION}{name}" for name in GenerationSettings.__slots__)]
    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(dict.fromkeys(known))}"
    return UsageError(f"a rollout has no setting {key!r}", hint)
