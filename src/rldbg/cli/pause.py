"""`rldbg pause`: stop running processes where they are."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.each_output import print_each
from rldbg.cli.live_target import open_target, target_options


@verb("pause", short_help="Stop running processes where they are.")
@click.argument("who")
@target_options
def command(who: str, run_dir: Path | None, ray_url: str | None, as_json: bool) -> int:
    """Stop every running process that WHO names, at its next line of Python."""
    with open_target(run_dir, ray_url) as client:
        processes = client.request("pause", who=who)["processes"]
    return print_each(processes, "stopped", as_json=as_json)
