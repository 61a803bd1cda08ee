"""`rldbg tunnel`: the dashboard and the broker of a cluster on ports of this machine."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_note, show
from rldbg.core import Environment, ExitCode, UnreachableError, UsageError

if TYPE_CHECKING:
    from rldbg.launch.tunnel import Route, Slurm, SlurmJob


@verb("tunnel")
@click.argument("job", required=False)
@click.option("--port", type=click.IntRange(1, 65535), help="Port on this machine.  [default: the same, or a free one]")
@click.option("--dashboard-port", type=click.IntRange(1, 65535), help="Port of the dashboard.  [default: detected]")
@click.option("--login", help="Login node, if Slurm's commands are not on this machine.")
@click.option("--jump", default="", help="Jump host, as for ssh -J.")
@click.option("--run", "run_folder", default="", help="Run folder on the cluster, to forward its broker too.")
@click.option("--k8s", help="NAMESPACE/RAYCLUSTER: forward with kubectl instead of ssh.")
@click.option("--ssh", default="ssh", show_default=True, help="ssh command, with its options.")
@click.option("--print", "only_print", is_flag=True, help="Print the forwarding command; do not run it.")
def command(
    job: str | None,
    port: int | None,
    dashboard_port: int | None,
    login: str | None,
    jump: str,
    run_folder: str,
    k8s: str | None,
    ssh: str,
    only_print: bool,
    as_json: bool,
) -> int:
    """Forward the Ray dashboard (and rldbg's broker) of a Slurm JOB or a Kubernetes RayCluster to this machine.

    Without JOB, use your running job; with several, you choose. Runs until interrupted or until the job ends.

    \b
    rldbg tunnel 2504248 --port 52640      a Slurm job
    rldbg tunnel --k8s training/ray-math   a RayCluster
    """
    from rldbg.launch.tunnel import Host, RayCluster, Slurm, Wish, kubernetes_route, slurm_route

    wish = Wish(port or 0, dashboard_port or 0, jump, run_folder)
    if k8s:
        if job or login:
            raise UsageError("--k8s is mutually exclusive with a Slurm job and --login", "give one of them")
        route = kubernetes_route(RayCluster.parse(k8s), wish)
    else:
        slurm = Slurm(Host(tuple(shlex.split(ssh)), login or ""))
        route = slurm_route(slurm.find(job) if job else _choose(slurm), slurm, wish)
    if only_print:
        return _print_command(route, as_json)
    return _forward(route, as_json)


def _choose(slurm: "Slurm") -> "SlurmJob":
    """The one running job, or the one that the user picks."""
    jobs = slurm.jobs()
    running = [job for job in jobs if job.is_running]
    if len(running) == 1:
        return slurm.check(running[0])
    if not running:
        waiting = "; ".join(str(job) for job in jobs)
        raise UnreachableError("you have no running job", f"in the queue: {waiting}" if waiting else "submit one first")
    if not sys.stdin.isatty():
        listing = "; ".join(str(job) for job in running)
        raise UsageError(f"you have {len(running)} running jobs: {listing}", f"rldbg tunnel {running[0].id}")
    for number, job in enumerate(running, start=1):
        print_note(f"{number}  {job}")
    chosen: int = click.prompt("which job", type=click.IntRange(1, len(running)), default=1, err=True)
    return slurm.check(running[chosen - 1])


def _print_command(route: "Route", as_json: bool) -> int:
    if not as_json:
        print_note(f"{route.goal}: {route.found}")
    show(route.to_dict(), as_json, lambda: [shlex.join(route.command)])
    return ExitCode.OK


def _forward(route: "Route", as_json: bool) -> int:
    from rldbg.launch.tunnel import KeptTunnel, alias_folder, dashboard_answers, write_alias
    from rldbg.reports.launch import tunnel_lines

    tunnel = KeptTunnel(
        route.command,
        say=lambda text: print_note(f"rldbg: {text}"),
        goal_exists=route.goal_exists,
        answers=lambda: dashboard_answers(route.dashboard.local),
    )
    tunnel.open()
    try:
        alias = ""
        if route.broker is not None:
            home = Path(Environment().text("RLDBG_HOME"))
            folder = alias_folder(route, home)
            alias = str(write_alias(route.broker, route.broker_port, name="tunnel", folder=folder))
        show(route.to_dict() | {"broker_run": alias or None}, as_json, lambda: tunnel_lines(route, alias))
        sys.stdout.flush()
        why = tunnel.keep()
        print_note(f"rldbg: {why}; the tunnel is closed")
    finally:
        tunnel.close()
    return ExitCode.OK
