"""The losses a client can name: what each needs of a datum, its settings, and its value per token.

The sum over tokens and datums is what the hosted APIs differentiate; `aggregation` and `denominator` turn it into a
trainer's mean.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rldbg.algorithms import (
    Aggregation,
    Array,
    KlEstimator,
    TokenLoss,
    cross_entropy_loss,
    importance_ratio,
    importance_sampling_loss,
    ppo_loss,
)
from rldbg.core import setting
from rldbg.training_service.datums import Datum
from rldbg.training_service.errors import ServiceRequestError, read_settings

LossFields = Mapping[str, Array]
# The input, beside the client's, that is 1 where a token is trained on.
TRAINED = "trained"


@dataclass(frozen=True, slots=True)
class LossSettings:
    """A loss by name and all its settings."""

    name: str
    clip_low_threshold: float = 0.8
    clip_high_threshold: float = 1.2
    beta: float = 0.05
    aggregation: Aggregation = "sum"
    denominator: float | None = setting(None, above=0)
    entropy_coeff: float = 0.0
    kl_coeff: float = 0.0
    kl_estimator: KlEstimator = "k3"
    temperature: float = setting(1.0, above=0)
    micro_batch_size: int | None = setting(None, above=0)

    @classmethod
    def parse(cls, name: Any, config: Any) -> "LossSettings":
        """The loss a request asks for; an unknown name or key is refused with those there are."""
        if not isinstance(name, str) or name not in LOSSES:
            raise ServiceRequestError(f"unknown loss: {name!r}; choose one of {', '.join(LOSSES)}")
        if not isinstance(config, Mapping | None):
            raise ServiceRequestError("loss_fn_config is not a mapping")
        given = {key: value for key, value in (config or {}).items() if key not in _IGNORED_KEYS}
        size = given.get("micro_batch_size")
        if isinstance(size, float) and size.is_integer():  # protobuf has one kind of number only
            given["micro_batch_size"] = int(size)
        return read_settings(cls, {**given, "name": name}, "loss_fn_config")


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss: the inputs it cannot do without, and its value per token."""

    needs: tuple[str, ...]
    tokens: Callable[[Array, LossFields, LossSettings], TokenLoss]
    any_inputs: bool = False


def check_inputs(where: str, datum: Datum, settings: LossSettings) -> None:
    """Whether a datum has what the loss needs, and nothing it would silently ignore."""
    loss = LOSSES[settings.name]
    needs = (*loss.needs, *(("ref_logprobs",) if settings.kl_coeff else ()))
    for name in needs:
        if name not in datum.inputs:
            raise ServiceRequestError(f"{where}: {settings.name} needs loss_fn_inputs[{name!r}]")
    unknown = sorted(set(datum.inputs) - INPUT_NAMES)
    if unknown and not loss.any_inputs:
        raise ServiceRequestError(f"{where}: no loss uses {unknown[0]!r}; inputs are {', '.join(sorted(INPUT_NAMES))}")
    for name in sorted(datum.inputs.keys() & _OPTIONAL.keys()):
        if settings.name not in _OPTIONAL[name] and not loss.any_inputs:
            raise ServiceRequestError(
                f"{where}: {settings.name} does not use {name!r}; {', '.join(_OPTIONAL[name])} do"
            )


def _ppo(log_probs: Array, inputs: LossFields, settings: LossSettings) -> TokenLoss:
    low, high = _clip_range(log_probs, inputs, settings)
    return ppo_loss(log_probs, inputs["logprobs"], inputs["advantages"], lowest_ratio=low, highest_ratio=high)


def _clip_range(log_probs: Array, inputs: LossFields, settings: LossSettings) -> tuple[Array, Array]:
    """Between which ratios a token is not clipped: the datum's own thresholds, else those of the request."""
    all_tokens = log_probs.detach() * 0
    return (
        inputs.get("clip_low_threshold", all_tokens + settings.clip_low_threshold),
        inputs.get("clip_high_threshold", all_tokens + settings.clip_high_threshold),
    )


def _cispo(log_probs: Array, inputs: LossFields, settings: LossSettings) -> TokenLoss:
    """REINFORCE weighted by the clipped ratio, through which no gradient flows."""
    ratio = importance_ratio(log_probs, inputs["logprobs"]).detach()
    weight = ratio.clip(*_clip_range(log_probs, inputs, settings))
    return TokenLoss(-weight * log_probs * inputs["advantages"], ratio, weight != ratio)


def _dro(log_probs: Array, inputs: LossFields, settings: LossSettings) -> TokenLoss:
    """REINFORCE with a quadratic pull towards the policy that made the data."""
    log_ratio = log_probs - inputs["logprobs"]
    values = -(log_probs * inputs["advantages"] - settings.beta / 2 * log_ratio * log_ratio)
    return TokenLoss(values, log_ratio.exp(), log_ratio != log_ratio)


def _gspo(log_probs: Array, inputs: LossFields, settings: LossSettings) -> TokenLoss:
    """PPO with one ratio per sequence, the geometric mean of its tokens'; each token passes its own gradient on."""
    counted = inputs["sequence_ratio_mask"] != 0 if "sequence_ratio_mask" in inputs else inputs[TRAINED]
    log_ratio = ((log_probs - inputs["logprobs"]) * counted).detach()
    mean = log_ratio.sum(-1, keepdims=True) / counted.sum(-1, keepdims=True).clip(1)
    # The ratio to these log probs is that mean, and its gradient that of the token.
    return _ppo(log_probs, {**inputs, "logprobs": log_probs.detach() - mean}, settings)


_CLIPPED = ("ppo", "gspo", "cispo")
LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss(("weights",), lambda log_probs, inputs, _: cross_entropy_loss(log_probs, inputs["weights"])),
    "importance_sampling": Loss(
        ("logprobs", "advantages"),
        lambda log_probs, inputs, _: importance_sampling_loss(log_probs, inputs["logprobs"], inputs["advantages"]),
    ),
    "ppo": Loss(("logprobs", "advantages"), _ppo),
    "gspo": Loss(("logprobs", "advantages"), _gspo),
    "cispo": Loss(("logprobs", "advantages"), _cispo),
    "dro": Loss(("logprobs", "advantages"), _dro),
    # Only the log probs are wanted.
    "forward_logprob": Loss(
        (), lambda log_probs, *_: cross_entropy_loss(log_probs, log_probs.detach() * 0), any_inputs=True
    ),
    # The client's own loss, given by its gradient with respect to each log prob.
    "surrogate": Loss(
        ("surrogate_weights",),
        lambda log_probs, inputs, _: cross_entropy_loss(log_probs, -inputs["surrogate_weights"]),
        any_inputs=True,
    ),
}

# Inputs that a loss uses where they are given.
_OPTIONAL = {"clip_low_threshold": _CLIPPED, "clip_high_threshold": _CLIPPED, "sequence_ratio_mask": ("gspo",)}
# Every input that some loss uses. `mask` is Tinker's name for `loss_mask`.
INPUT_NAMES = frozenset({"target_tokens", "loss_mask", "mask", "ref_logprobs", *_OPTIONAL}).union(
    *(loss.needs for loss in LOSSES.values())
)
# What the NexRL trainer adds for a service that dumps; ours is told by WEAVER_DEBUG_DUMP_* instead.
_IGNORED_KEYS = frozenset({"enable_debug_dump"})
