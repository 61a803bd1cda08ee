"""A model's tokenizer as servers need it, and text that grows token by token."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rldbg.inference.generation import Ending, Options, Text
from rldbg.inference.request_error import RequestError

_CHAT = {"tokenize": False, "chat_template": None}


class PretrainedText:
    """A Hugging Face tokenizer from a model's folder."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @property
    def template(self) -> str:
        template = self._tokenizer.chat_template
        return "\n".join(template.values()) if isinstance(template, dict) else str(template or "")

    @cached_property
    def added(self) -> Mapping[str, int]:
        return {str(token): id for id, token in self._tokenizer.added_tokens_decoder.items()}

    @cached_property
    def special(self) -> frozenset[int]:
        return frozenset(id for id, token in self._tokenizer.added_tokens_decoder.items() if token.special)

    def constrained(self, size: int, end_ids: Sequence[int]) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise RequestError("constraints need a fast tokenizer (tokenizer.json), which this model does not have")
        if type(backend.decoder).__name__ in ("ByteLevel", "Sequence"):
            return LLTokenizer(backend.to_str(), n_vocab=size, eos_token=list(end_ids))
        return LLTokenizer(TokenizerWrapper(_WholeTokens(self, end_ids)), n_vocab=size, eos_token=list(end_ids))

    def encode(self, text: str) -> list[int]:
        return self._encoded(text, add_special_tokens=True)

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special))

    def chat(
        self,
        messages: Sequence[object],
        tools: Sequence[object] | None,
        options: Options = None,
        ending: Ending = "answer",
    ) -> list[int]:
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise RequestError("the model's tokenizer has no chat template; use completions")
        try:
            prompt = self._tokenizer.apply_chat_template(
                list(messages),
                **{
                    **(options or {}),
                    "tools": list(tools) if tools else None,
                    "add_generation_prompt": ending == "answer",
                    "continue_final_message": ending == "continue",
                    **_CHAT,
                },
            )
        except (TemplateError, TypeError, AttributeError, KeyError, ValueError) as error:
            raise RequestError(f"the chat template does not take these messages: {error}") from error
        return self._encoded(prompt, add_special_tokens=False)

    def _encoded(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))


class _WholeTokens:
    """A vocabulary whose tokens are whole texts, in the form of llguidance."""

    def __init__(self, text: PretrainedText, end_ids: Sequence[int]) -> None:
        self.eos_token_id, self.bos_token_id = end_ids[0], None
        self.special_token_ids = sorted(text.special)
        size = len(text._tokenizer)
        names = {id: name for name, id in text.added.items()}
        self.tokens = [names.get(id, text.decode([id], skip_special=False)).encode() for id in range(size)]
        self._encode = text.encode

    def __call__(self, text: bytes | str) -> list[int]:
        """Up to what the vocabulary has no token for: one for unknown text would not be that text."""
        whole = text.encode() if isinstance(text, str) else bytes(text)
        found, written = [], b""
        for token in self._encode(whole.decode()):
            written += self.tokens[token]
            if not whole.startswith(written):
                break
            found.append(token)
        return found


class NoText:
    """A model without a tokenizer: token ids in, token ids out."""

    template = ""
    added: Mapping[str, int] = MappingProxyType({})
    special: frozenset[int] = frozenset()

    def constrained(self, size: int, end_ids: Sequence[int]) -> Any:
        raise RequestError("the model has no tokenizer: its answers cannot be constrained")

    def encode(self, text: str) -> list[int]:
        raise RequestError("the model has no tokenizer: send token ids")

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        return ""

    def chat(
        self,
        messages: Sequence[object],
        tools: Sequence[object] | None,
        options: Options = None,
        ending: Ending = "answer",
    ) -> list[int]:
        raise RequestError("the model has no tokenizer: send token ids")


class UnreadText(NoText):
    """A recording whose tokenizer is not known: texts and conversations are told apart as they are written."""

    def encode(self, text: str) -> list[int]:
        return []

    def chat(
        self,
        messages: Sequence[object],
        tools: Sequence[object] | None,
        options: Options = None,
        ending: Ending = "answer",
    ) -> list[int]:
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
