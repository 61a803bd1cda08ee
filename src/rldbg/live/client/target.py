"""The broker that a live verb talks to: a run's, or the one attached to a Ray cluster that rldbg did not start."""

import os
import re
from pathlib import Path
from tempfile import gettempdir

from rldbg.core import Environment, PrerequisiteError, Run, UnreachableError
from rldbg.live.client.broker_client import BrokerClient, is_being_replaced
from rldbg.live.client.broker_process import is_alive, start_broker


def find_run(path: Path | None) -> Path:
    """The run that is given, else the one this process belongs to, else the newest with a live broker."""
    if path is not None:
        return path
    environment = Environment()
    if joined := environment.text("RLDBG_RUN"):
        return Path(joined)
    if live := live_runs():
        return live[0]
    raise UnreachableError(
        f"no run under {_runs()} has a live broker",
        "give --run DIR, or --ray http://HOST:8265 for a Ray cluster that rldbg did not start",
    )


def live_runs() -> list[Path]:
    """The runs of this folder with a live broker, or whose killed one is being replaced; the newest first."""
    files = sorted(_runs().glob("*/broker.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    return [file.parent for file in files if is_alive(file.parent) or is_being_replaced(file.parent)]


def _runs() -> Path:
    return Path(Environment().text("RLDBG_HOME")) / "runs"


def connect_target(run_dir: Path | None, ray_url: str | None) -> BrokerClient:
    """A client of the selected run's broker, or of the broker attached to a Ray cluster that rldbg did not start."""
    if ray_url is None and run_dir is None:
        try:
            return BrokerClient(find_run(None))
        except UnreachableError:
            ray_url = _address_of_ray(Environment().text("RAY_ADDRESS"))
            if not ray_url:
                raise
    return BrokerClient(find_run(run_dir)) if ray_url is None else _client_for_ray(ray_url)


def _client_for_ray(url: str) -> BrokerClient:
    """One broker per user and cluster: all terminals of a user share its debug sessions."""
    # Not loaded by verbs that talk to a run.
    from rldbg.live.external_ray.dashboard import Dashboard

    dashboard = Dashboard(url)
    folder = _runtime_folder() / f"ray-{re.sub(r'[^A-Za-z0-9.]+', '-', dashboard.url.partition('://')[2])}"
    if not is_alive(folder):
        # Checked here, where the user can read the error, and not in the background.
        dashboard.version()
        start_broker(Run.create(name="ray", path=folder), ray_url=dashboard.url)
    return BrokerClient(folder)


def _address_of_ray(address: str) -> str:
    """The dashboard behind RAY_ADDRESS, which names either it or the cluster's own port."""
    if not address or address == "auto" or address.startswith("ray://"):
        return ""
    return address if address.startswith("http") else f"http://{address.partition(':')[0]}:8265"


def _runtime_folder() -> Path:
    """A folder of this user's alone, outside any project."""
    folder = Path(gettempdir()) / f"rldbg-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if facts.st_uid != os.getuid() or not folder.is_dir() or facts.st_mode & 0o077:
        raise PrerequisiteError(f"{folder} is not a private folder of yours", f"remove it: rm -r {folder}")
    return folder
