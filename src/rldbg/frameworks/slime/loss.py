"""slime's losses: a custom loss of Megatron's packed logits, and the functions of `ppo_utils` per token.

slime divides the sum over samples by the global batch; what is compared here is that quotient.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rldbg.frameworks.loss_form import FrameworkLossSettings, LossForm, Quantities, responses_of, sequences_of

if TYPE_CHECKING:
    import torch


def _batch(quantities: Quantities, _given: Mapping[str, Any]) -> dict[str, Any]:
    tokens = sequences_of(quantities)
    masks = responses_of(quantities, "mask")
    return {
        "unconcat_tokens": tokens,
        "tokens": tokens,
        "total_lengths": [len(row) for row in tokens],
        "response_lengths": quantities["response_lengths"].tolist(),
        "loss_masks": masks,
        "rollout_mask_sums": [mask.sum() for mask in masks],
        "advantages": responses_of(quantities, "advantages"),
        "log_probs": responses_of(quantities, "old_log_probs"),
        "rollout_log_probs": responses_of(quantities, "old_log_probs"),
        "rewards": quantities["rewards"].tolist(),
    }


def _packed_logits(quantities: Quantities, _given: Mapping[str, Any]) -> "torch.Tensor":
    attended = quantities["attention_mask"].bool()
    packed: torch.Tensor = quantities["logits"][attended]
    return packed[None]


def _sum_of_sample_mean(quantities: Quantities, _given: Mapping[str, Any]) -> "Callable[[torch.Tensor], torch.Tensor]":
    """Of values per response token, one sample after the other."""
    masks = responses_of(quantities, "mask")

    def reduce(values: "torch.Tensor") -> "torch.Tensor":
        parts = values.split([len(mask) for mask in masks])
        means = [(part * mask).sum() / mask.sum().clamp(min=1) for part, mask in zip(parts, masks, strict=True)]
        total: torch.Tensor = sum(means[1:], start=means[0])
        return total

    return reduce


def _trained_on(returned: Any, quantities: Quantities) -> Any:
    value = returned[0] if isinstance(returned, tuple) else returned
    mask = quantities["mask"]
    if value.shape == mask.shape:
        value = ((value * mask).sum(-1) / mask.sum(-1).clamp(min=1)).sum()
    return value / len(mask)


LOSS = LossForm(
    recognised_by=(frozenset({"args", "batch", "logits", "sum_of_sample_mean"}), frozenset({"ppo_kl", "eps_clip"})),
    needs=frozenset({"old_log_probs", "advantages", "mask"}),
    arguments={
        "args": lambda _quantities, given: FrameworkLossSettings("args", given),
        "batch": _batch,
        "logits": _packed_logits,
        "sum_of_sample_mean": _sum_of_sample_mean,
        "ppo_kl": lambda quantities, _given: quantities["old_log_probs"] - quantities["log_probs"],
    },
    settings={
        "eps_clip": 0.2,
        "eps_clip_high": 0.2,
        "args.eps_clip": 0.2,
        "args.eps_clip_high": 0.2,
        "args.eps_clip_c": None,
        "args.advantage_estimator": "grpo",
        "args.entropy_coef": 0.0,
        "args.rollout_temperature": 1.0,
        "args.calculate_per_token_loss": False,
        "args.use_rollout_logprobs": False,
        "args.use_kl_loss": False,
        "args.use_opsm": False,
        "args.use_tis": False,
        "args.get_mismatch_metrics": False,
    },
    result=_trained_on,
)
