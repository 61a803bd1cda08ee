"""Loads a Hugging Face causal model from a folder, as the embedded backend needs it."""

from pathlib import Path
from typing import Any

from rldbg.core import PrerequisiteError, UsageError
from rldbg.inference.backend import ModelCard
from rldbg.inference.embedded.engine import EmbeddedBackend
from rldbg.inference.embedded.scheduler import Limits
from rldbg.inference.embedded.text import load_text

_NO_LIMIT = 1 << 20


def tune_cpu(threads: int) -> None:
    """How this process computes on a CPU; 0 threads leaves their number to torch.

    On ARM, oneDNN is slower than plain BLAS for the small batches of decoding: 32 rows by 64 x 64 took 1.4 ms against
    0.06 ms, and it was never faster up to 2048 x 2048.
    """
    import platform

    import torch

    if threads:
        torch.set_num_threads(threads)
    if platform.machine() in ("aarch64", "arm64"):
        torch.backends.mkldnn.set_flags(False)


def load_backend(
    folder: Path, *, name: str, dtype: str = "float32", device: str = "auto", limits: Limits | None = None
) -> EmbeddedBackend:
    """The model of a folder, ready to answer; call it inside the event loop."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    if not (folder / "config.json").is_file():
        raise UsageError(f"no model at {folder}: config.json is missing", "--model tiny, or a Hugging Face folder")
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True
    )
    text, tokenizer = load_text(folder)
    return embed(model, text=text, tokenizer=tokenizer, name=name, path=str(folder), device=device, limits=limits)


def embed(
    model: Any,
    *,
    text: Any,
    tokenizer: Any = None,
    name: str = "model",
    path: str = "",
    device: str = "auto",
    limits: Limits | None = None,
) -> EmbeddedBackend:
    """A model that is in memory already."""
    model = model.to(_device(device)).eval()
    config = model.config.get_text_config()
    ends = _ids(config.eos_token_id) | _ids(getattr(model.generation_config, "eos_token_id", None))
    ends |= _ids(config.pad_token_id) | _ids(getattr(tokenizer, "eos_token_id", None))
    ends |= _ids(getattr(tokenizer, "pad_token_id", None))
    card = ModelCard(
        name=name,
        path=path,
        max_length=_max_length(config),
        vocabulary_size=int(config.vocab_size),
        end_ids=frozenset(ends),
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        text=text,
    )
    return EmbeddedBackend(model, card, pad_id=next(iter(_ids(config.pad_token_id)), 0), limits=limits)


def _device(wanted: str) -> Any:
    import torch

    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise PrerequisiteError("--device cuda: torch finds no GPU", "use --device auto or cpu")
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def _max_length(config: Any) -> int:
    """Most tokens of prompt and answer. Layers that look back only so far are exact within that window."""
    limit = int(getattr(config, "max_position_embeddings", None) or _NO_LIMIT)
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    return min(limit, int(window)) if window and (sliding or not getattr(config, "layer_types", None)) else limit


def _ids(value: Any) -> set[int]:
    if value is None:
        return set()
    return {int(item) for item in value} if isinstance(value, list | tuple) else {int(value)}
