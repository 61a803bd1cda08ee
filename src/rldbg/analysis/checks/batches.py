"""Checks on how samples are batched: masks, padding, positions, how often each sample is trained on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from rldbg.analysis.checks.base import Check, NotApplicable, StepView, Violation
from rldbg.core import SampleId, Severity


def _only_sampled_tokens_trained(view: StepView) -> Iterable[Violation]:
    """Tokens of the prompt or the environment have no policy version and must not be trained on."""
    seen = False
    for sample in view.samples.values():
        versions = sample.quantities.get("policy_versions")
        if versions is None:
            continue
        seen = True
        drawn, trained = versions.values >= 0, sample.loss_mask != 0
        foreign, left_out = np.flatnonzero(trained & ~drawn), np.flatnonzero(drawn & ~trained)
        if foreign.size:
            text = f"{foreign.size} trained tokens were not sampled by the policy, the first at {int(foreign[0])}"
            yield Violation(f"step {view.step} sample {sample.sample}", (text,))
        elif left_out.size and trained.any():
            text = f"{left_out.size} tokens sampled by the policy are not trained on, the first at {int(left_out[0])}"
            yield Violation(f"step {view.step} sample {sample.sample}", (text,))
    if not seen:
        raise NotApplicable("no policy versions")


def _samples_trained_once(view: StepView) -> Iterable[Violation]:
    """Every sample of the step is in one micro-batch of each epoch.

    Loops that do not number epochs have them as runs of mini-batches with all samples.
    """
    epochs: dict[int, Counter[SampleId]] = defaultdict(Counter)
    updates: dict[tuple[int, int], Counter[SampleId]] = defaultdict(Counter)
    for record in view.side.records("forward_data", view.step):
        epochs[record.key.epoch].update(record.samples)
        updates[record.key.epoch, record.key.mini_batch].update(record.samples)
    if view.samples and _are_whole_epochs([found for _, found in sorted(updates.items())], view.samples.keys()):
        return
    if not view.samples or not any(epochs.values()):
        raise NotApplicable("no trajectories and forward_data of the same samples")
    for epoch, counts in sorted(epochs.items()):
        twice = [sample for sample, count in counts.items() if count > 1]
        never = [sample for sample in view.samples if sample not in counts]
        for left, text in ((twice, "more than once"), (never, "not at all")):
            if left:
                evidence = f"{len(left)} of {len(view.samples)} samples are trained on {text}, for example {left[0]}"
                yield Violation(f"step {view.step} epoch {epoch}", (evidence,))


def _are_whole_epochs(updates: Iterable[Counter[SampleId]], samples: Iterable[SampleId]) -> bool:
    """Whether all samples come once, then once again, and so on to the end."""
    once, seen = Counter(samples), Counter[SampleId]()
    for found in updates:
        seen = seen + found
        if not seen <= once:
            return False
        if seen == once:
            seen = Counter()
    return not seen


def _padding_is_ignored(view: StepView) -> Iterable[Violation]:
    """The attention mask covers as many columns as a sample has tokens, and positions count them one by one."""
    seen = False
    for record in view.side.records("batch_inputs", view.step):
        if record.key.epoch or not {"attention_mask", "position_ids"} <= record.fields.keys():
            continue
        rows = zip(record.samples, record.rows("attention_mask"), record.rows("position_ids"), strict=False)
        for sample, attention, position in rows:
            if sample not in view.samples:
                continue
            seen = True
            held, length = np.asarray(attention) != 0, len(view.samples[sample].tokens)
            where = f"step {view.step} rank {record.key.rank} micro {record.key.micro} sample {sample}"
            if int(held.sum()) != length:
                yield Violation(where, (f"the attention mask covers {int(held.sum())} columns for {length} tokens",))
            elif (np.diff(np.asarray(position)[held]) != 1).any():
                yield Violation(where, ("position ids do not increase by one per token",))
            elif (~held[np.flatnonzero(held)[0] : np.flatnonzero(held)[-1]]).any():
                yield Violation(where, ("padding lies between the tokens of a sample",))
    if not seen:
        raise NotApplicable("no batch_inputs of samples with known tokens")


def _response_mask_follows(view: StepView) -> Iterable[Violation]:
    """The loss counts the tokens in the trajectory's mask, and no padding."""
    seen = False
    for record in view.side.records("forward_data", view.step):
        if record.key.epoch or "response_mask" not in record.fields:
            continue
        for sample, row in zip(record.samples, record.rows("response_mask"), strict=False):
            known = view.samples.get(sample)
            if known is None:
                continue
            seen = True
            meant = known.loss_mask[known.prompt_length :] != 0
            used = np.asarray(row) != 0
            padded = np.pad(meant, (0, max(len(used) - len(meant), 0)))[: len(used)]
            if used.any() and not np.array_equal(used, padded):
                place = int(np.flatnonzero(used != padded)[0])
                what = "padding" if place >= len(meant) else "a token that the mask excludes" if used[place] else "less"
                where = f"step {view.step} rank {record.key.rank} micro {record.key.micro} sample {sample}"
                yield Violation(f"{where} token {place}", (f"the loss counts {what} there",))
    if not seen:
        raise NotApplicable("no trajectories and response masks of the same samples")


CHECKS = (
    Check(
        "only-sampled-tokens-trained",
        "exactly the tokens sampled by the policy are trained on",
        "the loss mask covers prompt or environment tokens, or excludes tokens of the policy",
        ("look at the sample token by token: rldbg show RUN --sample GROUP/RUN", "fix how the loss mask is built"),
        _only_sampled_tokens_trained,
    ),
    Check(
        "samples-trained-once",
        "every sample is trained on once per epoch",
        "a sampler without shards, a restarted iterator or drop_last: some samples count twice or never",
        ("check how a step's samples are split across ranks and micro-batches",),
        _samples_trained_once,
        Severity.WARNING,
    ),
    Check(
        "padding-is-ignored",
        "attention and positions ignore padding",
        "the model attends to padding, or counts positions wrongly: log probs are those of a different text",
        ("check attention_mask, position_ids and the padding side of the batch",),
        _padding_is_ignored,
    ),
    Check(
        "response-mask-follows",
        "the loss counts the tokens of the loss mask",
        "the mask used in the loss is not that of the trajectories: padding or masked tokens are trained on",
        ("check how response_mask is built from loss_mask when sequences are padded",),
        _response_mask_follows,
    ),
)
