"""The command line: `main` is the entry point, one thin file per verb, `output` is the only place that prints."""

import sys


def main() -> None:
    """Runs one verb and leaves with its exit code."""
    from rldbg.cli.application import run

    sys.exit(run(sys.argv[1:]))


__all__ = ["main"]
