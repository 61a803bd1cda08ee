"""Text to token ids and back: a character tokenizer made in code, or a model's own from its folder."""

import json
import shutil
from pathlib import Path
from typing import Protocol

# The order is part of the vocabulary: appending is safe, anything else makes old checkpoints unreadable.
_CHARACTERS = "0123456789+-*/=() ?!.abcdefghijklmnopqrstuvwxyz"


class Tokenizer(Protocol):
    """What the trainer needs of a tokenizer."""

    pad_id: int
    eos_id: int
    vocabulary_size: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...


class CharacterTokenizer:
    """One token per character; id 0 pads and id 1 ends a text."""

    pad_id = 0
    eos_id = 1
    vocabulary_size = len(_CHARACTERS) + 2

    def __init__(self) -> None:
        self._ids = {character: number + 2 for number, character in enumerate(_CHARACTERS)}

    def encode(self, text: str) -> list[int]:
        unknown = sorted(set(text) - set(self._ids))
        if unknown:
            raise ValueError(f"the built-in tokenizer has no {''.join(unknown)!r}")
        return [self._ids[character] for character in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(_CHARACTERS[token - 2] for token in tokens if token >= 2)

    def to_json(self) -> str:
        """The same tokenizer for the tokenizers package, extended to any text: capitals become lower case, and
        unknown characters become a question mark."""
        special = {self.pad_id: "<pad>", self.eos_id: "<eos>"}
        token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return json.dumps(
            {
                "version": "1.0",
                "added_tokens": [{"id": id, "content": name} | token for id, name in special.items()],
                "normalizer": {"type": "Lowercase"},
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"Regex": r"[\s\S]"},
                    "behavior": "Isolated",
                    "invert": False,
                },
                "decoder": {"type": "Fuse"},
                "model": {
                    "type": "WordLevel",
                    "vocab": {name: id for id, name in special.items()} | self._ids,
                    "unk_token": "?",
                },
            }
        )


class PretrainedTokenizer:
    """A Hugging Face tokenizer from a model's folder."""

    def __init__(self, path: str) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        self.eos_id = int(self._tokenizer.eos_token_id)
        pad_id = self._tokenizer.pad_token_id
        self.pad_id = self.eos_id if pad_id is None else int(pad_id)
        self.vocabulary_size = len(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


def load_tokenizer(path: str) -> Tokenizer:
    """The tokenizer that belongs to a model."""
    return CharacterTokenizer() if path == "tiny" else PretrainedTokenizer(path)


def save_tokenizer(path: str, folder: Path) -> None:
    """Keeps a model's tokenizer.json with a recording, so that its tokens can be shown as text."""
    folder.mkdir(exist_ok=True)
    file = folder / "tokenizer.json"
    if path == "tiny":
        file.write_text(CharacterTokenizer().to_json(), encoding="utf-8")
    elif (source := Path(path) / file.name).is_file():
        shutil.copyfile(source, file)
