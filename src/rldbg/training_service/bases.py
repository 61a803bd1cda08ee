"""The models a client may start from: the one the service was started with, and local Hugging Face folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rldbg.trainer import (
    ModelSettings,
    Tokenizer,
    build_model,
    check_model,
    choose_device,
    load_tokenizer,
    write_tiny_tokenizer,
)
from rldbg.training_service.errors import NotFoundError

TINY = "tiny"


@dataclass(frozen=True, slots=True)
class BaseModel:
    """What is known of a base model before any of its copies is built."""

    path: str
    tokenizer: Tokenizer
    tokenizer_path: str
    vocabulary_size: int
    max_length: int


class BaseModels:
    """Finds, describes and builds base models. `folder` holds what had to be made, such as tiny's tokenizer."""

    def __init__(
        self,
        served: str,
        folder: Path,
        *,
        aliases: Sequence[str] = (),
        dtype: Literal["float32", "bfloat16"] = "float32",
        device: Literal["auto", "cpu", "cuda"] = "auto",
    ) -> None:
        check_model(ModelSettings(path=served))
        self.served = served
        self._folder = folder
        self._dtype = dtype
        self._device = choose_device(device)
        self._aliases = {served, Path(served).name, *aliases}
        self._known: dict[str, BaseModel] = {}
        self.describe(served)

    @property
    def names(self) -> list[str]:
        return sorted(self._aliases)

    def describe(self, name: str) -> BaseModel:
        """The base model of that name; reading a folder for the first time takes a moment."""
        path = self.served if name in self._aliases else name
        if path not in self._known:
            self._known[path] = self._read(path)
        return self._known[path]

    def build(self, name: str, seed: int = 0) -> Any:
        """A fresh copy with its own parameters; tiny's are random, by the seed."""
        base = self.describe(name)
        settings = ModelSettings(path=base.path, dtype=self._dtype)
        return build_model(settings, vocabulary_size=base.vocabulary_size, seed=seed).to(self._device)

    def _read(self, path: str) -> BaseModel:
        if path == TINY:
            tokenizer = load_tokenizer(TINY)
            place = self._folder / "tiny-tokenizer"
            write_tiny_tokenizer(place)
            module = build_model(ModelSettings(), vocabulary_size=tokenizer.vocabulary_size, seed=0)
            limit = int(module.config.max_position_embeddings)
            return BaseModel(path, tokenizer, str(place), tokenizer.vocabulary_size, limit)
        if not (Path(path) / "config.json").is_file():
            names = ", ".join(self.names)
            raise NotFoundError(f"no base model {path!r} here: give {names}, or a local folder with a config.json")
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(path, local_files_only=True).get_text_config()
        return BaseModel(
            path=path,
            tokenizer=load_tokenizer(path),
            tokenizer_path=path,
            vocabulary_size=int(config.vocab_size),
            max_length=int(getattr(config, "max_position_embeddings", 1 << 20)),
        )
