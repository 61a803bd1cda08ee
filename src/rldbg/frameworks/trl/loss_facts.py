"""How TRL makes one number of the loss of each token, in the words that `rldbg compare` knows."""

from collections.abc import Mapping
from typing import Any

_OF_SEQUENCES = frozenset({"grpo", "sapo"})
_OF_TOKENS = frozenset({"cispo", "dapo", "vespo"})


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
