"""Tokenizers for workflows: Hugging Face's own, or another one under the names that Hugging Face's have."""

from collections.abc import Sequence
from typing import Any

from rldbg.core import PrerequisiteError, UsageError


def pretrained_tokenizer(path: str) -> Any:
    """The tokenizer of a model's folder, or of a model in the local cache."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise PrerequisiteError("a tokenizer needs transformers", "pip install 'rldbg[train]'") from None
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"no tokenizer at {path!r}: {str(error)[:300]}", "give --tokenizer a model's folder"
        ) from error


class NamedAsHuggingFace:
    """A small tokenizer (encode, decode, pad_id, eos_id) with the attributes that workflows read."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.pad_token_id = int(tokenizer.pad_id)
        self.eos_token_id = int(tokenizer.eos_id)
        self.vocab_size = int(tokenizer.vocabulary_size)

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(self._tokenizer.encode(text))

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return str(self._tokenizer.decode([int(token) for token in tokens]))

    def batch_decode(self, rows: Sequence[Sequence[int]], **_: Any) -> list[str]:
        return [self.decode(row) for row in rows]

    def apply_chat_template(self, messages: Sequence[Any], **_: Any) -> list[int]:
        """The contents one after the other: such a tokenizer has no tokens for roles."""
        return self.encode("".join(str(message["content"]) for message in messages))
