"""Reading the fields of a JSON body: each with its type and bounds, and an error that names the field."""

import math
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rldbg.inference.request_error import RequestError

MAX_SAMPLES = 1024
_MOST_TOKENS = 1 << 20
_T = TypeVar("_T")


class Fields:
    """A JSON object. A field that is absent or null has its default."""

    def __init__(self, body: Mapping[str, Any], place: str = "") -> None:
        self._body = body
        self._place = place

    def has(self, name: str) -> bool:
        return self._body.get(name) is not None

    def raw(self, name: str) -> Any:
        return self._body.get(name)

    def integer(self, name: str, default: int, *, least: int = 0, most: int = _MOST_TOKENS) -> int:
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(name, f"an integer from {least} to {most}")
        return value

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(name, "a number")
        if not least <= value <= most:
            raise self._wrong(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        return self._checked(name, default, lambda value: isinstance(value, bool), "true or false")

    def text(self, name: str, default: str = "") -> str:
        return self._checked(name, default, lambda value: isinstance(value, str), "a string")

    def optional_text(self, name: str) -> str | None:
        """A text or a number, as text."""
        value = self._body.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int | None):
            raise self._wrong(name, "a string")
        return None if value is None else str(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """One text or a list of them; empty ones are left out."""
        value = self._body.get(name)
        items = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise self._wrong(name, "a string or a list of strings")
        return tuple(item for item in items if item)

    def tokens(self, name: str) -> tuple[int, ...]:
        return tuple(self._checked(name, (), is_tokens, "a list of token ids"))

    def object(self, name: str) -> Mapping[str, Any]:
        return self._checked(name, {}, lambda value: isinstance(value, dict), "an object")

    def inner(self, name: str) -> "Fields":
        return Fields(self.object(name), f"{self._place}{name}.")

    def overlaid(self, name: str) -> "Fields":
        """These fields, where those of the inner object come first."""
        return Fields(ChainMap(self.object(name), self._body), self._place)  # type: ignore[arg-type]

    def _checked(self, name: str, default: _T, fits: Callable[[Any], bool], wanted: str) -> _T:
        value = self._body.get(name)
        if value is not None and not fits(value):
            raise self._wrong(name, wanted)
        return default if value is None else value

    def _wrong(self, name: str, wanted: str) -> RequestError:
        shown = repr(self._body.get(name))
        return RequestError(f"{self._place}{name} is {shown[:80]}; it must be {wanted}")


def is_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and -(1 << 31) <= item < 1 << 31 for item in value)
