"""From a job or a Ray cluster to the one command that forwards its ports."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rldbg.core import UnreachableError
from rldbg.launch.tunnel.broker_alias import RemoteBroker, find_broker
from rldbg.launch.tunnel.forwarding import PortForward, free_port, ssh_command
from rldbg.launch.tunnel.head import Head, HeadFinder
from rldbg.launch.tunnel.kubernetes import RayCluster
from rldbg.launch.tunnel.remote import Host
from rldbg.launch.tunnel.slurm import Slurm, SlurmJob

_DASHBOARD_PORT = 8265
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked of the tunnel. Ports of 0 are chosen."""

    local_port: int = 0
    dashboard_port: int = 0
    jump: str = ""
    run: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """A command that forwards ports, and what lies behind them."""

    command: list[str]
    dashboard: PortForward
    goal: str
    found: str
    goal_exists: Callable[[], bool] = field(repr=False, default=lambda: True)
    broker: RemoteBroker | None = None
    broker_port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard.local}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "goal": self.goal,
            "found": self.found,
            "url": self.url,
            "target": f"{self.dashboard.host}:{self.dashboard.port}",
            "command": self.command,
            "broker_port": self.broker_port or None,
        }


def slurm_route(job: SlurmJob, slurm: Slurm, wish: Wish) -> Route:
    """Through ssh to the job's head node, or through the login node alone if nodes refuse ssh."""
    finder = HeadFinder(job, slurm.host, jump=wish.jump, port=wish.dashboard_port)
    head = finder.find()
    dashboard = PortForward(_local(wish, head.port), head.target, head.port)
    forwards = [dashboard]
    broker = find_broker(slurm.host, job.work_dir, wish.run)
    broker_port = 0
    if broker is not None:
        broker_port = free_port(broker.port, is_wish=True)
        forwards.append(PortForward(broker_port, "localhost" if broker.host in _LOOPBACK else broker.host, broker.port))
    destination, jump, forwards = _way(finder, head, forwards, slurm.host)
    return Route(
        ssh_command(slurm.host.ssh, destination, forwards, jump),
        forwards[0],
        goal=f"job {job.id} ({job.name})",
        found=f"head {head.node}: {head.how}",
        goal_exists=lambda: slurm.is_running(job.id),
        broker=broker,
        broker_port=broker_port,
    )


def _way(
    finder: HeadFinder, head: Head, forwards: list[PortForward], login: Host
) -> tuple[str, str, list[PortForward]]:
    if head.reached_by_ssh:
        host = finder.node_host(head.node)
        return host.name, host.jump, forwards
    if not login.name:
        raise UnreachableError(
            f"ssh to the head node {head.node} of the job is refused, and forwarding needs it",
            f"the dashboard may be reachable directly: http://{head.node}:{head.port}",
        )
    # The login node itself can reach the compute nodes' addresses, though not their loopback.
    seen = [
        PortForward(forward.local, head.node if forward.host == "localhost" else forward.host, forward.port)
        for forward in forwards
    ]
    return login.name, login.jump, seen


def kubernetes_route(cluster: RayCluster, wish: Wish) -> Route:
    pod = cluster.head_pod()
    port = wish.dashboard_port or _DASHBOARD_PORT
    dashboard = PortForward(_local(wish, port), "localhost", port)
    return Route(
        cluster.command(pod, [dashboard]),
        dashboard,
        goal=f"RayCluster {cluster.namespace}/{cluster.name}",
        found=f"head pod {pod}",
        goal_exists=cluster.exists,
    )


def _local(wish: Wish, port: int) -> int:
    return free_port(wish.local_port, is_wish=False) if wish.local_port else free_port(port, is_wish=True)


def alias_folder(route: Route, home: Path) -> Path:
    """Where the run folder of a forwarded broker is kept: one for each goal, used again by the next tunnel to it."""
    safe = "".join(letter if letter.isalnum() else "-" for letter in route.goal).strip("-")
    return home / "runs" / f"tunnel-{safe}"
