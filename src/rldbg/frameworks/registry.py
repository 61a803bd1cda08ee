"""The registry: every framework by its name, ours first, then those of other distributions."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from rldbg.core import UsageError, did_you_mean
from rldbg.frameworks.base import Framework

ENTRY_POINTS = "rldbg.frameworks"
GENERIC = "generic"

# In the order in which they are asked whether files are theirs: layouts with telling names come first.
_BUILT_IN = (
    "rldbg",
    "nexrl",
    "sglang",
    "msprobe",
    "debug_mode",
    "slime",
    "miles",
    "verl",
    "archer",
    "nemo_rl",
    "prime_rl",
    "areal",
    "trl",
    "openrlhf",
    "skyrl",
    "rlinf",
    "vllm",
    GENERIC,
)

_log = logging.getLogger(__name__)


def frameworks() -> Iterator[Framework]:
    """Every framework: ours first, then those of other distributions. One is loaded when its turn comes."""
    for name in _BUILT_IN:
        yield _built_in(name)
    yield from _of_others()


def find_framework(name: str) -> Framework:
    """The framework of this name; dashes and underscores are one."""
    wanted = name.replace("-", "_").lower()
    if wanted in _BUILT_IN:
        return _built_in(wanted)
    for framework in _of_others():
        if framework.name == wanted:
            return framework
    names = [*_BUILT_IN, *(framework.name for framework in _of_others())]
    choices = f"choose one of: {', '.join(sorted(names))}"
    raise UsageError(f"unknown framework: {name!r}", did_you_mean(wanted, names, choices))


def lineage(framework: Framework) -> Iterator[Framework]:
    """The framework, the one it is a fork of, and so on: the first that has a part lends it to those before."""
    yield framework
    while framework.based_on:
        framework = find_framework(framework.based_on)
        yield framework


def all_hooks() -> tuple[Any, ...]:
    """Phases and steps of every framework (rldbg.agent.profiling.Hook): a module that no process imports costs
    nothing."""
    return tuple(
        replace(hook, records=(), handler="")
        for framework in frameworks()
        for hook in framework.part("hooks") or ()
        if hook.phase or hook.step
    )


def recorded_hooks() -> tuple[tuple[Framework, Any], ...]:
    """The hooks of every framework that make records."""
    return tuple(
        (framework, hook) for framework in frameworks() for hook in framework.part("hooks") or () if hook.handler
    )


def _built_in(name: str) -> Framework:
    framework: Framework = import_module(f"rldbg.frameworks.{name}").FRAMEWORK
    return framework


@cache
def _of_others() -> tuple[Framework, ...]:
    """Frameworks of other distributions. One that cannot be loaded is reported and left out."""
    from importlib.metadata import entry_points

    found: dict[str, Framework] = {}
    for point in entry_points(group=ENTRY_POINTS):
        try:
            framework = point.load()
        except Exception as error:  # noqa: BLE001 - code of another distribution
            _log.warning(
                "framework %s (%s) does not load: %s: %s", point.name, point.value, type(error).__name__, error
            )
            continue
        if not isinstance(framework, Framework):
            _log.warning("framework %s (%s) is not an rldbg.frameworks.Framework", point.name, point.value)
        elif framework.name in _BUILT_IN or framework.name in found:
            _log.warning("framework %s (%s) is ignored: the name is taken", framework.name, point.value)
        else:
            found[framework.name] = framework
    return tuple(found.values())
