"""verl's policy losses (`register_policy_loss`), the older `compute_policy_loss`, and the losses of its engine workers
(`ppo_loss`, `sft_loss`), which take what the engine hands them: sequences without padding."""

import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rldbg.frameworks.loss_form import FrameworkLossSettings, LossForm, Quantities, responses_of, sequences_of

if TYPE_CHECKING:
    import torch


def _config(_quantities: Quantities, given: Mapping[str, Any]) -> FrameworkLossSettings:
    """The actor's configuration: verl's own defaults where verl is loaded, as it is if the loss is verl's."""
    own: dict[str, Any] = {}
    actor = getattr(sys.modules.get("verl.workers.config"), "ActorConfig", None)
    for item in fields(actor) if actor is not None else ():
        if item.default is not MISSING:
            own[item.name] = item.default
        elif item.default_factory is not MISSING:
            own[item.name] = item.default_factory()
    # Some losses assert the class. Without its global batch, a loss is that of the rows it is given.
    kind: type[FrameworkLossSettings] = (
        FrameworkLossSettings if actor is None else type("ActorSettings", (FrameworkLossSettings, actor), {})
    )
    return kind("config", own | {"global_batch_info": {}} | dict(given))


def _nested(rows: "list[torch.Tensor]") -> "torch.Tensor":
    import torch

    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _model_output(quantities: Quantities, _given: Mapping[str, Any]) -> "dict[str, torch.Tensor]":
    """What the engine computes: the value of a token is one position before it. Entropy if a model computed it."""
    import torch

    output = {}
    for name in ("log_probs", "entropy"):
        responses = responses_of(quantities, name)
        if name == "entropy" and any(row.isnan().any() for row in responses):
            continue
        pairs = zip(sequences_of(quantities), responses, strict=True)
        output[name] = _nested([torch.nn.functional.pad(row, (len(tokens) - len(row) - 1, 1)) for tokens, row in pairs])
    return output


def _data(quantities: Quantities, _given: Mapping[str, Any]) -> Any:
    """One micro-batch that is the whole mini-batch of one rank."""
    import torch

    tensordict: Any = import_module("tensordict")
    sequences, masks = sequences_of(quantities), responses_of(quantities, "mask")
    prompts = [len(tokens) - len(mask) for tokens, mask in zip(sequences, masks, strict=True)]
    tensors = {
        "input_ids": sequences,
        "prompts": [tokens[:length] for tokens, length in zip(sequences, prompts, strict=True)],
        "responses": [tokens[length:] for tokens, length in zip(sequences, prompts, strict=True)],
        "response_mask": masks,
        "loss_mask": [torch.nn.functional.pad(mask, (length, 0)) for mask, length in zip(masks, prompts, strict=True)],
        "old_log_probs": responses_of(quantities, "old_log_probs"),
        "advantages": responses_of(quantities, "advantages"),
    }
    counts = {"dp_size": 1, "batch_num_tokens": int(quantities["mask"].sum()), "global_batch_size": len(masks)}
    nested = {name: _nested(rows) for name, rows in tensors.items()}
    return tensordict.TensorDict(
        nested | {name: tensordict.NonTensorData(count) for name, count in counts.items()}, batch_size=[len(masks)]
    )


LOSS = LossForm(
    recognised_by=(
        frozenset({"old_log_prob", "log_prob", "response_mask"}),
        frozenset({"config", "model_output", "data"}),
    ),
    needs=frozenset({"old_log_probs", "advantages", "mask"}),
    arguments={"config": _config, "model_output": _model_output, "data": _data},
    settings={
        "cliprange": 0.2,
        "config.clip_ratio": 0.2,
        "config.clip_ratio_low": 0.2,
        "config.clip_ratio_high": 0.2,
        "config.clip_ratio_c": 3.0,
    },
)
