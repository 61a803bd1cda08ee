"""`rldbg cast`: one command on many stopped ranks, the answers folded."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.cast_output import print_broadcast
from rldbg.cli.live_target import open_target, target_options
from rldbg.cli.output import print_json
from rldbg.core import ExitCode


@verb("cast", short_help="One command on many stopped ranks, the answers folded.")
@click.argument("who")
@click.argument("words", metavar="COMMAND", nargs=-1, required=True)
@target_options
@click.option("--wait", "wait_s", default=30.0, show_default=True, help="Seconds to wait for ranks to stop again.")
def command(
    who: str, words: tuple[str, ...], run_dir: Path | None, ray_url: str | None, wait_s: float, as_json: bool
) -> int:
    """One pdb COMMAND on every stopped process that WHO names.

    \b
    rldbg cast all "p loss"      equal answers once, odd ranks marked with !
    rldbg cast policy/0:4 n      four ranks step together
    """
    from rldbg.live import broadcast

    with open_target(run_dir, ray_url) as client:
        result = broadcast(client, who, " ".join(words), wait_s=wait_s)
    if as_json:
        print_json(result.to_dict())
    else:
        print_broadcast(result)
    return ExitCode.OK if result.ok else ExitCode.FINDING
