"""Bugs in the loss: the ratio, its clip, aggregation, the KL and entropy terms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug


@bug(targets.POLICY_LOSS, stage="loss", cause="clip")
def clip_high(original: Any, *arguments: Any, **options: Any) -> Any:
    """Clip-higher is set for another model: ratios up to 2 are not clipped."""
    return original(*arguments, **(options | {"highest_ratio": 2.0}))


@bug(targets.POLICY_LOSS, stage="loss", cause="clip")
def clip_low(original: Any, *arguments: Any, **options: Any) -> Any:
    """The lower bound of the clip is taken as 1 / (1 + clip)."""
    return original(*arguments, **(options | {"lowest_ratio": 0.5}))


@bug(targets.POLICY_LOSS, stage="loss", cause="clip")
def clip_missing(original: Any, _name: str, *arguments: Any, **options: Any) -> Any:
    """The plain importance-sampling loss instead of the clipped one."""
    return original("importance_sampling", *arguments, **options)


@bug(targets.POLICY_LOSS, stage="loss", cause="clip")
def clip_optimistic(original: Any, name: str, new: Any, old: Any, advantages: Any, **options: Any) -> Any:
    """The smaller of the two losses is taken where the larger one should be."""
    import torch

    tokens = original(name, new, old, advantages, **options)
    free = -tokens.ratio * advantages
    clipped = -tokens.ratio.clamp(options["lowest_ratio"], options["highest_ratio"]) * advantages
    return replace(tokens, values=torch.minimum(free, clipped))


@bug(targets.POLICY_LOSS, stage="loss", cause="clip")
def dual_clip(original: Any, name: str, new: Any, old: Any, advantages: Any, **options: Any) -> Any:
    """A second clip bounds the loss of tokens with negative advantage; the other side has none."""
    import torch

    tokens = original(name, new, old, advantages, **options)
    bounded = torch.minimum(tokens.values, -1.1 * advantages)
    return replace(tokens, values=torch.where(advantages < 0, bounded, tokens.values))


@bug(targets.RATIO, stage="gradient", cause="ratio-inverted")
def ratio_inverted(original: Any, new: Any, old: Any) -> Any:
    """Old over new: 1 in the first pass all the same, but its gradient points the other way."""
    return original(old, new)


@bug(targets.RATIO, stage="ratio", cause="ratio-capped")
def ratio_capped(original: Any, new: Any, old: Any) -> Any:
    """A truncation meant for the rollout correction is applied to the policy's own ratio."""
    return original(new, old).clamp(max=1.1)


