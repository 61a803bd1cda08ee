"""How TRL makes one number of the loss of each token, in the words that `rldbg compare` knows, and what it computed on
the way."""

from collections.abc import Mapping
from typing import Any

_OF_SEQUENCES = frozenset({"grpo", "sapo"})
_OF_TOKENS = frozenset({"cispo", "dapo", "vespo"})
_CLIPPED = frozenset({"bnpo", "dapo", "dr_grpo", "grpo", "luspo"})


def loss_facts(trainer: Any, inputs: Mapping[str, Any], mask: Any) -> dict[str, Any]:
    """`aggregation` and, where the parts of a mini-batch add up to its loss, the `denominator` they share."""
    kind = getattr(trainer, "loss_type", None)
    if kind is None:
        return {}
    facts: dict[str, Any] = {"loss_type": kind}
    accumulated = getattr(trainer, "current_gradient_accumulation_steps", 1)
    rows = len(mask)
    if kind in _OF_SEQUENCES:
        facts |= {"aggregation": "sequence_mean", "denominator": float(rows * accumulated)}
    elif kind == "bnpo":
        facts |= {"aggregation": "token_mean", "denominator": float(mask.sum().clamp(min=1)) * accumulated}
    elif kind == "luspo":
        facts |= {"aggregation": "sum", "denominator": float(rows * accumulated)}
    elif kind == "dr_grpo":
        facts |= {"aggregation": "sum", "denominator": float(rows * trainer.max_completion_length * accumulated)}
    elif kind in _OF_TOKENS:
        share = accumulated / trainer.args.steps_per_generation / trainer.accelerator.num_processes
        facts |= {
            "aggregation": "token_mean",
            "denominator": float(inputs["num_items_in_batch"].clamp(min=1.0)) * share,
        }
    return facts


def loss_terms(
    trainer: Any, facts: Mapping[str, Any], computed: Mapping[str, Any], mask: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ratio and the policy loss of each token, and the terms of the loss, from the variables of `_compute_loss`.

    Empty where a user's own method, or another version, names them differently.
    """
    values, log_ratio = computed.get("per_token_loss"), computed.get("log_importance_weights")
    if values is None or log_ratio is None or "denominator" not in facts:
        return {}, {}
    policy, numbers = values.detach().expand_as(mask), {}
    kl = computed.get("per_token_kl") if trainer.beta else None
    if kl is not None:
        policy = policy - trainer.beta * kl.detach()
        numbers["kl_loss"] = _aggregated(kl.detach(), mask, facts)
    numbers["pg_loss"] = _aggregated(policy, mask, facts)
    if computed.get("entropy_loss") is not None:
        numbers["entropy_loss"] = computed["entropy_loss"].detach()
    return {"prob_ratio": log_ratio.detach().exp().expand_as(mask), "elementwise_loss": policy}, numbers


def loss_form(trainer: Any, kind: str, computed: Mapping[str, Any]) -> str:
    """`ratio` if the loss of a token is no more than its advantage times its own, clipped ratio (`two-sided ratio` if
    large ones of negative advantages are clipped, too): then it is compared with both. Else what it is instead."""
    if kind not in _CLIPPED:
        return kind
    if trainer.importance_sampling_level != "token":
        return f"{trainer.importance_sampling_level} ratio"
    weighted = (computed.get(name) is not None for name in ("off_policy_mask", "entropy_mask"))
    is_corrected = getattr(trainer, "use_vllm", False) and getattr(
        trainer, "vllm_importance_sampling_correction", False
    )
    if is_corrected or any(weighted):
        return "weighted ratio"
    return "ratio" if trainer.args.delta is None else "two-sided ratio"


def _aggregated(values: Any, mask: Any, facts: Mapping[str, Any]) -> Any:
    counted = values * mask
    if facts["aggregation"] == "sequence_mean":
        counted = counted.sum(-1) / mask.sum(-1).clamp(min=1.0)
    return counted.sum() / facts["denominator"]
