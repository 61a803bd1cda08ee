"""The options by which every live verb finds its processes: a run of ours, or a Ray cluster that we did not start."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rldbg.live import BrokerClient


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --run and --ray."""
    run = click.option(
        "--run",
        "run_dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="The run folder. Default: the run we are inside of, else the newest one with a live broker.",
    )
    ray = click.option(
        "--ray",
        "ray_url",
        metavar="URL",
        help="The dashboard of a Ray cluster that rldbg did not start, for example http://127.0.0.1:8265.",
    )
    return run(ray(function))


def open_target(run_dir: Path | None, ray_url: str | None) -> "BrokerClient":
    """A client of the broker that knows the processes meant."""
    from rldbg.live import connect_target

    return connect_target(run_dir, ray_url)
