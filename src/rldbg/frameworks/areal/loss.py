"""AReaL's losses: `grpo_loss_fn`, whose `input_data` has the rollout's log probs as `logprobs`, and the functional
ones. The proximal policy is the one that generated, as before the first optimizer step."""

from collections.abc import Mapping
from typing import Any

from rldbg.frameworks.loss_form import LossForm, Quantities


def _input_data(quantities: Quantities, _given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_ids": quantities["input_ids"],
        "attention_mask": quantities["attention_mask"],
        "logprobs": quantities["old_log_probs"],
        "prox_logp": quantities["old_log_probs"],
        "advantages": quantities["advantages"],
        "loss_mask": quantities["mask"].bool(),
        "versions": quantities["versions"],
        "rewards": quantities["rewards"],
    }


LOSS = LossForm(
    recognised_by=(frozenset({"input_data", "eps_clip"}), frozenset({"proximal_logprobs", "eps_clip"})),
    needs=frozenset({"old_log_probs", "advantages", "mask"}),
    arguments={
        "input_data": _input_data,
        "proximal_logprobs": lambda quantities, _given: quantities["old_log_probs"],
        "loss_mask": lambda quantities, _given: quantities["mask"].bool(),
    },
    settings={"eps_clip": 0.2, "eps_clip_higher": None, "c_clip": None},
)
