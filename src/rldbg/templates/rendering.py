"""A tokenizer with its chat template: conversations to text, text to tokens and back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rldbg.core import PrerequisiteError, UsageError
from rldbg.templates.conversations import TemplateMessage


class RenderingError(Exception):
    """The template does not take a conversation; the message is the template's own."""


class ChatTemplate:
    """Renders as trainers do: the template writes all special tokens, and encoding adds none."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.bos_id: int | None = tokenizer.bos_token_id
        self.eos_id: int | None = tokenizer.eos_token_id
        self.special_ids = frozenset(tokenizer.all_special_ids) | frozenset(tokenizer.get_added_vocab().values())
        self.source = str(tokenizer.chat_template)

    def text(
        self, messages: Sequence[TemplateMessage], tools: Sequence[Any] = (), *, start_answer: bool = False
    ) -> str:
        """The conversation as text; `start_answer` adds what an assistant turn begins with."""
        try:
            rendered = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=start_answer
            )
        except Exception as error:  # a template is a program: it raises whatever its author chose
            raise RenderingError(f"{type(error).__name__}: {error}") from error
        return str(rendered)

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def marked_tokens(self, messages: Sequence[TemplateMessage], tools: Sequence[Any]) -> list[bool]:
        """Which tokens `{% generation %}` marks as the assistant's."""
        made = self._tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, return_dict=True, return_assistant_tokens_mask=True
        )
        return [bool(mark) for mark in made["assistant_masks"]]


def load_template(model: str, *, template: Path | None = None) -> ChatTemplate:
    """The tokenizer of a folder or of a hub name in the local cache, with its own template or another."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise PrerequisiteError("check-template needs transformers", "pip install 'rldbg[train]'") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, ... for what it cannot load
        first = (str(error).splitlines() or [type(error).__name__])[0]
        fetch = "" if Path(model).exists() else f"give a folder, or fetch it first: hf download {model}"
        raise UsageError(f"cannot load the tokenizer of {model!r}: {first}", fetch) from error
    if template is not None:
        try:
            tokenizer.chat_template = template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the template {template}: {error}") from error
    if not tokenizer.chat_template:
        raise UsageError(f"the tokenizer of {model!r} has no chat template", "give one with --template FILE.jinja")
    if isinstance(tokenizer.chat_template, dict):
        tokenizer.chat_template = tokenizer.get_chat_template()
    return ChatTemplate(tokenizer)
