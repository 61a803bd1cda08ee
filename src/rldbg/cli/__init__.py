"""The command line: `main` is the entry point, one thin file per verb, `output` is the only place that prints."""

import gc
import os
import sys
from collections.abc import Sequence
from typing import Never


def main(arguments: Sequence[str] | None = None) -> Never:
    """Run one verb, of the process's own command line by default, and leave with its exit code."""
    # Modules and results live until the end: collecting cycles among them is an eighth of a short verb's time.
    gc.set_threshold(500_000, 20, 20)
    _repair_streams()
    from rldbg.cli.application import run

    code = run(sys.argv[1:] if arguments is None else arguments)
    gc.freeze()
    sys.exit(code)


def _repair_streams() -> None:
    """A closed stream (`>&-`, a daemon) is /dev/null; a character that a stream's encoding lacks is escaped."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            # The lowest free number, so this one: no file that is opened later may take a stream's place.
            assert os.open(os.devnull, os.O_RDWR) == number
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8"))
        elif number:
            stream.reconfigure(errors="backslashreplace")


__all__ = ["main"]
