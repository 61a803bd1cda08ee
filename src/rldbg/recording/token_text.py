"""Token ids as text, by the tokenizer of the model that made a recording, where one is known.

It is looked for in the recording (`tokenizer/`, where our trainer and others put it), in the run folder, and where
the run's configuration says that the model is. Only `tokenizer.json` is read, by the tokenizers package.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rldbg.core import IncompleteDataError, PrerequisiteError, explained_as
from rldbg.recording.source import RecordSource
from rldbg.recording.tree import LocalTree

_FILE = "tokenizer.json"
_IN_FOLDER = f"tokenizer/{_FILE}"
# The keys under which configurations of frameworks name a model or its tokenizer, the more telling first.
_KEYS = (
    *("tokenizer_path", "tokenizer_name_or_path", "tokenizer", "tokenizer_name", "hf_checkpoint"),
    *("model_name_or_path", "model_path", "pretrain", "path", "name", "model"),
)


def find_tokenizer(recording: RecordSource) -> Path | None:
    """The tokenizer.json of the model that made the recording; None where nothing says which."""
    return next((file for file in _candidates(recording) if file.is_file()), None)


def _candidates(recording: RecordSource) -> Iterator[Path]:
    tree = recording.tree
    if isinstance(tree, LocalTree):
        yield from (tree.root / _IN_FOLDER, tree.root / _FILE)
    else:
        yield from (tree.local(fact.name) for fact in tree.files if fact.name in (_IN_FOLDER, _FILE))
    if recording.run is not None:
        yield recording.run.path / _IN_FOLDER
    with contextlib.suppress(IncompleteDataError):
        named = dict(_named_models(recording.run_facts().get("config")))
        for key in _KEYS:
            for name in named.get(key, ()):
                yield from _files_of(name)


def _named_models(config: Any) -> Iterator[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    waiting = [config]
    while waiting:
        block = waiting.pop()
        for key, value in block.items() if isinstance(block, Mapping) else ():
            if isinstance(value, Mapping):
                waiting.append(value)
            elif isinstance(value, str) and value and str(key) in _KEYS:
                found.setdefault(str(key), []).append(value)
    yield from found.items()


def _files_of(model: str) -> Iterator[Path]:
    """The tokenizer of a model's folder, or of a model that the Hugging Face cache holds."""
    yield Path(model) / _FILE
    if Path(model).is_absolute():
        return
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return
    with contextlib.suppress(HFValidationError):
        cached = try_to_load_from_cache(model, _FILE)
        if isinstance(cached, str):
            yield Path(cached)


class TokenText:
    """The text of each token of a sequence, special tokens included."""

    def __init__(self, file: Path) -> None:
        message = "showing tokens as text needs the tokenizers package"
        with explained_as(PrerequisiteError, ImportError, message, "pip install tokenizers"):
            from tokenizers import Tokenizer
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises bare Exception for a file that it cannot read
            raise IncompleteDataError(f"cannot read the tokenizer {file}: {error}", "give another one") from error

    def of(self, tokens: Sequence[int]) -> list[str]:
        """A token that the tokenizer does not have is shown as ⟨id⟩."""
        return [self._text(before, token) for before, token in pairwise([None, *tokens])]

    def _text(self, before: int | None, token: int | None) -> str:
        if token is None or token < 0 or self._tokenizer.id_to_token(token) is None:
            return f"⟨{token}⟩"
        alone = self._decode([token])
        if before is None or before < 0:
            return alone
        # Decoders drop a space at the beginning, so a token is decoded together with the one before it.
        both, first = self._decode([before, token]), self._decode([before])
        return both.removeprefix(first) if both.startswith(first) and "\ufffd" not in both else alone

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))
