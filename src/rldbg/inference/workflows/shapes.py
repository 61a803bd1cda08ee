"""Which of the four shapes a user's object has, and the adapter for it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rldbg.core import PrerequisiteError, UsageError, load_user_object, user_code
from rldbg.inference.workflows.adapters import Adapter, AgentAdapter, ArealAdapter, FunctionAdapter
from rldbg.inference.workflows.episode import span
from rldbg.inference.workflows.recording_proxy import RecordingProxy
from rldbg.inference.workflows.settings import GenerationSettings
from rldbg.inference.workflows.trl import TrlAdapter

WorkflowShape = Literal["areal", "agent", "function", "trl"]

_SHAPES_THERE_ARE = (
    "a class with `async arun_episode(self, engine, data)` or `async run(self, data, **kwargs)`, a function "
    "`(prompt, generate)` or `rollout_func(prompts, trainer)`; --shape says which one is meant"
)


@dataclass(frozen=True, slots=True)
class Construction:
    """What a workflow may be made with: what its constructor asks for by these names, and the user's own arguments."""

    settings: GenerationSettings
    arguments: Mapping[str, Any]
    tokenizer: Callable[[], Any]

    def make(self, factory: type) -> Any:
        parameters = inspect.signature(factory).parameters
        known = set(parameters) | ({*self.arguments} if _takes_any(parameters) else set())
        unknown = sorted(set(self.arguments) - known)
        if unknown:
            raise UsageError(
                f"{factory.__name__} takes no argument {unknown[0]!r}",
                f"it takes {', '.join(parameters) or 'none'}",
            )
        given = dict(self.arguments)
        for name, parameter in parameters.items():
            if name in given or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if name == "gconfig":
                given[name] = self.settings
            elif name == "tokenizer" and parameter.default is parameter.empty:
                given[name] = self._needed_tokenizer(factory.__name__)
            elif parameter.default is parameter.empty:
                raise UsageError(
                    f"{factory.__name__} needs the argument {name!r}",
                    f"give it with --arg {name}=VALUE (module:name is imported)",
                )
        with user_code(f"{factory.__name__}({', '.join(given)})"):
            return factory(**given)

    def _needed_tokenizer(self, name: str) -> Any:
        tokenizer = self.tokenizer()
        if tokenizer is None:
            raise UsageError(f"{name} needs a tokenizer", "give the model's folder with --tokenizer PATH")
        return tokenizer


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def shape_of(target: Any, name: str) -> WorkflowShape:
    """By its methods, then by the names of its parameters; anything else is an error that lists the shapes."""
    if callable(getattr(target, "arun_episode", None)):
        return "areal"
    if not inspect.isroutine(target) and callable(getattr(target, "run", None)):
        return "agent"
    if not callable(target) or inspect.isclass(target):
        raise UsageError(f"{name} is a {_described(target)}: not a workflow of a known shape", _SHAPES_THERE_ARE)
    names = [item.name for item in inspect.signature(target).parameters.values() if item.kind is not item.VAR_KEYWORD]
    if names[:1] == ["prompts"] or "trainer" in names[1:2]:
        return "trl"
    if names[:1] == ["prompt"] or names[1:2] == ["generate"]:
        return "function"
    if names[:1] == ["data"] and inspect.iscoroutinefunction(target):
        return "agent"
    raise UsageError(f"{name}({', '.join(names)}) is not a workflow of a known shape", _SHAPES_THERE_ARE)


def _described(target: Any) -> str:
    return f"class {target.__name__}" if inspect.isclass(target) else type(target).__name__


def load_workflow(name: str, *, shape: WorkflowShape | None, construction: Construction) -> tuple[WorkflowShape, Any]:
    """The user's workflow and its shape; a class is made into an object."""
    target = load_user_object(name, what="workflow")
    chosen = shape or shape_of(target, name)
    if inspect.isclass(target):
        target = construction.make(target)
    elif construction.arguments:
        raise UsageError(f"{name} is not a class, so it takes no arguments", "leave --arg out")
    method = {"areal": "arun_episode", "agent": "run"}.get(chosen)
    if method and not callable(getattr(target, method, None)) and not (chosen == "agent" and callable(target)):
        raise UsageError(f"{name} has no method {method}, so it is not of shape {chosen}", _SHAPES_THERE_ARE)
    if chosen in ("function", "trl") and not callable(target):
        raise UsageError(f"{name} cannot be called, so it is not of shape {chosen}", _SHAPES_THERE_ARE)
    return chosen, target


def adapter_of(
    shape: WorkflowShape,
    target: Any,
    *,
    n: int,
    proxy: Callable[[], RecordingProxy],
    reward: Callable[..., Any] | None = None,
    tokenizer: Callable[[], Any],
) -> Adapter:
    if shape == "areal":
        if not inspect.iscoroutinefunction(target.arun_episode):
            raise UsageError("arun_episode is not async", "write `async def arun_episode(self, engine, data)`")
        return ArealAdapter(target)
    if shape == "agent":
        return AgentAdapter(target if inspect.isroutine(target) else target.run, proxy())
    if shape == "trl":
        return TrlAdapter(target, n=n, reward=reward, tokenizer=tokenizer())
    return FunctionAdapter(target)


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


def pretrained_tokenizer(path: str) -> Any:
    """The tokenizer of a model's folder, or of a model in the local cache."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise PrerequisiteError("a tokenizer needs transformers", "pip install 'rldbg[train]'") from None
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"no tokenizer at {path!r}: {str(error)[:300]}", "give --tokenizer a model's folder"
        ) from error


class NamedAsHuggingFace:
    """A small tokenizer (encode, decode, pad_id, eos_id) with the attributes that workflows read."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.pad_token_id = int(tokenizer.pad_id)
        self.eos_token_id = int(tokenizer.eos_id)
        self.vocab_size = int(tokenizer.vocabulary_size)

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(self._tokenizer.encode(text))

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return str(self._tokenizer.decode([int(token) for token in tokens]))

    def batch_decode(self, rows: Sequence[Sequence[int]], **_: Any) -> list[str]:
        return [self.decode(row) for row in rows]

    def apply_chat_template(self, messages: Sequence[Any], **_: Any) -> list[int]:
        """The contents one after the other: such a tokenizer has no tokens for roles."""
        return self.encode("".join(str(message["content"]) for message in messages))
