"""The broker as an operating-system process: started detached, found through RUN/broker.json, stopped by asking it.

RUN/broker.json (mode 0600) holds address, token and process id; RUN/broker.lock is held while the broker exists. The
token is passed through that file only: never as an argument, in an environment or in a log.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from rldbg.agent import PROTOCOL, addresses_for, outward_addresses, outward_addresses_v6
from rldbg.core import write_whole
from rldbg.live.broker import Broker
from rldbg.live.broker_lock import TakenError, broker_lock

FILE = "broker.json"
_FAREWELL_S = 600.0
_CLUSTER_SILENCE_S = 60.0
_ASKED_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How a broker process listens and when it ends by itself."""

    run: Path
    host: str = "127.0.0.1"
    port: int = 0
    owner_pid: int = 0
    ray_url: str = ""
    replaces: bool = False


def serve(options: ServiceOptions) -> None:
    """Runs a broker in this process until it is told to stop or is no longer needed."""
    os.umask(0o077)
    (options.run / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
    logging.basicConfig(
        filename=options.run / "logs" / "broker.log", level=logging.INFO, format="%(asctime)s %(message)s"
    )
    # Terminals and schedulers send SIGHUP to whole sessions; that must not resume paused ranks.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with broker_lock(options.run):
            asyncio.run(_serve(options))
    except TakenError:
        # Another process has started one at the same moment.
        return


async def _serve(options: ServiceOptions) -> None:
    token = secrets.token_urlsafe(32)
    broker = Broker(token=token, run=options.run, replaces=options.replaces)
    state = broker.state
    state.sessions.breaks.keep_in(options.run / "breakpoints.json", owner=options.owner_pid)
    state.holds.keep_in(options.run / "exception_holds.json", state.sessions.files, owner=options.owner_pid)
    if options.ray_url:
        # A broker of a run never needs these, and starts faster without them.
        from rldbg.live.external_ray.attached_workers import AttachedWorkers
        from rldbg.live.external_ray.dashboard import Dashboard

        state.external = AttachedWorkers(Dashboard(options.ray_url), state.processes, state.sessions)
    servers = [await asyncio.start_server(broker.accept, options.host, options.port, backlog=1024)]
    loop = asyncio.get_running_loop()
    if not options.owner_pid:
        # `rldbg run` restarts its broker: `pkill python` in its script must not resume stopped ranks.
        loop.add_signal_handler(signal.SIGTERM, state.stopping.set)
    file = options.run / FILE
    port = servers[0].sockets[0].getsockname()[1]
    write_whole(file, _published(_reachable(options.host), port, token, options.owner_pid), mode=0o600)

    wider: list[str] = []
    refused: set[str] = set()

    async def widen(address: str) -> None:
        """A broker on loopback is reached by this host alone; agents elsewhere read the new address in the file."""
        known = address in wider or address in refused
        if not options.host.startswith("127.") or known or address.startswith("127."):
            return
        lost = "breakpoints on other hosts are skipped"
        try:
            servers.append(await asyncio.start_server(broker.accept, address, port, backlog=1024))
        except OSError as error:
            hint = "`rldbg run --listen ADDRESS` chooses another address"
            refused.add(address)
            state.sessions.files.report(address, f"cannot listen at {address}:{port} ({error}): {lost}; {hint}")
            return
        wider.append(address)
        state.sessions.files.write(file, _published(wider, port, token, options.owner_pid), lost, mode=0o600)

    async def widen_when_asked() -> None:
        while options.host.startswith("127."):
            await asyncio.sleep(_ASKED_EVERY_S)
            for address in addresses_for(options.run):
                await widen(address)

    state.widen = widen
    work = (state.watch(), widen_when_asked(), _end_when_unneeded(broker, options))
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await state.stopping.wait()
    finally:
        with contextlib.suppress(OSError):
            file.unlink()
        state.sessions.breaks.forget_file()
        state.holds.forget_file()
        for task in tasks:
            task.cancel()
        for server in servers:
            server.close()
        state.farewell()


async def _end_when_unneeded(broker: Broker, options: ServiceOptions) -> None:
    """Ends with the process that owns the run, once its agents have disconnected; without an owner, after a long idle
    time."""
    owner = _process(options.owner_pid)
    while True:
        await asyncio.sleep(1.0)
        if broker.clients or _is_needed(broker):
            broker.last_contact = time.monotonic()
            continue
        owner_is_gone = bool(options.owner_pid) and (owner is None or not owner.is_running())
        patience = _CLUSTER_SILENCE_S if options.ray_url else _FAREWELL_S
        if owner_is_gone or time.monotonic() - broker.last_contact > patience:
            broker.state.stopping.set()


def _process(pid: int) -> psutil.Process | None:
    """The process with its start time: process ids are reused."""
    try:
        return psutil.Process(pid) if pid else None
    except psutil.NoSuchProcess:
        return None


def _is_needed(broker: Broker) -> bool:
    """Whether agents are connected, or workers of an external Ray cluster are held."""
    return any(process.agent is not None or process.session is not None for process in broker.state.processes)


def _published(hosts: list[str], port: int, token: str, owner_pid: int) -> str:
    """Of several addresses, agents and clients take the first that leads here from where they are."""
    who = {"schema_version": 1, "protocol": PROTOCOL, "pid": os.getpid(), "node": socket.gethostname()}
    return json.dumps(who | {"host": hosts[0], "hosts": hosts, "port": port, "token": token, "owner_pid": owner_pid})


def _reachable(host: str) -> list[str]:
    """The addresses that others can dial when the broker listens on all of them. The host's name would not do: many
    hosts resolve their own to loopback."""
    if host == "::":
        # All interfaces of IPv6, and no other.
        return outward_addresses_v6() or ["::1"]
    return [host] if host not in ("0.0.0.0", "") else outward_addresses() or [os.uname().nodename]


def main() -> None:
    """`python -m rldbg.live.service OPTIONS_AS_JSON`."""
    given = json.loads(sys.argv[1])
    serve(ServiceOptions(**{**given, "run": Path(given["run"])}))


if __name__ == "__main__":
    main()
