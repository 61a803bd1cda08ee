"""The four shapes of workflow behind one interface: call the user's code, then turn what it returned into rows."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rldbg.core import UsageError
from rldbg.inference.workflows.completions import Completion, Trained
from rldbg.inference.workflows.episode import Episode
from rldbg.inference.workflows.recording_proxy import RecordingProxy
from rldbg.inference.workflows.results import BadResult, number, rows_of_completions, rows_of_tensors
from rldbg.inference.workflows.settings import GenerationSettings


class Adapter(ABC):
    """`call` gives the user's result, or an awaitable of it when `is_blocking` is false; None rejects the episode."""

    is_blocking: bool = False

    @abstractmethod
    def call(self, episode: Episode) -> Any: ...

    @abstractmethod
    def rows(self, episode: Episode, result: Any) -> list[Trained]: ...

    def close(self, episode: Episode) -> None:  # noqa: B027 - most shapes hold nothing for an episode
        """When the episode has come to its end, whatever that was."""


class ArealAdapter(Adapter):
    """`arun_episode(engine, data)`: tensors, or completions by id that give tensors."""

    def __init__(self, workflow: Any) -> None:
        self._workflow = workflow

    def call(self, episode: Episode) -> Any:
        engine = EpisodeEngine(episode, getattr(self._workflow, "tokenizer", None))
        return self._workflow.arun_episode(engine, dict(episode.row.data))

    def rows(self, episode: Episode, result: Any) -> list[Trained]:
        if isinstance(result, Mapping) and result and all(hasattr(v, "to_tensor_dict") for v in result.values()):
            return [row for item in result.values() for row in rows_of_tensors(item.to_tensor_dict())]
        return rows_of_tensors(result)


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """An answer under the names that AReaL's workflows read."""

    input_tokens: list[int]
    output_tokens: list[int]
    output_logprobs: list[float]
    output_versions: list[int]
    stop_reason: str
    latency: float
    text: str
    tokenizer: Any = None
    ttft: float = float("inf")
    itl: list[float] = field(default_factory=list)

    @property
    def input_len(self) -> int:
        return len(self.input_tokens)

    @property
    def output_len(self) -> int:
        return len(self.output_tokens)

    @property
    def output_tokens_without_stop(self) -> list[int]:
        """The output without the end and pad tokens at its end."""
        ends = {getattr(self.tokenizer, name, None) for name in ("eos_token_id", "pad_token_id")}
        tokens = list(self.output_tokens)
        while tokens and tokens[-1] in ends and self.stop_reason not in ("length", "abort"):
            tokens.pop()
        return tokens


class EpisodeEngine:
    """What `arun_episode` gets as its engine: AReaL's `agenerate` and `get_version`."""

    def __init__(self, episode: Episode, tokenizer: Any = None) -> None:
        self._episode = episode
        self._tokenizer = tokenizer

    async def agenerate(self, request: Any = None, **named: Any) -> ModelResponse:
        """The request is AReaL's ModelRequest, any object or mapping with its names, token ids, or keywords."""
        asked = request if request is not None else named
        if isinstance(asked, str | list | tuple) or hasattr(asked, "tolist"):
            asked = {"input_ids": asked, **named}
        read = asked.get if isinstance(asked, Mapping) else lambda name, default=None: getattr(asked, name, default)
        prompt = read("input_ids")
        if prompt is None:
            raise UsageError("the request has no input_ids", "agenerate takes a request with input_ids and gconfig")
        settings = GenerationSettings.from_object(read("gconfig"), self._episode.settings)
        answer = await self._episode.generate(prompt, settings, rid=str(read("rid", "") or ""))
        return _response(answer, read("tokenizer") or self._tokenizer)

    def get_version(self) -> int:
        """The version of the weights that answered last."""
        return max((version for answer in self._episode.answers for version in answer.versions), default=0)


def _response(answer: Completion, tokenizer: Any) -> ModelResponse:
    return ModelResponse(
        input_tokens=list(answer.prompt_tokens),
        output_tokens=list(answer.tokens),
        output_logprobs=list(answer.logprobs),
        output_versions=list(answer.versions),
        stop_reason=answer.finish_reason,
        latency=answer.latency_s,
        text=answer.text,
        tokenizer=tokenizer,
    )


