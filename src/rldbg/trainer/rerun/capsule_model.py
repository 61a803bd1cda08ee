"""The model of a capsule: the recorded architecture with the recorded parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rldbg.core import IncompleteDataError
from rldbg.trainer.model import build_model
from rldbg.trainer.rerun.capsule_reader import Capsule
from rldbg.trainer.settings import Recipe


def capsule_model(capsule: Capsule, recipe: Recipe) -> Any:
    """The capsule's model, on CPU, in the recipe's dtype and in evaluation mode."""
    model = _empty(capsule, recipe)
    fill(model, capsule.parameters())
    return model


def fill(model: Any, parameters: Mapping[str, Any]) -> None:
    """Copies recorded parameters into a model, which must know no other ones."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in parameters:
                raise IncompleteDataError(f"the capsule lacks the parameter {name}", "record the step again")
            parameter.copy_(parameters[name])


def _empty(capsule: Capsule, recipe: Recipe) -> Any:
    """The recorded model's architecture; its weights are still to be filled in."""
    import torch

    settings = dict(capsule.model_config)
    if recipe.model.path == "tiny":
        return build_model(recipe.model, vocabulary_size=settings["vocab_size"], seed=recipe.seed)
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    return AutoModelForCausalLM.from_config(config).to(getattr(torch, recipe.model.dtype)).eval()
