"""The command line: `main` is the entry point, one thin file per verb, `output` is the only place that prints."""

import gc
import sys
from collections.abc import Sequence
from typing import Never


def main(arguments: Sequence[str] | None = None) -> Never:
    """Run one verb, of the process's own command line by default, and leave with its exit code."""
    # Modules and results live until the end: collecting cycles among them is an eighth of a short verb's time.
    gc.set_threshold(500_000, 20, 20)
    from rldbg.cli.application import run

    code = run(sys.argv[1:] if arguments is None else arguments)
    gc.freeze()
    sys.exit(code)


__all__ = ["main"]
