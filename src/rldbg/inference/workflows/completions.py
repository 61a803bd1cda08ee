"""One request to a model and its answer, and how the exchanges of an episode become rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Completion:
    """What a server answered: the tokens of the prompt, and each token that was drawn with its log prob and version."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    text: str
    finish_reason: str
    id: str = ""
    latency_s: float = 0.0

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Trained:
    """One row of a batch: a sequence of tokens, which of them are trained on, and its reward."""

    tokens: np.ndarray  # int32 [t]
    loss_mask: np.ndarray  # int32 [t]
    logprobs: np.ndarray  # float32 [t], 0 where the policy did not choose the token
    versions: np.ndarray  # int32 [t], -1 there
    reward: float
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class _Conversation:
    """A row while it grows."""

    tokens: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    versions: list[int]
    ids: list[str]

    @classmethod
    def empty(cls) -> _Conversation:
        return cls([], [], [], [], [])

    def continues_in(self, answer: Completion) -> bool:
        return list(answer.prompt_tokens[: len(self.tokens)]) == self.tokens

    def add(self, answer: Completion) -> None:
        """The rest of the prompt, which the policy did not choose, then what it did."""
        heard = answer.prompt_tokens[len(self.tokens) :]
        self.tokens += [*heard, *answer.tokens]
        self.loss_mask += [0] * len(heard) + [1] * len(answer.tokens)
        self.logprobs += [0.0] * len(heard) + list(answer.logprobs)
        self.versions += [-1] * len(heard) + list(answer.versions)
        self.ids.append(answer.id)

    def with_reward(self, reward: float) -> Trained:
        return Trained(
            np.asarray(self.tokens, np.int32),
            np.asarray(self.loss_mask, np.int32),
            np.asarray(self.logprobs, np.float32),
            np.asarray(self.versions, np.int32),
            reward,
        )


def rows_of_answers(answers: Sequence[Completion], reward: float | Mapping[str, float]) -> list[Trained]:
    """Rows in the order of their first request.

    An answer whose prompt begins with all the tokens of an earlier row continues that row. With rewards by
    completion id, a row has the reward of its last completion that has one, and rows without any are left out.
    """
    conversations: list[_Conversation] = []
    for answer in answers:
        earlier = [item for item in conversations if item.continues_in(answer)]
        if earlier:
            longest = max(earlier, key=lambda item: len(item.tokens))
        else:
            longest = _Conversation.empty()
            conversations.append(longest)
        longest.add(answer)
    if not isinstance(reward, Mapping):
        return [item.with_reward(float(reward)) for item in conversations]
    rows = []
    for item in conversations:
        rewarded = [id for id in item.ids if id in reward]
        if rewarded:
            rows.append(item.with_reward(float(reward[rewarded[-1]])))
    return rows
