"""The exception that ended the main program of a process that is still there: Python keeps it in `sys`."""

from collections.abc import Mapping
from typing import Any

from .objects import Frame, Object
from .places import users_place


def last_exception(modules: Mapping[str, Object]) -> dict[str, Any] | None:
    """Type, message and line of the user's code; None when nothing was raised."""
    module = modules.get("sys")
    error = (module.get("last_exc") or module.get("last_value")) if module is not None else None
    if error is None or error.kind == "NoneType":
        return None
    arguments = error.get("args")
    first = next(iter(arguments.elements()), None) if arguments is not None else None
    text = (first.text() if first is not None else None) or ""
    frames: list[Frame] = error.raised_in()
    user = users_place(frames)
    place = frames[user or 0] if frames else None
    found: dict[str, Any] = {"message": f"{error.kind}: {text}" if text else error.kind}
    if place is not None:
        found["place"] = {"file": place.file, "line": place.line, "function": place.function}
    return found
