"""How a framework calls its losses, so that `rldbg rerun --loss` can call one on a saved batch: the part `loss.py`.

A form is recognised by the names of a function's parameters. It gives those that the framework calls in its own way
(a configuration, a batch of its shape); all others are filled by name, as of any loss.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Everything a loss may ask for, by rldbg's names: tensors [rows, response columns] and [rows, columns].
Quantities = Mapping[str, Any]


class FrameworkLossSettings:
    """A framework's configuration as its losses read it: by attribute, by key, or by `get`."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self._name} has no {name}: give it with --set {self._name}.{name}=VALUE")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def get(self, name: str, default: Any = None) -> Any:
        return self.__dict__.get(name, default)


def responses_of(quantities: Quantities, name: str) -> "list[torch.Tensor]":
    """The response tokens of each sample, without padding."""
    lengths = quantities["response_lengths"].tolist()
    return [row[:length] for row, length in zip(quantities[name], lengths, strict=True)]


def sequences_of(quantities: Quantities) -> "list[torch.Tensor]":
    """The attended tokens of each sample."""
    attended = quantities["attention_mask"].bool()
    return [row[mask] for row, mask in zip(quantities["input_ids"], attended, strict=True)]


def first_of(returned: Any, _quantities: Quantities) -> Any:
    return returned


@dataclass(frozen=True, slots=True)
class LossForm:
    recognised_by: tuple[frozenset[str], ...]
    """Sets of parameter names; a function that has all of one set is called in this form."""
    needs: frozenset[str] = frozenset()
    """What `arguments` reads, by rldbg's names."""
    arguments: Mapping[str, Callable[[Quantities, Mapping[str, Any]], Any]] = field(default_factory=dict)
    """By parameter: its value, given the quantities and the settings under that parameter's name."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that are numbers or names, with what the framework has by default; `config.x` for an attribute."""
    result: Callable[[Any, Quantities], Any] = first_of
    """What the framework trains on, given what the function returned."""

    def fits(self, names: frozenset[str]) -> bool:
        return any(wanted <= names for wanted in self.recognised_by)

    def settings_of(self, parameter: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of a configuration, where given ones come first."""
        start = f"{parameter}."
        return {
            name.removeprefix(start): value
            for name, value in {**self.settings, **given}.items()
            if name.startswith(start)
        }
