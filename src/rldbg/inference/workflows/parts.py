"""Reward functions and tools that are attributes of a workflow: run in this process, traced by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from rldbg.inference.workflows.episode import span


def rewards_here(workflow: Any) -> list[str]:
    """Replaces wrappers that send a reward function to another process by the function itself; their names.

    There a breakpoint has no terminal, a local function cannot be sent, and a time limit makes a reward of 0 out of
    a debugging session or an error.
    """
    replaced = []
    for name, value in list(getattr(workflow, "__dict__", {}).items()):
        function = getattr(value, "reward_fn", None)
        if callable(value) and callable(function) and hasattr(value, "timeout_seconds"):
            setattr(workflow, name, _in_this_process(function))
            replaced.append(name)
    return replaced


def _in_this_process(function: Any) -> Any:
    async def call(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return call


def trace_parts(workflow: Any) -> None:
    """Puts the reward function and the tools among a workflow's attributes on the timelines, under their names."""
    for name, value in list(getattr(workflow, "__dict__", {}).items()):
        if "reward" in name and callable(value):
            setattr(workflow, name, _traced("reward", name, value))
        elif name == "tools" and isinstance(value, Mapping):
            setattr(workflow, name, {key: _traced("tool", str(key), tool) for key, tool in value.items()})
        elif name == "tools" and isinstance(value, list):
            setattr(workflow, name, [_traced("tool", getattr(tool, "__name__", "tool"), tool) for tool in value])
        elif "tool" in name and callable(value):
            setattr(workflow, name, _traced("tool", name, value))


def _traced(kind: str, name: str, function: Any) -> Any:
    if not callable(function) or inspect.isclass(function):
        return function
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

        @functools.wraps(function, updated=())
        async def later(*arguments: Any, **named: Any) -> Any:
            with span(kind, name):
                return await function(*arguments, **named)

        return later

    @functools.wraps(function, updated=())
    def now(*arguments: Any, **named: Any) -> Any:
        with span(kind, name):
            return function(*arguments, **named)

    return now
