"""`rldbg cast`: run one command on many stopped ranks and group identical answers."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.live_target import open_target, print_broadcast, target_options
from rldbg.cli.output import print_json
from rldbg.core import ExitCode


@verb("cast", short_help="Run one command on many stopped ranks and group identical answers.")
@click.argument("who")
@click.argument("words", metavar="COMMAND", nargs=-1, required=True)
@target_options
@click.option("--wait", "wait_s", default=30.0, show_default=True, help="Seconds to wait for ranks to stop again.")
def command(
    who: str, words: tuple[str, ...], run_dir: Path | None, ray_url: str | None, wait_s: float, as_json: bool
) -> int:
    """Run one pdb COMMAND in every stopped process selected by WHO.

    \b
    rldbg cast all "p loss"      identical answers once, odd ranks marked !
    rldbg cast policy/0:4 n      four ranks step together
    """
    from rldbg.live import broadcast

    with open_target(run_dir, ray_url) as client:
        result = broadcast(client, who, " ".join(words), wait_s=wait_s)
    print_json(result.to_dict()) if as_json else print_broadcast(result)
    return ExitCode.OK if result.ok else ExitCode.FINDING
