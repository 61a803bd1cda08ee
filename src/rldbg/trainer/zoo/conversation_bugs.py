"""Bugs in the history of a conversation: what the engine sees in a later turn is not what is trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rldbg.trainer.zoo.bug import Bug, bug

_TURN = "rldbg.trainer.rollout.RolloutWorker._take_turn"
_TURNS = ("data.max_turns=3",)


def _asked_with(original: Any, worker: Any, conversations: Any, rewrite: Callable[[Any], list[int]]) -> None:
    """A turn in which the engine is shown other tokens than those that are kept for training."""
    kept = [list(item.tokens) for item in conversations]
    for conversation in conversations:
        if conversation.turns:
            conversation.tokens = rewrite(conversation)
    shown = [len(item.tokens) for item in conversations]
    original(worker, conversations)
    for conversation, before, length in zip(conversations, kept, shown, strict=True):
        conversation.tokens = before + conversation.tokens[length:]


def _spans(conversation: Any) -> list[tuple[int, int]]:
    """Where the answers so far begin and end."""
    mask = [0, *conversation.loss_mask, 0]
    edges = [place for place in range(1, len(mask)) if bool(mask[place]) != bool(mask[place - 1])]
    return list(zip([edge - 1 for edge in edges[::2]], [edge - 1 for edge in edges[1::2]], strict=True))


@bug(_TURN, stage="trajectory", cause="history-rewritten", late=True)
def thinking_dropped_from_history(original: Any, worker: Any, conversations: Any) -> None:
    """The template drops earlier answers from the history, so the engine continues without them."""

    def rewrite(conversation: Any) -> list[int]:
        start, end = _spans(conversation)[-1]
        return [*conversation.tokens[:start], *conversation.tokens[end:]]

    _asked_with(original, worker, conversations, rewrite)


@bug(_TURN, stage="trajectory", cause="history-rewritten", overrides=_TURNS, late=True)
def retokenised_at_turn_three(original: Any, worker: Any, conversations: Any) -> None:
    """In the third turn the engine gets the history as text, which is tokenised again with one token merged."""

    def rewrite(conversation: Any) -> list[int]:
        if conversation.turns < 2:
            return list(conversation.tokens)
        start, _ = _spans(conversation)[0]
        return [*conversation.tokens[:start], *conversation.tokens[start + 1 :]]

    _asked_with(original, worker, conversations, rewrite)


@bug(_TURN, stage="trajectory", cause="history-rewritten", late=True)
def first_token_doubled_in_later_turns(original: Any, worker: Any, conversations: Any) -> None:
    """The rendered history begins with a special token, and encoding adds it once more."""
    _asked_with(original, worker, conversations, lambda item: [item.tokens[0], *item.tokens])


@bug(_TURN, stage="trajectory", cause="history-rewritten", late=True)
def answer_normalised_in_history(original: Any, worker: Any, conversations: Any) -> None:
    """A parser writes the last answer back into the history in reversed order."""

    def rewrite(conversation: Any) -> list[int]:
        start, end = _spans(conversation)[-1]
        tokens = list(conversation.tokens)
        tokens[start:end] = tokens[start:end][::-1]
        return tokens

    _asked_with(original, worker, conversations, rewrite)


@bug(_TURN, stage="trajectory", cause="history-rewritten", late=True)
def feedback_shown_twice(original: Any, worker: Any, conversations: Any) -> None:
    """The environment's reply is part of the history and is appended to it once more."""

    def rewrite(conversation: Any) -> list[int]:
        _, end = _spans(conversation)[-1]
        return [*conversation.tokens, *conversation.tokens[end:]]

    _asked_with(original, worker, conversations, rewrite)


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
