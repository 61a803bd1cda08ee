"""`rldbg pause`: pause running processes."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.live_target import open_target, print_outcomes, target_options, tell_delay


@verb("pause", short_help="Pause running processes.")
@click.argument("who")
@target_options
def command(who: str, run_dir: Path | None, ray_url: str | None, as_json: bool) -> int:
    """Pause the running processes selected by WHO at their next line of Python.

    \b
    rldbg pause policy/1   one rank
    rldbg pause all        every process
    """
    with open_target(run_dir, ray_url) as client:
        processes = client.request("pause", who=who)["processes"]
        for process in processes:
            if process["pausing"]:
                tell_delay(client, process)
    return print_outcomes(processes, "paused", as_json=as_json)
