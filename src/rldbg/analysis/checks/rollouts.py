"""Checks on the rollout's output: masks, groups, lengths, freshness."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from rldbg.analysis.checks.base import Check, NotApplicable, StepView, Violation
from rldbg.core import Severity

_MANY = 8


def _masks_non_empty(view: StepView) -> Iterable[Violation]:
    if not view.samples:
        raise NotApplicable("no trajectories with token ids")
    for sample in view.samples.values():
        if not np.any(sample.loss_mask) and not view.is_left_out(sample.sample):
            yield Violation(
                f"step {view.step} sample {sample.sample}", (f"none of its {len(sample.tokens)} tokens is trained on",)
            )


def _groups_informative(view: StepView) -> Iterable[Violation]:
    groups: dict[str, list[float]] = defaultdict(list)
    for sample, reward in view.rewards.items():
        if not view.is_earlier(sample):
            groups[sample.group_id].append(reward)
    real = {name: rewards for name, rewards in groups.items() if len(rewards) > 1}
    if not real:
        raise NotApplicable("no groups of more than one sample")
    if view.has_token_advantages:
        raise NotApplicable("advantages differ from token to token: groups do not make them")
    flat = [name for name, rewards in real.items() if len(set(rewards)) == 1]
    if len(flat) == len(real):
        yield Violation(
            f"step {view.step}", (f"in all {len(real)} groups the rewards are equal, for example {flat[0]}",)
        )


def _rewards_finite(view: StepView) -> Iterable[Violation]:
    if not view.rewards:
        raise NotApplicable("no rewards")
    for sample, reward in view.rewards.items():
        if not np.isfinite(reward) and not view.is_left_out(sample):
            yield Violation(f"step {view.step} sample {sample}", (f"reward is {reward}",))


def _prompts_of_groups_agree(view: StepView) -> Iterable[Violation]:
    first: dict[str, tuple[str, bytes]] = {}
    if not view.samples:
        raise NotApplicable("no trajectories with token ids")
    for sample in view.samples.values():
        if view.sequences_of_rollout(sample.sample) > 1:
            continue
        prompt = np.asarray(sample.tokens[: sample.prompt_length], dtype="<i8").tobytes()
        known = first.setdefault(sample.sample.group_id, (str(sample.sample), prompt))
        if known[1] != prompt:
            yield Violation(
                f"step {view.step} sample {sample.sample}", (f"its prompt differs from that of {known[0]}",)
            )


def _versions_fresh(view: StepView) -> Iterable[Violation]:
    if not view.versions:
        raise NotApplicable("no policy versions")
    stale = [(made, str(sample), current) for sample, (made, current) in view.versions.items() if made < current]
    if stale:
        version, sample_name, current = min(stale)
        text = f"{len(stale)} samples come from older weights: version {version} at worst, the policy is {current}"
        yield Violation(f"step {view.step} sample {sample_name}", (text,))


def _few_duplicates(view: StepView) -> Iterable[Violation]:
    """Equal responses within a group are normal for short answers; a whole group of long equal ones is not."""
    groups: dict[str, list[bytes]] = defaultdict(list)
    lengths: dict[str, int] = {}
    for sample in view.samples.values():
        response = np.asarray(sample.tokens[sample.prompt_length :], dtype="<i8")
        groups[sample.sample.group_id].append(response.tobytes())
        lengths[sample.sample.group_id] = max(lengths.get(sample.sample.group_id, 0), len(response))
    for name_of_text, text in view.texts.items():
        groups[name_of_text.group_id].append(text.encode())
        lengths[name_of_text.group_id] = max(lengths.get(name_of_text.group_id, 0), len(text.split()))
    if not groups:
        raise NotApplicable("no trajectories")
    unit = "words" if view.texts else "tokens"
    for name, responses in groups.items():
        if len(responses) > 1 and len(set(responses)) == 1 and lengths[name] > _MANY:
            yield Violation(
                f"step {view.step} group {name}",
                (f"all {len(responses)} responses of {lengths[name]} {unit} are equal",),
            )


CHECKS = (
    Check(
        "masks-non-empty",
        "every sample has a trained token",
        "a sample without trained tokens adds nothing, or divides by zero: an empty response, or a wrong mask",
        ("drop such samples before the step, or fix how the loss mask is built",),
        _masks_non_empty,
    ),
    Check(
        "rewards-finite",
        "rewards are finite",
        "a NaN reward makes the advantages of its whole group NaN",
        ("check what the reward function returns for this sample",),
        _rewards_finite,
    ),
    Check(
        "group-shares-a-prompt",
        "samples of a group share one prompt",
        "advantages compare samples of one prompt; a group that mixes prompts compares unrelated samples",
        ("check how group ids are assigned and whether batches are reordered between rollout and advantage",),
        _prompts_of_groups_agree,
    ),
    Check(
        "groups-informative",
        "at least one group has different rewards",
        "when all samples of every group have the same reward, all advantages are 0 and the step learns nothing",
        ("check the reward function, the task's difficulty and the temperature",),
        _groups_informative,
        Severity.WARNING,
    ),
    Check(
        "policy-versions-fresh",
        "tokens come from the current weights",
        "the rollout was generated with older weights than the step trains: the ratio is not 1, and grows with the lag",
        ("sync weights before the rollout, or bound the staleness and correct for it",),
        _versions_fresh,
        Severity.WARNING,
    ),
    Check(
        "responses-vary",
        "samples of a group are not all the same",
        "all responses of a group are equal: every sample got the same seed, or sampling is greedy",
        ("give every sample of a group its own seed",),
        _few_duplicates,
        Severity.WARNING,
    ),
)
