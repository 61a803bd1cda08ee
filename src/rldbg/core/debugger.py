"""A call under pdb, as `--pdb` of a verb makes it."""

import pdb
from collections.abc import Callable
from typing import Any


class _Pdb(pdb.Pdb):
    """pdb that knows whether its user left before the call came to its end."""

    has_quit = False

    def set_quit(self) -> None:
        self.has_quit = True
        super().set_quit()


def call_under_pdb(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Stops at the function's first line; leaving the debugger ends the verb as Ctrl-C does."""
    debugger = _Pdb()
    result = debugger.runcall(function, *arguments, **named)
    if debugger.has_quit:
        raise KeyboardInterrupt
    return result
