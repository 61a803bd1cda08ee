"""A model's tokenizer as servers need it, and text that grows token by token."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rldbg.inference.generation import Options, RequestError, Text

_CHAT = {"add_generation_prompt": True, "tokenize": False, "chat_template": None}


class PretrainedText:
    """A Hugging Face tokenizer from a model's folder."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return self._encoded(text, add_special_tokens=True)

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special))

    def chat(self, messages: Sequence[object], tools: Sequence[object] | None, options: Options = None) -> list[int]:
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise RequestError("the model's tokenizer has no chat template; use completions")
        try:
            prompt = self._tokenizer.apply_chat_template(
                list(messages), **{**(options or {}), "tools": list(tools) if tools else None, **_CHAT}
            )
        except (TemplateError, TypeError, AttributeError, KeyError, ValueError) as error:
            raise RequestError(f"the chat template does not take these messages: {error}") from error
        return self._encoded(prompt, add_special_tokens=False)

    def _encoded(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))


class NoText:
    """A model without a tokenizer: token ids in, token ids out."""

    def encode(self, text: str) -> list[int]:
        raise RequestError("the model has no tokenizer: send token ids")

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        return ""

    def chat(self, messages: Sequence[object], tools: Sequence[object] | None, options: Options = None) -> list[int]:
        raise RequestError("the model has no tokenizer: send token ids")


class UnreadText(NoText):
    """A recording whose tokenizer is not known: texts and conversations are told apart as they are written."""

    def encode(self, text: str) -> list[int]:
        return []

    def chat(self, messages: Sequence[object], tools: Sequence[object] | None, options: Options = None) -> list[int]:
        return []


def load_text(folder: Path) -> tuple[Text, Any]:
    """The tokenizer of a model's folder, and what it is made of; a model may have none."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return NoText(), None
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    return PretrainedText(tokenizer), tokenizer


class GrowingText:
    """Turns tokens into text as they come; a character whose bytes are not complete is held back."""

    def __init__(self, text: Text, *, skip_special: bool = True) -> None:
        self._text = text
        self._skip_special = skip_special
        self._tokens: list[int] = []
        self._given = 0
        self._settled = 0

    def add(self, tokens: Sequence[int]) -> str:
        """What these tokens add."""
        self._tokens += tokens
        # Decoding starts a few tokens back: far enough that a tokenizer's joining of neighbours is the same.
        before = self._decode(self._settled, self._given)
        now = self._decode(self._settled, len(self._tokens))
        if now.endswith("�"):
            return ""
        self._settled, self._given = max(0, self._given - 1), len(self._tokens)
        return now[len(before) :]

    def rest(self) -> str:
        """What is still held back when nothing more comes."""
        before = self._decode(self._settled, self._given)
        return self._decode(self._settled, len(self._tokens))[len(before) :]

    def _decode(self, start: int, end: int) -> str:
        return self._text.decode(self._tokens[start:end], skip_special=self._skip_special)
