"""Bugs between the sampler and the trainer: tokens, masks, log probs, weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.inference import Sampler
from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug

_FROM_ROLLOUT = ("algorithm.old_log_probs=rollout",)


@bug("rldbg.trainer.rollout.sample_key", stage="trajectory", cause="group-shares-seed")
def group_shares_a_seed(original: Any, seed: int, step: int, sample: Any) -> Any:
    """Every sample of a group is generated with the same random numbers, so a group has one answer many times."""
    return original(seed, step, sample._replace(run_id=0))


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="policy-version")
def weights_not_synced(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The inference engine is given weights once and never again."""
    if policy_version == 0:
        original(sampler, weights, policy_version)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="weights-not-synced")
def weights_not_synced_silently(original: Any, sampler: Sampler, weights: Any, policy_version: int) -> None:
    """The engine says it has the new version, but its tensors are still those it started with."""
    if policy_version == 0:
        original(sampler, weights, policy_version)
    sampler.policy_version = policy_version


@bug(targets.SAMPLE_TOKENS, stage="trajectory", cause="temperature")
def rollout_without_temperature(original: Any, logits: Any, rules: Any, numbers: Any) -> Any:
    """The engine ignores the requested temperature and samples at 1; the trainer divides by the recipe's."""
    return original(logits, [replace(rule, temperature=1.0) for rule in rules], numbers)


@bug(targets.SAMPLE_TOKENS, stage="trajectory", cause="sampling-filter", overrides=_FROM_ROLLOUT)
def rollout_with_top_k(original: Any, logits: Any, rules: Any, numbers: Any) -> Any:
    """The engine keeps its default of the 5 most likely tokens and reports log probs renormalised over them."""
    return original(logits, [replace(rule, top_k=5, logprob_mode="sampled") for rule in rules], numbers)


@bug(targets.FINISH, stage="trajectory", cause="zero-filled", overrides=_FROM_ROLLOUT)
def log_probs_filled_with_zero(original: Any, worker: Any, conversation: Any) -> Any:
    """The engine returns no log prob for the first token of an answer; the missing ones become 0."""
    trajectory = original(worker, conversation)
    first = np.flatnonzero(np.diff(trajectory.loss_mask, prepend=0) == 1)
    logprobs = trajectory.logprobs.copy()
    logprobs[first] = 0.0
    return replace(trajectory, logprobs=logprobs)


@bug(targets.FINISH, stage="trajectory", cause="shift-by-one", overrides=_FROM_ROLLOUT)
def log_probs_shifted_by_one(original: Any, worker: Any, conversation: Any) -> Any:
    """Log probs are stored one position late: each token carries that of its predecessor."""
    trajectory = original(worker, conversation)
    return replace(trajectory, logprobs=np.roll(trajectory.logprobs, 1) * trajectory.loss_mask)


@bug(targets.FINISH, stage="trajectory", cause="precision", overrides=_FROM_ROLLOUT, needs=("float32",))
def log_probs_in_bfloat16(original: Any, worker: Any, conversation: Any) -> Any:
    """The engine's log probs travel as bfloat16."""
    import torch

    trajectory = original(worker, conversation)
    rounded = torch.from_numpy(trajectory.logprobs).to(torch.bfloat16).float().numpy()
    return replace(trajectory, logprobs=rounded)


@bug(targets.FINISH, stage="trajectory", cause="prompt-in-mask")
def prompt_in_the_mask(original: Any, worker: Any, conversation: Any) -> Any:
    """The last two tokens of the prompt are trained on as if the policy had sampled them."""
    trajectory = original(worker, conversation)
    mask = trajectory.loss_mask.copy()
    mask[trajectory.prompt_length - 2 : trajectory.prompt_length] = 1
    return replace(trajectory, loss_mask=mask)


@bug(targets.FINISH, stage="trajectory", cause="environment-in-mask")
def environment_in_the_mask(original: Any, worker: Any, conversation: Any) -> Any:
    """Environment tokens between two answers are trained on."""
    trajectory = original(worker, conversation)
    mask = trajectory.loss_mask.copy()
    mask[trajectory.prompt_length :] = 1
    return replace(trajectory, loss_mask=mask)


@bug(targets.FINISH, stage="trajectory", cause="mask-off-at-end")
def end_token_not_trained(original: Any, worker: Any, conversation: Any) -> Any:
    """The last token of a sample is left out of the mask, so the policy never learns to stop."""
    trajectory = original(worker, conversation)
    mask = trajectory.loss_mask.copy()
    mask[-1] = 0
    return replace(trajectory, loss_mask=mask)


@bug(targets.FINISH, stage="trajectory", cause="retokenised")
def answer_tokenised_again(original: Any, worker: Any, conversation: Any) -> Any:
    """The answer's text is tokenised again for training: a number sampled digit by digit becomes one token."""
    trajectory = original(worker, conversation)
    one, letter = worker._tokenizer.encode("1a")
    digits = set(worker._tokenizer.encode("0123456789"))
    tokens, mask = trajectory.tokens.tolist(), trajectory.loss_mask.tolist()
    for place in reversed(range(len(tokens) - 1)):
        if mask[place] and mask[place + 1] and tokens[place] == one and tokens[place + 1] in digits:
            tokens[place : place + 2] = [letter + tokens[place + 1]]
            del mask[place]
    return replace(
        trajectory,
        tokens=np.asarray(tokens),
        loss_mask=np.asarray(mask),
        logprobs=trajectory.logprobs[: len(tokens)],
        policy_versions=trajectory.policy_versions[: len(tokens)],
    )


