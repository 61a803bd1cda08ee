"""New weights for a model that is loaded, from safetensors files or from tensors: nothing that could run code is read.

Everything is checked before anything is changed: a model is never left with half of an update.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rldbg.inference.request_error import RequestError


class WeightFiles:
    """The tensors of some safetensors files, by name; each is read when it is copied."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    @classmethod
    def of_file(cls, file: Path) -> "WeightFiles":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, framework="pt") as tensors:
                return cls(dict.fromkeys(tensors.keys(), file))
        except (SafetensorError, OSError) as error:
            raise RequestError(f"{file.name} is not a safetensors file: {error}") from error

    @classmethod
    def of_folder(cls, folder: Path) -> "WeightFiles":
        """A Hugging Face folder: one file, or several with an index."""
        try:
            return cls._listed(folder)
        except (OSError, ValueError) as error:
            raise RequestError(f"no weights at {str(folder)[:200]!r}: {str(error)[:200]}") from error

    @classmethod
    def _listed(cls, folder: Path) -> "WeightFiles":
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            try:
                names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                files = {str(name): folder / Path(str(file)).name for name, file in names.items()}
            except (OSError, ValueError, KeyError, AttributeError) as error:
                raise RequestError(f"{index} is damaged: {error}") from error
            missing = next((file for file in files.values() if not file.is_file()), None)
            if missing is not None:
                raise RequestError(f"{index} names {missing.name}, which does not exist")
            return cls(files)
        files_here = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
        if not files_here:
            raise RequestError(f"no weights at {folder}: no *.safetensors file (pickled weights are not read)")
        return cls({name: file for part in files_here for name, file in cls.of_file(part)._files.items()})

    def names(self) -> list[str]:
        return list(self._files)

    @contextmanager
    def opened(self) -> Iterator[Any]:
        from safetensors import safe_open

        with ExitStack() as stack:
            handles = {file: stack.enter_context(safe_open(file, framework="pt")) for file in set(self._files.values())}
            yield _OpenFiles({name: handles[file] for name, file in self._files.items()})


class _OpenFiles:
    def __init__(self, handles: Mapping[str, Any]) -> None:
        self._handles = handles

    def shape(self, name: str) -> list[int]:
        return list(self._handles[name].get_slice(name).get_shape())

    def tensor(self, name: str) -> Any:
        return self._handles[name].get_tensor(name)


class WeightTensors:
    """Tensors that are here already, by name."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = tensors

    def names(self) -> list[str]:
        return list(self._tensors)

    def opened(self) -> AbstractContextManager[Any]:
        return nullcontext(self)

    def shape(self, name: str) -> list[int]:
        return list(self._tensors[name].shape)

    def tensor(self, name: str) -> Any:
        return self._tensors[name]


def load_weights(model: Any, weights: WeightFiles | WeightTensors, *, partial: bool) -> None:
    """Copies the tensors into the model's own, in place. Without `partial`, each of the model's must be among them."""
    import torch

    own = model.state_dict()
    tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
    names = weights.names()
    unknown = [name for name in names if name not in own]
    if unknown or not names:
        raise RequestError(f"the model has no {unknown[0]!r}" if unknown else "there are no tensors")
    missing = [name for name in own if name not in set(names) and name not in tied]
    if missing and not partial:
        raise RequestError(f"the weights lack {missing[0]!r}" + (f" and {len(missing) - 1} more" * (len(missing) > 1)))
    with weights.opened() as tensors:
        for name in names:
            shape = tensors.shape(name)
            if shape != list(own[name].shape):
                raise RequestError(f"{name} is {shape}, the model's is {list(own[name].shape)}")
        with torch.no_grad():
            for name in names:
                own[name].copy_(tensors.tensor(name))
