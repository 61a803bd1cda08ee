"""`rldbg continue`: let stopped processes go on."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.each_output import print_each
from rldbg.cli.live_target import open_target, target_options


@verb("continue", short_help="Let stopped processes go on.")
@click.argument("who", default="all")
@target_options
def command(who: str, run_dir: Path | None, ray_url: str | None, as_json: bool) -> int:
    """Let every stopped process that WHO names go on (default: all)."""
    with open_target(run_dir, ray_url) as client:
        processes = client.request("continue", who=who)["processes"]
    return print_each(processes, "goes on", as_json=as_json)
