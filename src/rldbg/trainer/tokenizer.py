"""Text to token ids and back: a character tokenizer made in code, or a model's own from its folder."""

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
    """One token a character; id 0 pads and id 1 ends a text."""

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
