"""`rldbg continue`: resume stopped processes."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.live_target import open_target, print_outcomes, target_options


@verb("continue", short_help="Resume stopped processes.")
@click.argument("who", default="all")
@target_options
def command(who: str, run_dir: Path | None, ray_url: str | None, as_json: bool) -> int:
    """Resume the stopped processes selected by WHO (default: all).

    \b
    rldbg continue              every stopped process
    rldbg continue policy/0:4   four ranks
    """
    with open_target(run_dir, ray_url) as client:
        processes = client.request("continue", who=who)["processes"]
    return print_outcomes(processes, "resumed", as_json=as_json)
