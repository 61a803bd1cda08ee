"""Where the servers are: named on the command line, in AReaL's variable, or known to `rldbg serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rldbg.core import Environment, UnreachableError, UsageError

if TYPE_CHECKING:
    from rldbg.inference.registry import Registry, Server

VARIABLE = "AREAL_LLM_SERVER_ADDRS"
_START = "start one with `rldbg serve up --model tiny`"


def find_servers(addresses: str | None, name: str | None, environment: Environment | None = None) -> list[str]:
    """`addresses`, else those of the server of that name, else the variable's, else those of the only server."""
    environment = environment or Environment()
    if addresses and name:
        raise UsageError("--addrs and --server are mutually exclusive", "give one of them")
    if addresses is not None:
        return _listed(addresses, "--addrs")
    if name:
        return _running(_registry(environment).find(name))
    if environment.text(VARIABLE).strip():
        return _listed(environment.text(VARIABLE), VARIABLE)
    servers = [server for server in _registry(environment).servers() if server.backend != "train"]
    if not servers:
        raise UnreachableError(
            "no inference server given, and `rldbg serve` has none",
            f"{_START}, or give --addrs host:port or {VARIABLE}",
        )
    if len(servers) > 1:
        names = ", ".join(server.name for server in servers)
        raise UsageError(
            f"ambiguous: several servers are running: {names}", f"choose one with --server {servers[0].name}"
        )
    return _running(servers[0])


def _registry(environment: Environment) -> Registry:
    """Loaded when it is needed: servers named by their addresses need no psutil here."""
    from rldbg.inference.registry import Registry

    return Registry(Path(environment.text("RLDBG_HOME")))


def _listed(text: str, where: str) -> list[str]:
    addresses = [item.strip() for item in text.split(",") if item.strip()]
    if not addresses:
        raise UsageError(f"{where} names no server", "write host:port,host:port")
    return addresses


def _running(server: Server) -> list[str]:
    alive = [process.address for process in server.processes if process.state == "running" and process.address]
    if not alive:
        raise UnreachableError(
            f"server {server.name} is {server.state}", f"see `rldbg serve logs {server.name}`, then {_START}"
        )
    return alive
