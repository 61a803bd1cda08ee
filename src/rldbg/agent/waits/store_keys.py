"""Keys of torch.distributed stores that the current functions will set, themselves or by functions that they call."""

import ast
from collections.abc import Sequence

from .called import calls_ahead
from .kernel import Facts
from .objects import Frame, is_a
from .places import is_users
from .resolving import resolve, texts_of
from .source import SETTING, Sources


def keys_ahead(frames: Sequence[Frame], sources: Sources) -> dict[str, Facts]:
    """Where each key will be set; of one that is not known yet, how it is written (`f'weights/{step}'`)."""
    own = [frame for frame in frames if is_users(frame.file)]
    found: dict[str, Facts] = {}
    for frame, inner in zip(own, (None, *own), strict=False):
        for place, call in calls_ahead(frame, inner, sources):
            setter = call.func if isinstance(call.func, ast.Attribute) and call.args else None
            if setter is None or setter.attr not in SETTING or not is_a(resolve(setter.value, place), "Store"):
                continue
            line = {"file": place.file, "line": call.lineno, "function": place.function}
            found |= {key: line for key in texts_of(call.args[0], place) if key not in found}
    return found
