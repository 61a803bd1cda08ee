"""`python -m rldbg.launcher.local SCRIPT --config FILE allocation_mode=sglang.d4p1t1 ...`: AReaL's first step.

The script is not run, and of the configuration only the allocation mode, the model and the engine's settings are used.
The servers stay when this has ended; `rldbg serve ls` lists them, `rldbg serve down NAME` ends them.
"""

import sys
from collections.abc import Sequence
from typing import Never

import click

from rldbg import cli


def main(arguments: Sequence[str]) -> Never:
    words = [word for word in arguments if "=" in word and not word.startswith("-")]
    rest = [word for word in arguments if word not in words]
    if rest and not rest[0].startswith("-"):
        click.echo(f"{rest[0]} is not run: only the servers of its configuration are started", err=True)
        rest = rest[1:]
    cli.main(["serve", "up", *rest, *(part for word in words for part in ("--set", word))])


if __name__ == "__main__":
    main(sys.argv[1:])
