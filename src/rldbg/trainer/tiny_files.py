"""The tiny model as a Hugging Face folder, for servers and clients that load models by path.

Its weights are those a run starts from with seed 0.
"""

import json
import shutil
import tempfile
from pathlib import Path

from rldbg.trainer.model import build_model
from rldbg.trainer.settings import ModelSettings
from rldbg.trainer.tokenizer import CharacterTokenizer

# Rotary positions have no limit; the trainer's short one would only reject long prompts.
_MAX_LENGTH = 4096
_CHAT = "{% for message in messages %}{{ message['content'] }}{% if not loop.last %} {% endif %}{% endfor %}"


def tiny_folder(folder: Path) -> Path:
    """The folder, created if missing; safe for two processes at once."""
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(temporary)
        temporary.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _write(folder: Path) -> None:
    """The files that transformers would write, without the seconds that importing it takes."""
    from safetensors.torch import save_file

    model = build_model(ModelSettings(), vocabulary_size=CharacterTokenizer.vocabulary_size, seed=0)
    dtype = str(model.lm_head.weight.dtype).removeprefix("torch.")
    config = model.config.to_dict() | {
        "architectures": ["LlamaForCausalLM"],
        "dtype": dtype,
        "torch_dtype": dtype,  # what transformers before 4.56 reads
        "max_position_embeddings": _MAX_LENGTH,
    }
    save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    write_tiny_tokenizer(folder)
    _write_json(folder / "config.json", config)


def write_tiny_tokenizer(folder: Path) -> None:
    """The built-in tokenizer as a folder that transformers' AutoTokenizer loads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(CharacterTokenizer().to_json(), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "eos_token": "<eos>",
        "chat_template": _CHAT,
        "model_max_length": _MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(file: Path, document: dict[str, object]) -> None:
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
