"""How a damaged or hostile file becomes one kind of error, with its name, the reason and what to try next."""

import pickle
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rldbg.core import IncompleteDataError

# What the decoders raise for invalid bytes. Anything else is a bug of ours.
_DECODER_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
    zlib.error,
)

_DAMAGED_HINT = "the file is damaged or was not written to its end: copy it again, or record the step again"


class Malformed(Exception):
    """Bytes that cannot be what they claim to be. Raised near the cause, without knowing the file's name."""

    def __init__(self, reason: str, hint: str = _DAMAGED_HINT) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


@contextmanager
def reading(name: str | Path) -> Iterator[None]:
    """Everything that goes wrong inside is an IncompleteDataError about this file."""
    try:
        yield
    except Malformed as error:
        raise IncompleteDataError(f"{name}: {error.reason}", error.hint) from error
    except FileNotFoundError as error:
        raise IncompleteDataError(f"{name}: no such file", "rldbg show DIR lists its records") from error
    except (PermissionError, IsADirectoryError) as error:
        raise IncompleteDataError(f"{name}: {error.strerror}", "give the path of a file you may read") from error
    except _DECODER_ERRORS as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise IncompleteDataError(f"{name}: cannot be decoded ({reason[:300]})", _DAMAGED_HINT) from error
