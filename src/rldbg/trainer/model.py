"""The policy: a tiny causal model with random weights, or any Hugging Face causal model from a folder."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rldbg.core import PrerequisiteError, UsageError
from rldbg.trainer.settings import ModelSettings


def check_model(settings: ModelSettings) -> None:
    """Fails before anything is started if the model does not exist."""
    for name in ("torch", "transformers"):
        if find_spec(name) is None:
            raise PrerequisiteError(f"training needs {name}", "pip install 'rldbg[train]'")
    if settings.path != "tiny" and not (Path(settings.path) / "config.json").is_file():
        raise UsageError(
            f"no model at {settings.path!r}: config.json is missing",
            "set model.path to `tiny` or to a folder with a Hugging Face model",
        )


def build_model(settings: ModelSettings, *, vocabulary_size: int, seed: int) -> Any:
    """The model in evaluation mode (no dropout: old and new log probs must agree), on CPU, in its dtype."""
    import torch

    from rldbg.trainer.determinism import seed_everything

    dtype = getattr(torch, settings.dtype)
    seed_everything(seed)
    if settings.path == "tiny":
        from rldbg.trainer.tiny_model import TinyLlama

        return TinyLlama(settings.tiny, vocabulary_size).to(dtype).eval()
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(settings.path, dtype=dtype, local_files_only=True).eval()
