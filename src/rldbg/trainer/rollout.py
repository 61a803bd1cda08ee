"""A rollout worker: takes tasks, generates and scores answers, returns trajectories; or takes them from a recording.

All samples of a call take their turns together, in the order they were given: the batches that reach the inference
server depend on the tasks, never on timing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rldbg.core import IncompleteDataError, SampleId, prompt_hash
from rldbg.inference import Generation, GenerationRequest, sample_key
from rldbg.replay import ReplayRollout, Trajectory
from rldbg.trainer.settings import Recipe, RolloutSettings
from rldbg.trainer.tasks import Problem, feedback, is_right, score
from rldbg.trainer.tokenizer import Tokenizer, load_tokenizer
from rldbg.weights import Fingerprint

Generate = Callable[[list[GenerationRequest]], list[Generation]]


@dataclass(frozen=True, slots=True)
class RolloutTask:
    """One sample to generate."""

    sample: SampleId
    problem: Problem


@dataclass(slots=True)
class _Conversation:
    """A sample while it grows."""

    task: RolloutTask
    tokens: list[int]
    key: int
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    policy_versions: list[int] = field(default_factory=list)
    turns: int = 0
    right: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    routing: tuple[np.ndarray, np.ndarray] | None = None

    def __post_init__(self) -> None:
        self._not_trained(len(self.tokens))

    def hear(self, tokens: list[int]) -> None:
        """Tokens of the environment."""
        self.tokens += tokens
        self._not_trained(len(tokens))

    def say(self, generation: Generation) -> None:
        """Tokens of the model."""
        self.tokens += generation.tokens
        self.loss_mask += [1] * len(generation.tokens)
        self.logprobs += generation.logprobs
        self.policy_versions += [generation.policy_version] * len(generation.tokens)
        self.turns += 1
        if generation.routing is not None:
            self.routing = generation.routing if self.routing is None else _extended(self.routing, generation.routing)

    def _not_trained(self, count: int) -> None:
        self.loss_mask += [0] * count
        self.logprobs += [0.0] * count
        self.policy_versions += [-1] * count


class RolloutWorker:
    """Makes trajectories with whatever `generate` asks: an actor, a server over HTTP, a sampler in this process."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        generate: Generate,
        seed: int,
        max_turns: int,
        temperature: float,
        feedback: str = "no",
        replica: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._generate = generate
        self._seed = seed
        self._max_turns = max_turns
        self._temperature = temperature
        self._feedback = feedback
        self._replica = replica

    def run(self, step: int, tasks: Sequence[RolloutTask]) -> list[Trajectory]:
        conversations = [
            _Conversation(
                task,
                self._tokenizer.encode(task.problem.prompt),
                sample_key(self._seed, step, task.sample),
            )
            for task in tasks
        ]
        waiting = conversations
        for turn in range(self._max_turns):
            if turn:
                for conversation in waiting:
                    conversation.hear(self._tokenizer.encode(feedback(conversation.task.problem, self._feedback)))
            self._take_turn(waiting)
            waiting = [conversation for conversation in waiting if not conversation.right]
        return [self._finish(conversation) for conversation in conversations]

    def _take_turn(self, conversations: list[_Conversation]) -> None:
        requests = [
            GenerationRequest(tuple(item.tokens), item.key, position=sum(item.loss_mask)) for item in conversations
        ]
        for conversation, request, generation in zip(conversations, requests, self._generate(requests), strict=True):
            conversation.say(generation)
            if self._max_turns > 1:
                conversation.asked.append(turn_facts(request.prompt, generation.tokens))
            answer = self._tokenizer.decode(generation.tokens)
            conversation.right = generation.finished and is_right(conversation.task.problem, answer)

    def _finish(self, conversation: _Conversation) -> Trajectory:
        sample = conversation.task.sample
        return Trajectory(
            sample=sample,
            tokens=np.asarray(conversation.tokens, dtype=np.int64),
            loss_mask=np.asarray(conversation.loss_mask, dtype=np.int64),
            reward=score(conversation.turns - 1, conversation.right),
            logprobs=np.asarray(conversation.logprobs, dtype=np.float32),
            policy_versions=np.asarray(conversation.policy_versions, dtype=np.int64),
            routing=conversation.routing,
            extra_fields={
                "group_id": sample.group_id,
                "run_id": sample.run_id,
                "task_id": conversation.task.problem.task_id,
                "score": float(conversation.right),
                "temperature": self._temperature,
                **({} if self._replica is None else {"replica": self._replica}),
                **({"turns": conversation.asked} if conversation.asked else {}),
            },
        )


def _extended(
    known: tuple[np.ndarray, np.ndarray], newer: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """What was chosen when a token was first seen, then what later turns add."""
    experts, weights = (np.concatenate([old, new[len(old) :]]) for old, new in zip(known, newer, strict=True))
    return experts, weights


def turn_facts(prompt: Sequence[int], answer: Sequence[int]) -> dict[str, Any]:
    """What the engine was asked in a turn, so that checks can tell whether the same tokens are trained on."""
    text = np.asarray(prompt, dtype="<i8").tobytes()
    return {"prompt_tokens": len(prompt), "prompt_hash": prompt_hash(text), "tokens": len(answer)}


def make_rollout_worker(recipe: Recipe, generate: Generate, *, replica: int = 0) -> RolloutWorker:
    """Samples say which replica made them where there are several."""
    return RolloutWorker(
        tokenizer=load_tokenizer(recipe.model.path),
        generate=generate,
        seed=recipe.seed,
        max_turns=recipe.data.max_turns,
        temperature=recipe.inference.temperature,
        feedback=recipe.data.feedback,
        replica=replica if recipe.inference.servers > 1 else None,
    )


class ReplayedRollouts:
    """Answers every task from a recording, by (group_id, run_id) and with its prompt unchanged."""

    def __init__(self, settings: RolloutSettings, tokenizer: Tokenizer, *, steps: range) -> None:
        assert settings.replay_from is not None
        self._replay = ReplayRollout(settings.replay_from, format=settings.replay_format)
        self._tokenizer = tokenizer
        self._partial = settings.allow_partial
        missing = [step for step in steps if step not in self._replay.steps]
        if missing and not self._partial:
            raise IncompleteDataError(
                f"{self._replay.path} has no trajectories of step {missing[0]}; {len(steps)} steps are requested",
                f"train with --steps {missing[0] or 1}, or replay a recording that has them all",
            )

    def collect(self, step: int, tasks: Sequence[RolloutTask]) -> list[Trajectory]:
        """Trajectories in the order of the tasks; with `--allow-partial`, without those that were not recorded."""
        if self._partial:
            tasks = [task for task in tasks if self._replay.has(task.sample, step=step)]
            if not tasks:
                raise IncompleteDataError(
                    f"{self._replay.path} has none of the samples of step {step}",
                    "replay with the data and seed of the recorded run",
                )
        return [
            self._replay.get(task.sample, step=step, prompt=self._tokenizer.encode(task.problem.prompt))
            for task in tasks
        ]

    def publish(self, weights: Any, policy_version: int) -> None:
        """Nothing generates, so nothing needs weights."""

    def held_weights(self) -> list[list[Fingerprint]]:
        return []

    def close(self) -> None:
        """Nothing is held."""
