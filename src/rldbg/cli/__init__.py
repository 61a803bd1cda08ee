"""The command line: `main` is the entry point, one thin file per verb, `output` is the only place that prints."""

import sys
from collections.abc import Sequence
from typing import Never


def main(arguments: Sequence[str] | None = None) -> Never:
    """Run one verb, of the process's own command line by default, and leave with its exit code."""
    from rldbg.cli.application import run

    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


__all__ = ["main"]
