"""Bugs of conversations: answers of several turns with the text of a tool between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug

TURNS = ("data.max_turns=3", "data.feedback=tool", "inference.max_new_tokens=4")
_FROM_ROLLOUT = (*TURNS, "algorithm.old_log_probs=rollout")


def answers(loss_mask: np.ndarray) -> list[slice]:
    """The runs of trained tokens, one per turn."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], loss_mask != 0, [0]]).astype(int)))
    return [slice(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _with_log_probs(trajectory: Any, change: Any) -> Any:
    """The log probs of every answer after the first, changed."""
    logprobs = trajectory.logprobs.copy()
    for part in answers(trajectory.loss_mask)[1:]:
        logprobs[part] = change(logprobs[part])
    return replace(trajectory, logprobs=logprobs)


@bug(targets.FINISH, stage="trajectory", cause="shift-by-one", overrides=_FROM_ROLLOUT, late=True)
def later_turns_shifted(original: Any, worker: Any, conversation: Any) -> Any:
    """From the second turn on, log probs are stored one token late."""
    return _with_log_probs(original(worker, conversation), lambda part: np.concatenate([part[:1], part[:-1]]))


@bug(targets.FINISH, stage="trajectory", cause="zero-filled", overrides=_FROM_ROLLOUT, late=True)
def later_turns_without_log_probs(original: Any, worker: Any, conversation: Any) -> Any:
    """The engine returns log probs for the first turn only; the missing ones become 0."""
    return _with_log_probs(original(worker, conversation), np.zeros_like)


@bug(targets.FINISH, stage="trajectory", cause="scaled", overrides=_FROM_ROLLOUT, late=True)
def later_turns_to_base_two(original: Any, worker: Any, conversation: Any) -> Any:
    """Answers after a tool call come from an endpoint that reports log probs to base 2."""
    return _with_log_probs(original(worker, conversation), lambda part: (part / np.log(2)).astype(np.float32))


@bug(targets.FINISH, stage="trajectory", cause="turn-not-trained", overrides=TURNS, late=True)
def only_the_first_answer_trained(original: Any, worker: Any, conversation: Any) -> Any:
    """Answers after the first one are not trained on."""
    trajectory = original(worker, conversation)
    mask = trajectory.loss_mask.copy()
    for part in answers(trajectory.loss_mask)[1:]:
        mask[part] = 0
    return replace(trajectory, loss_mask=mask)


@bug(targets.FINISH, stage="trajectory", cause="turn-not-trained", overrides=TURNS, late=True)
def second_answer_not_trained(original: Any, worker: Any, conversation: Any) -> Any:
    """The answer that follows the first tool call is not trained on."""
    trajectory = original(worker, conversation)
    mask = trajectory.loss_mask.copy()
    for part in answers(trajectory.loss_mask)[1:2]:
        mask[part] = 0
    return replace(trajectory, loss_mask=mask)


@bug(targets.FINISH, stage="trajectory", cause="environment-in-mask", overrides=TURNS, late=True)
def first_tool_text_trained(original: Any, worker: Any, conversation: Any) -> Any:
    """The text of the first tool call is trained on."""
    trajectory = original(worker, conversation)
    mask, parts = trajectory.loss_mask.copy(), answers(trajectory.loss_mask)
    if len(parts) > 1:
        mask[parts[0].stop : parts[1].start] = 1
    return replace(trajectory, loss_mask=mask)


@bug(targets.FINISH, stage="trajectory", cause="environment-in-mask", overrides=TURNS, late=True)
def last_token_of_tool_text_trained(original: Any, worker: Any, conversation: Any) -> Any:
    """Each answer's mask starts one token early, at the end of the tool's text."""
    trajectory = original(worker, conversation)
    mask = trajectory.loss_mask.copy()
    for part in answers(trajectory.loss_mask)[1:]:
        mask[part.start - 1] = 1
    return replace(trajectory, loss_mask=mask)


@bug(targets.FINISH, stage="trajectory", cause="mask-off-at-end", overrides=TURNS, late=True)
def end_of_inner_answers_not_trained(original: Any, worker: Any, conversation: Any) -> Any:
    """The last token of every answer but the last is left out of the mask."""
    trajectory = original(worker, conversation)
    mask = trajectory.loss_mask.copy()
    for part in answers(trajectory.loss_mask)[:-1]:
        mask[part.stop - 1] = 0
    return replace(trajectory, loss_mask=mask)


@bug(targets.FINISH, stage="trajectory", cause="mask-off-at-start", overrides=TURNS, late=True)
def start_of_later_answers_not_trained(original: Any, worker: Any, conversation: Any) -> Any:
    """The first token of every answer after the first is left out of the mask."""
    trajectory = original(worker, conversation)
    mask = trajectory.loss_mask.copy()
    for part in answers(trajectory.loss_mask)[1:]:
        mask[part.start] = 0
    return replace(trajectory, loss_mask=mask)


@bug(targets.FINISH, stage="trajectory", cause="retokenised", overrides=TURNS, late=True)
def later_answers_tokenised_again(original: Any, worker: Any, conversation: Any) -> Any:
    """The text of later answers is tokenised again, and a digit becomes a different token from the one sampled."""
    trajectory = original(worker, conversation)
    tokens = trajectory.tokens.copy()
    digits, letter = worker._tokenizer.encode("0123456789"), worker._tokenizer.encode("a")[0]
    for part in answers(trajectory.loss_mask)[1:]:
        tokens[part] = [letter + item - digits[0] if item in digits else item for item in tokens[part]]
    return replace(trajectory, tokens=tokens)


@bug(targets.FINISH, stage="trajectory", cause="environment-changed", overrides=TURNS, late=True)
def tool_text_rendered_differently(original: Any, worker: Any, conversation: Any) -> Any:
    """The chat template of the trainer renders the tool's text with different spaces from those the policy saw."""
    trajectory = original(worker, conversation)
    space, dot = worker._tokenizer.encode(" .")
    tokens = trajectory.tokens.copy()
    inside = np.flatnonzero((trajectory.loss_mask == 0) & (tokens == space))
    tokens[inside[inside >= trajectory.prompt_length]] = dot
    return replace(trajectory, tokens=tokens)


@bug(targets.FINISH, stage="trajectory", cause="environment-changed", overrides=TURNS, late=True)
def tool_text_dropped(original: Any, worker: Any, conversation: Any) -> Any:
    """Training sees the answers of a conversation without the tool's text between them."""
    trajectory = original(worker, conversation)
    kept = (trajectory.loss_mask != 0) | (np.arange(len(trajectory.tokens)) < trajectory.prompt_length)
    names = ("tokens", "loss_mask", "logprobs", "policy_versions")
    return replace(trajectory, **{name: getattr(trajectory, name)[kept] for name in names})


@bug(
    "rldbg.trainer.rollout.RolloutWorker._take_turn",
    stage="trajectory",
    cause="temperature",
    overrides=TURNS,
    late=True,
)
def later_turns_without_temperature(original: Any, worker: Any, conversations: Any) -> None:
    """Only the first request of a conversation carries the temperature."""
    from rldbg.trainer.zoo.bug import replaced

    def at_one(sample: Any, logits: Any, rules: Any, numbers: Any) -> Any:
        return sample(logits, [replace(rule, temperature=1.0) for rule in rules], numbers)

    if conversations and conversations[0].turns:
        with replaced(targets.SAMPLE_TOKENS, at_one):
            original(worker, conversations)
    else:
        original(worker, conversations)


@bug("rldbg.trainer.rollout.score", stage="reward", cause="reward-by-turn", overrides=TURNS, late=True)
def reward_forgets_the_turn(original: Any, _turn: int, right: bool) -> float:
    """A right answer is worth the same after any number of tries."""
    return float(original(0, right))


@bug("rldbg.trainer.rollout.GenerationRequest", stage="trajectory", cause="seed", overrides=TURNS, late=True)
def random_numbers_start_again(original: Any, prompt: Any, key: int, position: int = 0) -> Any:
    """Every turn uses the same random numbers again."""
    return original(prompt, key, position=0)


@bug(targets.MICRO_BATCHES, stage="advantage", cause="last-turn-only", overrides=TURNS, late=True)
def advantage_on_the_last_answer(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """The outcome's advantage is given to the last answer only; earlier ones get 0."""
    for micro in original(*arguments, **options):
        kept = micro.advantages.clone()
        for row, mask in enumerate(micro.batch.response_mask.cpu().numpy()):
            for part in answers(mask)[:-1]:
                kept[row, part] = 0
        yield replace(micro, advantages=kept)


@bug(targets.MICRO_BATCHES, stage="advantage", cause="discount-by-turn", overrides=TURNS, late=True)
def advantage_discounted_by_turn(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """Each turn before the last one gets 0.8 of the advantage of the next."""
    for micro in original(*arguments, **options):
        kept = micro.advantages.clone()
        for row, mask in enumerate(micro.batch.response_mask.cpu().numpy()):
            for back, part in enumerate(reversed(answers(mask))):
                kept[row, part] *= 0.8**back
        yield replace(micro, advantages=kept)


@bug(targets.MICRO_BATCHES, stage="old_log_probs", cause="positions", overrides=TURNS, late=True)
def positions_restart_at_tool_text(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """Position ids skip the tool's text, which was counted separately."""
    for micro in original(*arguments, **options):
        positions, width = micro.batch.position_ids.clone(), micro.batch.response_width
        skipped = ((micro.batch.response_mask == 0).cumsum(1)).clamp(min=0)
        positions[:, -width:] = (positions[:, -width:] - skipped).clamp(min=0)
        yield replace(micro, batch=replace(micro.batch, position_ids=positions))


@bug(targets.MICRO_BATCHES, stage="old_log_probs", cause="tokens-not-attended", overrides=TURNS, late=True)
def tool_text_not_attended(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """The attention mask of the response is its loss mask: the trainer does not see the tool's text."""
    for micro in original(*arguments, **options):
        attended, width = micro.batch.attention_mask.clone(), micro.batch.response_width
        attended[:, -width:] *= micro.batch.response_mask != 0
        yield replace(micro, batch=replace(micro.batch, attention_mask=attended))


@bug("rldbg.trainer.in_process.make_rollout_worker", stage="trajectory", cause="turns-cut", overrides=TURNS, late=True)
def one_turn_fewer(original: Any, recipe: Any, generate: Any, **options: Any) -> Any:
    """The limit on turns counts the first question as one."""
    data = replace(recipe.data, max_turns=recipe.data.max_turns - 1)
    return original(replace(recipe, data=data), generate, **options)


@bug(targets.OLD, stage="old_log_probs", cause="shift-by-one", overrides=TURNS, late=True)
def old_log_probs_of_later_turns_shifted(original: Any, worker: Any, micro: Any) -> Any:
    """Old log probs of answers after the first are one token late."""
    rows = original(worker, micro)
    for row, mask in zip(rows, micro.batch.response_mask.cpu().numpy(), strict=True):
        for part in answers(mask[: len(row)])[1:]:
            row[part] = np.concatenate([row[part][:1], row[part][:-1]])
    return rows


@bug(targets.TRAIN_MICRO, stage="forward", cause="mask-lost", overrides=TURNS, late=True)
def loss_of_later_turns_left_out(original: Any, model: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The trainer's mask ends with the first answer."""
    for row, mask in enumerate(micro.batch.response_mask.cpu().numpy()):
        for part in answers(mask)[1:]:
            micro.batch.response_mask[row, part] = 0
    return original(model, micro, *arguments, **options)


@bug(targets.TRAIN_MICRO, stage="forward", cause="untrained-in-mask", overrides=TURNS, late=True)
def tool_text_in_the_loss(original: Any, model: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The trainer's mask covers everything from the first answer to the last, tool text included."""
    for row, mask in enumerate(micro.batch.response_mask.cpu().numpy()):
        parts = answers(mask)
        if parts:
            micro.batch.response_mask[row, : parts[-1].stop] = 1
    return original(model, micro, *arguments, **options)


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