class AgentAdapter(Adapter):
    """`run(data, base_url=..., api_key=..., http_client=...)`: a reward, or rewards by completion id."""

    def __init__(self, run: Callable[..., Any], proxy: RecordingProxy) -> None:
        self._run = run
        self._proxy = proxy
        self.is_blocking = not inspect.iscoroutinefunction(run)
        if not accepted(run, {"base_url": ""}):
            raise UsageError(
                f"{getattr(run, '__qualname__', 'run')} takes no base_url, so it cannot reach the servers",
                "write `async def run(self, data, base_url, **kwargs)` and give base_url to the OpenAI client",
            )

    def call(self, episode: Episode) -> Any:
        given = accepted(self._run, {"base_url": self._proxy.open(episode), "api_key": "rldbg", "http_client": None})
        if "http_client" in given and not self.is_blocking:
            given["http_client"] = self._proxy.http_client(episode)
        return self._run(dict(episode.row.data), **given)

    def rows(self, episode: Episode, result: Any) -> list[Trained]:
        if not isinstance(result, Mapping):
            return episode.rows(number(result))
        rewards = {str(id): number(value) for id, value in result.items()}
        unknown = sorted(set(rewards) - {answer.id for answer in episode.answers})
        if unknown:
            raise BadResult(
                f"there is a reward for {unknown[0]!r}, which is not a completion of this episode",
                "return one number, or numbers by the `id` of completions",
            )
        return episode.rows(rewards)

    def close(self, episode: Episode) -> None:
        self._proxy.close(episode)


def accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """The offered arguments that the function accepts."""
    parameters = inspect.signature(function).parameters.values()
    if any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters):
        return dict(offered)
    return {item.name: offered[item.name] for item in parameters if item.name in offered}


class FunctionAdapter(Adapter):
    """`(prompt, generate) -> trajectory`, or a reward; plain or async."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.is_blocking = not inspect.iscoroutinefunction(function)
        self._wants_data = "data" in inspect.signature(function).parameters

    def call(self, episode: Episode) -> Any:
        extra = {"data": dict(episode.row.data)} if self._wants_data else {}

        def generate(prompt: Any, **sampling: Any) -> Any:
            """A completion, or an awaitable of it; a request runs on the network thread while a blocking one waits."""
            work = episode.generate(prompt, changed(episode.settings, sampling))
            return episode.servers.network.wait(work) if self.is_blocking else work

        return self._function(episode.row.prompt, generate, **extra)

    def rows(self, episode: Episode, result: Any) -> list[Trained]:
        if isinstance(result, list) and result and all(isinstance(item, Mapping) for item in result):
            return [row for item in result for row in self.rows(episode, item)]
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Completion):
            return episode.rows(number(result[1]))
        if not isinstance(result, Mapping):
            return episode.rows(number(result, "result"))
        if "completion_ids" in result:
            return rows_of_completions(
                [result.get("prompt_ids", ())],
                [result["completion_ids"]],
                rewards=[number(result.get("reward", result.get("rewards")))],
                logprobs=[result["logprobs"]] if "logprobs" in result else None,
            )
        if set(result) & {"tokens", "input_ids"}:
            return rows_of_tensors(result)
        if not set(result) & {"reward", "rewards"}:
            has = f"only {', '.join(map(str, result))}" if result else "it is empty"
            raise BadResult(f"the result has no reward: {has}", "return a number, or a dict with reward")
        return episode.rows(number(result.get("reward", result.get("rewards"))))


def changed(settings: GenerationSettings, sampling: Mapping[str, Any]) -> GenerationSettings:
    """Settings with some of them replaced; `max_tokens` is another name of `max_new_tokens`."""
    named = {("max_new_tokens" if name == "max_tokens" else name): value for name, value in sampling.items()}
    unknown = sorted(set(named) - set(GenerationSettings.__slots__))
    if unknown:
        known = ", ".join(GenerationSettings.__slots__)
        raise UsageError(f"generate has no option {unknown[0]!r}", f"options: {known}")
    return GenerationSettings.from_object(named, settings)