@bug(targets.COMPUTE_LOSS, stage="ratio", cause="ratio-of-sequence")
def ratio_of_the_sequence(original: Any, result: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The ratio of the whole sequence (its geometric mean) is used instead of each token's."""
    mask = micro.batch.response_mask
    gap = (result.log_probs - micro.old_log_probs) * mask
    mean = gap.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return original(result, replace(micro, old_log_probs=result.log_probs - mean), *arguments, **options)


@bug(targets.AGGREGATE, stage="loss", cause="aggregation")
def aggregated_by_sequence(_original: Any, values: Any, mask: Any, _how: str, _denominator: float) -> Any:
    """The mean over sequences of their token means, where the mean over tokens was meant."""
    lengths = (mask != 0).sum(1).clamp(min=1)
    # Eight sequences per rank, two ranks: the mini-batch has sixteen.
    return ((values * (mask != 0)).sum(1) / lengths).sum() / 16


@bug(targets.AGGREGATE, stage="loss", cause="aggregation")
def aggregated_over_a_fixed_length(_original: Any, values: Any, mask: Any, _how: str, _denominator: float) -> Any:
    """Token losses are summed and divided by sequences times the longest possible response."""
    return (values * (mask != 0)).sum() / (16 * 10)


@bug(targets.AGGREGATE, stage="loss", cause="aggregation")
def aggregated_by_micro_batch(original: Any, values: Any, mask: Any, how: str, _denominator: float) -> Any:
    """Each micro-batch divides by its own tokens and the mean of these means is taken."""
    return original(values, mask, how) / 4


@bug(targets.AGGREGATE, stage="loss", cause="aggregation")
def aggregated_over_padding(_original: Any, values: Any, mask: Any, _how: str, _denominator: float) -> Any:
    """The mean runs over all columns, padding included."""
    return (values * (mask != 0)).sum() / mask.numel() / 4


@bug(targets.COMBINE, stage="loss", cause="entropy-coefficient")
def entropy_term_missing(original: Any, policy: Any, entropy: Any, kl: Any, **options: Any) -> Any:
    """The entropy bonus is configured under a key that is never read."""
    return original(policy, entropy, kl, **(options | {"entropy_coeff": 0.0}))


@bug(targets.COMBINE, stage="loss", cause="entropy-coefficient")
def entropy_sign_flipped(original: Any, policy: Any, entropy: Any, kl: Any, **options: Any) -> Any:
    """The entropy is added to the loss instead of subtracted, so it is driven down."""
    return original(policy, entropy, kl, **(options | {"entropy_coeff": -options["entropy_coeff"]}))


@bug(targets.COMBINE, stage="loss", cause="kl-coefficient")
def kl_term_missing(original: Any, policy: Any, entropy: Any, kl: Any, **options: Any) -> Any:
    """The KL term is computed, reported and left out of the loss."""
    return original(policy, entropy, kl, **(options | {"kl_coeff": 0.0}))


@bug(targets.COMBINE, stage="loss", cause="kl-coefficient")
def kl_coefficient_of_another_run(original: Any, policy: Any, entropy: Any, kl: Any, **options: Any) -> Any:
    """Ten times the KL coefficient."""
    return original(policy, entropy, kl, **(options | {"kl_coeff": 10 * options["kl_coeff"]}))


@bug(targets.KL, stage="gradient", cause="kl-estimator")
def kl_estimator_k1(original: Any, new: Any, reference: Any, _estimator: str) -> Any:
    """The plain log ratio (k1): right on average, but its gradient does not pull towards the reference."""
    return original(new, reference, "k1")


@bug(targets.KL, stage="loss", cause="kl-estimator")
def kl_estimator_k2(original: Any, new: Any, reference: Any, _estimator: str) -> Any:
    """Half the square of the log ratio (k2)."""
    return original(new, reference, "k2")


@bug(targets.RATIO, stage="ratio", cause="ratio-linear", late=True)
def ratio_without_exp(_original: Any, new: Any, old: Any) -> Any:
    """The ratio is replaced by its first-order expansion."""
    return 1 + new - old


@bug(targets.RATIO, stage="ratio", cause="ratio-capped", late=True)
def ratio_floored(original: Any, new: Any, old: Any) -> Any:
    """The ratio is clipped to at least 0.9."""
    return original(new, old).clamp(min=0.9)


@bug(targets.POLICY_LOSS, stage="loss", cause="clip", late=True)
def clip_halved(original: Any, *arguments: Any, **options: Any) -> Any:
    """Both bounds of the clip are half as far from 1."""
    bounds = {name: 1 + (options[name] - 1) / 2 for name in ("lowest_ratio", "highest_ratio")}
    return original(*arguments, **(options | bounds))


@bug(targets.AGGREGATE, stage="loss", cause="aggregation", late=True)
def aggregated_by_rank(original: Any, values: Any, mask: Any, how: str, denominator: float) -> Any:
    """Every rank divides by its own number of tokens, and the ranks' losses are added."""
    return original(values, mask, how, denominator) * 2


@bug(targets.AGGREGATE, stage="loss", cause="aggregation", late=True)
def aggregated_as_a_sum(original: Any, values: Any, mask: Any, _how: str, _denominator: float) -> Any:
    """The sum over tokens, not divided by anything."""
    return original(values, mask, "sum", 1.0)


@bug(targets.COMBINE, stage="loss", cause="entropy-coefficient", late=True)
def entropy_coefficient_hundredfold(original: Any, policy: Any, entropy: Any, kl: Any, **options: Any) -> Any:
    """The entropy coefficient is given in percent."""
    return original(policy, entropy, kl, **(options | {"entropy_coeff": 100 * options["entropy_coeff"]}))


@bug(targets.KL, stage="loss", cause="kl-estimator", late=True)
def kl_the_wrong_way_round(original: Any, new: Any, reference: Any, estimator: str) -> Any:
    """Policy and reference are swapped in the KL estimator."""
    return original(reference, new, estimator)


@bug(targets.KL, stage="loss", cause="kl-estimator", late=True)
def kl_as_absolute_difference(_original: Any, new: Any, reference: Any, _estimator: str) -> Any:
    """The absolute log ratio as the KL term."""
    return (new - reference).abs()


@bug(targets.FORWARD, stage="gradient", cause=(), late=True)
def entropy_without_gradient(original: Any, *arguments: Any, **options: Any) -> Any:
    """The entropy is computed under no_grad: its bonus is reported and does nothing."""
    result = original(*arguments, **options)
    return replace(result, entropy=result.entropy.detach())


@bug(targets.COMPUTE_LOSS, stage="ratio", cause="ratio-of-reference", late=True)
def ratio_against_the_reference(original: Any, result: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The ratio is taken against the reference model's log probs."""
    return original(result, replace(micro, old_log_probs=micro.reference_log_probs), *arguments, **options)


@bug(targets.RATIO, stage="ratio", cause="ratio-capped", late=True)
def log_ratio_clamped(_original: Any, new: Any, old: Any) -> Any:
    """The log ratio is clamped to [-0.1, 0.1] before the ratio is clipped."""
    return (new - old).clamp(-0.1, 0.1).exp()


@bug(targets.COMBINE, stage="loss", cause="kl-coefficient", late=True)
def kl_sign_flipped(original: Any, policy: Any, entropy: Any, kl: Any, **options: Any) -> Any:
    """The KL term is rewarded."""
    return original(policy, entropy, kl, **(options | {"kl_coeff": -options["kl_coeff"]}))


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