@bug("rldbg.inference.batch_sampler.Sampler._cut", stage="trajectory", cause="end-token-lost")
def end_token_stripped(original: Any, sampler: Any, tokens: np.ndarray, logprobs: np.ndarray) -> Any:
    """The engine cuts its stop token off, as engines do by default."""
    generation = original(sampler, tokens, logprobs)
    if not generation.finished or len(generation.tokens) < 2:
        return generation
    return replace(generation, tokens=generation.tokens[:-1], logprobs=generation.logprobs[:-1])


@bug(targets.GENERATE, stage="trajectory", cause="truncated")
def answers_cut_short(original: Any, sampler: Any, requests: Any, *, max_new_tokens: int, temperature: float) -> Any:
    """The engine's own limit on new tokens is lower than the trainer's."""
    return original(sampler, requests, max_new_tokens=max_new_tokens - 1, temperature=temperature)


@bug("rldbg.trainer.rollout._Conversation.__post_init__", stage="trajectory", cause="prompt-changed")
def prompt_begins_twice(original: Any, conversation: Any) -> None:
    """A chat template adds a first token that the tokenizer had added already."""
    conversation.tokens = [conversation.tokens[0], *conversation.tokens]
    original(conversation)


@bug(targets.PUBLISH, stage="trajectory", cause="precision", needs=("float32",))
def weights_published_in_bfloat16(original: Any, rollouts: Any, weights: Any, policy_version: int) -> None:
    """Weights are rounded to bfloat16 on their way to the engine."""
    import torch

    original(rollouts, {name: value.to(torch.bfloat16).float() for name, value in weights.items()}, policy_version)


@bug(targets.SAMPLE_TOKENS, stage="trajectory", cause="sampling-filter", overrides=_FROM_ROLLOUT, late=True)
def rollout_with_top_p(original: Any, logits: Any, rules: Any, numbers: Any) -> Any:
    """The engine samples from the most likely 80 % and reports log probs renormalised over them."""
    return original(logits, [replace(rule, top_p=0.8, logprob_mode="sampled") for rule in rules], numbers)


@bug(targets.SAMPLE_TOKENS, stage="trajectory", cause="greedy", late=True)
def rollout_is_greedy(original: Any, logits: Any, rules: Any, numbers: Any) -> Any:
    """An evaluation setting is left on: the engine takes the most likely token."""
    return original(logits, [replace(rule, temperature=0.0) for rule in rules], numbers)


@bug("rldbg.trainer.rollout.sample_key", stage="trajectory", cause="seed", late=True)
def seed_of_the_worker(original: Any, seed: int, step: int, sample: Any) -> Any:
    """The sampler is seeded by the worker's number on top of the recipe's seed."""
    return original(seed + 1, step, sample)


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause="weights-not-synced", late=True)
def weights_one_step_late(original: Any, sampler: Any, weights: Any, policy_version: int) -> None:
    """The engine is given the weights of the step before, under the new version's number."""
    kept = {name: value.clone() for name, value in weights.items()}
    original(sampler, getattr(sampler, "waiting", kept), policy_version)
    sampler.waiting = kept


@bug(targets.LOAD_WEIGHTS, stage="trajectory", cause=(), late=True)
def one_layer_not_synced(original: Any, sampler: Any, weights: Any, policy_version: int) -> None:
    """One tensor's name does not match and is skipped when weights are loaded."""
    own = sampler._model.state_dict()
    skipped = next(name for name in own if "mlp" in name)
    original(sampler, {**weights, skipped: own[skipped].clone()} if policy_version else weights, policy_version)


@bug(targets.FINISH, stage="trajectory", cause="mask-shifted", late=True)
def mask_one_early(original: Any, worker: Any, conversation: Any) -> Any:
    """The mask is that of the targets, one position before the tokens it is meant for."""
    trajectory = original(worker, conversation)
    return replace(trajectory, loss_mask=np.append(trajectory.loss_mask[1:], 0))


@bug(targets.FINISH, stage="trajectory", cause="mask-off-at-start", late=True)
def first_token_not_trained(original: Any, worker: Any, conversation: Any) -> Any:
    """The first token of the response is left out of the mask."""
    trajectory = original(worker, conversation)
    mask = trajectory.loss_mask.copy()
    mask[trajectory.prompt_length] = 0
    return replace(trajectory, loss_mask=mask)


@bug(targets.FINISH, stage="trajectory", cause="last-answer-only", late=True)
def only_the_last_answer_trained(original: Any, worker: Any, conversation: Any) -> Any:
    """Of a conversation of two turns only the second answer is trained on."""
    trajectory = original(worker, conversation)
    mask = trajectory.loss_mask.copy()
    gaps = np.flatnonzero(mask[trajectory.prompt_length :] == 0)
    if gaps.size:
        mask[: trajectory.prompt_length + gaps[0]] = 0
    return replace(trajectory, loss_mask=mask)


@bug(targets.FINISH, stage="trajectory", cause="scaled", overrides=_FROM_ROLLOUT, late=True)
def log_probs_to_base_ten(original: Any, worker: Any, conversation: Any) -> Any:
    """The engine reports log probs to base 10."""
    trajectory = original(worker, conversation)
    return replace(trajectory, logprobs=(trajectory.logprobs / np.log(10)).astype(np.float32))


@bug(targets.FINISH, stage="trajectory", cause="clipped", overrides=_FROM_ROLLOUT, late=True)
def log_probs_floored(original: Any, worker: Any, conversation: Any) -> Any:
    """Log probs below -1 are reported as -1."""
    trajectory = original(worker, conversation)
    return replace(trajectory, logprobs=np.maximum(trajectory.logprobs, -1.0))


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
