"""TRL's loss is a method of its trainer: `GRPOTrainer._compute_loss(self, model, inputs)`, or a subclass's own.

The method runs on an object of that class whose settings are the configuration's defaults; the log probs that it asks
its model for are those of the saved batch, so no model is needed.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

from rldbg.frameworks.loss_form import FrameworkLossSettings, LossForm, Quantities


def _configuration() -> dict[str, Any]:
    """The defaults of GRPOConfig, as TRL that is loaded declares them."""
    kind = getattr(sys.modules.get("trl.trainer.grpo_config"), "GRPOConfig", None)
    return {item.name: item.default for item in fields(kind) if item.default is not MISSING} if kind else {}


def _trainer(quantities: Quantities, given: Mapping[str, Any]) -> Any:
    owner = given["class"]
    values = _configuration() | {name: value for name, value in given.items() if name != "class"}

    class Replayed(owner):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            self.args = FrameworkLossSettings("self", values)
            self.accelerator = SimpleNamespace(
                num_processes=1,
                is_main_process=True,
                sync_gradients=True,
                gather=lambda value: value,
                reduce=lambda value, **_how: value,
            )
            self.model = SimpleNamespace(training=True)
            self._metrics: Any = {"train": defaultdict(list), "eval": defaultdict(list)}
            self.current_gradient_accumulation_steps = 1
            self.epsilon_low = values.get("epsilon", 0.2)
            self.epsilon_high = values.get("epsilon_high") or self.epsilon_low
            self.aux_loss_enabled = self._entropy_bonus_enabled = False

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(self.args, name)

        def _get_per_token_logps_and_entropies(self, *_arguments: Any, **_keywords: Any) -> Any:
            return quantities["log_probs"], quantities["entropy"], None

    return Replayed()


def _inputs(quantities: Quantities, _given: Mapping[str, Any]) -> dict[str, Any]:
    width = quantities["mask"].shape[1]
    ids, attended, mask = quantities["input_ids"], quantities["attention_mask"], quantities["mask"]
    return {
        "prompt_ids": ids[:, :-width],
        "prompt_mask": attended[:, :-width],
        "completion_ids": ids[:, -width:],
        "completion_mask": attended[:, -width:],
        "tool_mask": mask,
        "advantages": quantities["advantages"],
        "old_per_token_logps": quantities["old_log_probs"],
        "sampling_per_token_logps": quantities["old_log_probs"],
        "num_items_in_batch": mask.sum(),
    }


LOSS = LossForm(
    recognised_by=(frozenset({"self", "model", "inputs"}),),
    needs=frozenset({"log_probs", "old_log_probs", "advantages", "mask"}),
    arguments={"self": _trainer, "model": lambda _quantities, _given: None, "inputs": _inputs},
    settings={"self.steps_per_generation": 1},
)
