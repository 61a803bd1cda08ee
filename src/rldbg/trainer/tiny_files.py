"""The tiny model as a Hugging Face folder, for servers and clients that load models by path.

Its weights are those a run starts from with the same seed.
"""

import shutil
import tempfile
from pathlib import Path

from rldbg.trainer.model import build_model
from rldbg.trainer.settings import ModelSettings
from rldbg.trainer.tokenizer import CharacterTokenizer

# Rotary positions have no limit; the trainer's short one would only reject long prompts.
_MAX_LENGTH = 4096
_CHAT = "{% for message in messages %}{{ message['content'] }}{% if not loop.last %} {% endif %}{% endfor %}"


def tiny_folder(folder: Path, *, seed: int = 0) -> Path:
    """The folder, created if missing; safe for two processes at once."""
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(temporary, seed)
        temporary.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _write(folder: Path, seed: int) -> None:
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    model = build_model(ModelSettings(), vocabulary_size=CharacterTokenizer.vocabulary_size, seed=seed)
    model = model.to_transformers()
    model.config.max_position_embeddings = _MAX_LENGTH
    model.save_pretrained(str(folder))
    write_tiny_tokenizer(folder)


def write_tiny_tokenizer(folder: Path) -> None:
    """The built-in tokenizer as a folder that transformers' AutoTokenizer loads."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(CharacterTokenizer().to_json()),
        pad_token="<pad>",
        eos_token="<eos>",
        chat_template=_CHAT,
        model_max_length=_MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(str(folder))
