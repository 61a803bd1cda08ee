"""What the threads and asyncio tasks of a process wait for, seen from inside or, through its memory, from outside.

Standard library only and relative imports only: the folder also travels to nodes where rldbg is not installed. Names
are loaded when first used: a process with an agent needs none of them until a request comes.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calls.looking import SHARED_BY_RAY
    from .calls.native_calls import add_native_waits, may_wait_for_gpu, may_wait_for_interpreter
    from .code.places import is_standard, is_users
    from .moving import mark_moved
    from .outside import look
    from .snapshot import add_own_waits
    from .thread_entries import RAYS_LOOP

__all__ = [
    "RAYS_LOOP",
    "SHARED_BY_RAY",
    "add_native_waits",
    "add_own_waits",
    "is_standard",
    "is_users",
    "look",
    "mark_moved",
    "may_wait_for_gpu",
    "may_wait_for_interpreter",
]
_MODULES = {
    "RAYS_LOOP": "thread_entries",
    "SHARED_BY_RAY": "calls.looking",
    "add_own_waits": "snapshot",
    "is_standard": "code.places",
    "is_users": "code.places",
    "look": "outside",
    "mark_moved": "moving",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'calls.native_calls')}"), name)
