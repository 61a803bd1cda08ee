"""Fields of a record that are not there yet when it is handed over."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Later:
    """Fields that a thread of the recorder makes, so that the training does not wait for them.

    `make` may read only what nobody changes any more, in host memory; `nbytes` is about what its fields hold.
    """

    make: Callable[[], Mapping[str, Any]]
    nbytes: int
