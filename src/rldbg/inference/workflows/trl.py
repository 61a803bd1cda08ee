"""TRL's `rollout_func(prompts, trainer)` without a trainer: a stub that has what such functions use."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rldbg.inference.workflows.adapters import Adapter, accepted, changed
from rldbg.inference.workflows.completions import Completion, Trained
from rldbg.inference.workflows.episode import Episode
from rldbg.inference.workflows.results import BadResult, number, rows_of_completions
from rldbg.inference.workflows.settings import GenerationSettings

_REWARDS = ("reward", "rewards", "env_reward", "env_rewards")
_MASKS = ("env_mask", "completion_mask", "tool_mask")
_OWN = ("prompt_ids", "completion_ids", "logprobs", "logprob_token_ids")
_EXPECTED = "return prompt_ids, completion_ids and logprobs, one list per prompt"


class TrlAdapter(Adapter):
    """Called once per row, with its prompt `n` times, as the trainer does; every completion is one row of the batch."""

    is_blocking = True

    def __init__(
        self, function: Callable[..., Any], *, n: int, reward: Callable[..., Any] | None, tokenizer: Any
    ) -> None:
        self._function = function
        self._n = n
        self._reward = reward
        self._tokenizer = tokenizer

    def call(self, episode: Episode) -> Any:
        prompts = [episode.row.prompt] * self._n
        trainer = TrainerStub(episode, tokenizer=self._tokenizer, n=self._n)
        names = list(inspect.signature(self._function).parameters)
        if len(names) >= 3 and names[1] == "args":
            result = self._function(prompts, trainer.args, trainer.processing_class)
        else:
            result = self._function(prompts, trainer)
        if isinstance(result, Mapping) and self._reward is not None:
            with episode.timeline.span("reward", getattr(self._reward, "__name__", "reward")):
                result = {**result, "reward": self._rewards(episode, prompts, result)}
        return result

    def rows(self, episode: Episode, result: Any) -> list[Trained]:
        if not isinstance(result, Mapping) or "completion_ids" not in result or "prompt_ids" not in result:
            raise BadResult(f"rollout_func returned {result!r:.200}", _EXPECTED)
        for name, values in result.items():
            if name in ("prompt_ids", "completion_ids", "logprobs", *_REWARDS, *_MASKS) and len(values) != self._n:
                raise BadResult(f"rollout_func returned {len(values)} {name} for {self._n} prompts", _EXPECTED)
        rewards = next((result[name] for name in _REWARDS if name in result), None)
        return rows_of_completions(
            result["prompt_ids"],
            result["completion_ids"],
            rewards=[float("nan")] * self._n if rewards is None else [number(value) for value in rewards],
            logprobs=result.get("logprobs"),
            masks=next((result[name] for name in _MASKS if name in result), None),
            version=max((version for answer in episode.answers for version in answer.versions), default=0),
        )

    def _rewards(self, episode: Episode, prompts: Sequence[Any], result: Mapping[str, Any]) -> Any:
        """TRL's reward functions take lists, and every column of the data as a list."""
        assert self._reward is not None
        ids = result.get("completion_ids", ())
        texts = {answer.tokens: answer.text for answer in episode.answers}
        decode = self._tokenizer.decode if self._tokenizer is not None else lambda tokens: texts.get(tuple(tokens), "")
        columns = {name: [value] * self._n for name, value in episode.row.data.items() if name != "prompt"}
        extra = {name: value for name, value in result.items() if name not in _OWN}
        completions = [decode(list(tokens)) for tokens in ids]
        offered = {**columns, **extra, "prompts": prompts, "completions": completions, "completion_ids": ids}
        return self._reward(**accepted(self._reward, offered))


class TrainerStub:
    """What rollout functions read of a trainer: how to sample, and how to generate. It has no model, no optimizer."""

    def __init__(self, episode: Episode, *, tokenizer: Any, n: int) -> None:
        settings = episode.settings
        self.processing_class = tokenizer
        self.vllm_client = ClientStub(episode)
        self.vllm_generation = GenerationStub(self.vllm_client)
        self.num_generations = n
        self.max_completion_length = settings.max_new_tokens
        self.temperature, self.top_p, self.top_k = settings.temperature, settings.top_p, settings.top_k
        self.accelerator = SimpleNamespace(process_index=0, num_processes=1, is_main_process=True, device="cpu")
        self.state = SimpleNamespace(global_step=0, epoch=0.0)
        self.args = SimpleNamespace(
            num_generations=n,
            max_completion_length=settings.max_new_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            vllm_mode="server",
            vllm_server_base_url=episode.servers.addresses[0],
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this trainer is a stub for rollouts and has no {name!r}; it has {', '.join(vars(self))}")


class ClientStub:
    """TRL's client of `trl vllm-serve`: the same calls and results, answered by the servers of this rollout."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    def generate(self, prompts: Sequence[Any], n: int = 1, **sampling: Any) -> dict[str, list[Any]]:
        return self._answered([prompt for prompt in prompts for _ in range(n)], sampling)

    def chat(self, messages: Sequence[Any], n: int = 1, **sampling: Any) -> dict[str, list[Any]]:
        return self._answered([conversation for conversation in messages for _ in range(n)], sampling)

    def _answered(self, prompts: Sequence[Any], sampling: Mapping[str, Any]) -> dict[str, list[Any]]:
        known = {"max_tokens", *GenerationSettings.__slots__}
        settings = changed(self._episode.settings, {k: v for k, v in sampling.items() if k in known and v is not None})
        answers = self._episode.servers.network.wait(self._all(prompts, settings))
        return {
            "prompt_ids": [list(answer.prompt_tokens) for answer in answers],
            "completion_ids": [list(answer.tokens) for answer in answers],
            "logprobs": [[[value] for value in answer.logprobs] for answer in answers],
            "logprob_token_ids": [[[token] for token in answer.tokens] for answer in answers],
        }

    async def _all(self, prompts: Sequence[Any], settings: GenerationSettings) -> list[Completion]:
        return list(await asyncio.gather(*(self._episode.generate(prompt, settings) for prompt in prompts)))


class GenerationStub:
    """`trainer.vllm_generation`: tokens in, one completion for each prompt of the batch, as a tuple."""

    def __init__(self, client: ClientStub) -> None:
        self.vllm_client = client

    def sync_weights(self) -> None:
        """Does nothing: the servers keep their weights."""

    def generate(self, prompts: Sequence[Any], *_: Any, **__: Any) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """The prompts of a batch are repeated already, so the number of generations changes nothing."""
        answer = self.vllm_client.generate(prompts)
        return answer["prompt_ids"], answer["completion_ids"], answer["logprobs"], answer["logprob_token_ids"]
