"""Tunnels to a cluster: which node is the head, what it listens on, and a local port that leads there."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.launch.tunnel.broker_alias import write_alias
    from rldbg.launch.tunnel.forwarding import KeptTunnel, dashboard_answers
    from rldbg.launch.tunnel.kubernetes import RayCluster
    from rldbg.launch.tunnel.remote import Host
    from rldbg.launch.tunnel.route import Route, Wish, alias_folder, kubernetes_route, slurm_route
    from rldbg.launch.tunnel.slurm import Slurm, SlurmJob

__getattr__, __dir__ = lazy_names(__name__)
