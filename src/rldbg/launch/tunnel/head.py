"""Finds the node of a job's Ray head, and the address that its dashboard listens on.

The first node of a job is not always its head: launch scripts sort the nodes, or give the head a node of its own. So
the job's logs are asked first, then the nodes themselves: the head is where something listens on the dashboard's port.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rldbg.core import PrerequisiteError, UnreachableError
from rldbg.launch.tunnel.remote import Host
from rldbg.launch.tunnel.slurm import SlurmJob

_TAIL_BYTES = "400000"
_AT_ONCE = 16
_LISTEN = "0A"
_IP = r"(?:\d{1,3}\.){3}\d{1,3}"
_ADDRESS = f"({_IP})"
_HINTS = (
    re.compile(rf"--dashboard-host[= ]['\"]?{_ADDRESS}"),
    re.compile(rf"ray start\b[^\n]*--head[^\n]*--node-ip-address[= ]['\"]?{_ADDRESS}"),
    re.compile(rf"ray start\b[^\n]*--node-ip-address[= ]['\"]?{_ADDRESS}[^\n]*--head"),
    re.compile(rf"Local node IP: {_ADDRESS}"),
    re.compile(rf"dashboard at\s+(?:\x1b\[[\d;]*m)*(?:http://)?{_ADDRESS}:\d+"),
)
_PORTS = (
    re.compile(r"--dashboard-port[= ]['\"]?(\d+)"),
    re.compile(rf"dashboard at\s+(?:\x1b\[[\d;]*m)*(?:http://)?{_IP}:(\d+)"),
)


@dataclass(frozen=True, slots=True)
class Head:
    """Where to forward to: `target:port`, as seen from `node`."""

    node: str
    target: str
    port: int
    how: str
    reached_by_ssh: bool = True


def hints_in(log: str) -> tuple[list[str], int]:
    """Addresses that a log gives the head, the most certain first, and the dashboard's port (0: not said)."""
    addresses: list[str] = []
    for pattern in _HINTS:
        for address in pattern.findall(log):
            if address not in addresses and not address.startswith(("127.", "0.")):
                addresses.append(address)
    port = next((int(found[-1]) for pattern in _PORTS if (found := pattern.findall(log))), 0)
    return addresses, port


class HeadFinder:
    """Looks for one job's head; `login` is where Slurm's commands are."""

    def __init__(self, job: SlurmJob, login: Host, *, jump: str = "", port: int = 0) -> None:
        self.job = job
        self.login = login
        self._jump = jump
        self._port = port

    def node_host(self, node: str) -> Host:
        host = self.login.through(node)
        return Host(host.ssh, host.name, self._jump or host.jump)

    def find(self) -> Head:
        hints, said_port = hints_in(self._logs())
        port = self._port or said_port or 8265
        failures: dict[str, str] = {}
        nodes = self._likely_first(hints)
        for start in range(0, len(nodes), _AT_ONCE):
            found = self._ask(nodes[start : start + _AT_ONCE], port, hints, failures)
            if found is not None:
                return found
        raise self._nowhere(port, failures)

    def _logs(self) -> str:
        """The job's output and the log of its Ray head, as far as they can be read from the login node."""
        folder, number = self.job.work_dir, self.job.id
        files = [self.job.output] if self.job.output else []
        script = 'for f in "$@"; do [ -r "$f" ] && tail -c ' + _TAIL_BYTES + ' "$f"; done; true'
        if folder:
            files += [
                f"{folder}/{number}-logs/ray-head.log",
                f"{folder}/{number}-1-logs/ray-head.log",
                f"{folder}/{number}-2-logs/ray-head.log",
            ]
        if not files:
            return ""
        return self.login.try_run(["sh", "-c", script, "sh", *files])

    def _likely_first(self, hints: Sequence[str]) -> list[str]:
        """The node with an address from the logs, then those that launch scripts take: sorted first, first, batch."""
        nodes = list(self.job.nodes)
        likely = [*self._nodes_with(hints), sorted(nodes)[0], nodes[0], self.job.batch_host]
        return list(dict.fromkeys(node for node in [*likely, *nodes] if node in nodes))

    def _nodes_with(self, addresses: Sequence[str]) -> list[str]:
        if not addresses:
            return []
        script = 'for n in "$@"; do echo "$n $(getent ahostsv4 "$n" | head -1)"; done'
        lines = self.login.try_run(["sh", "-c", script, "sh", *self.job.nodes]).splitlines()
        known = {words[1]: words[0] for line in lines if len(words := line.split()) > 1}
        return [known[address] for address in addresses if address in known]

    def _ask(self, nodes: Sequence[str], port: int, hints: Sequence[str], failures: dict[str, str]) -> Head | None:
        """The first of these nodes, in their order, that listens on the port."""
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
            answers = list(pool.map(self._sockets, nodes))
        for node, (text, by_ssh, failure) in zip(nodes, answers, strict=True):
            if failure:
                failures[node] = failure
            addresses = listening(text).get(port)
            if addresses:
                how = "its log names it and it listens" if hints and node == nodes[0] else "it listens"
                return Head(node, target_of(addresses), port, f"{how} on port {port}", by_ssh)
        return None

    def _sockets(self, node: str) -> tuple[str, bool, str]:
        """What a node listens on: asked through ssh, else through a step of the job itself."""
        command = ["sh", "-c", "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null"]
        try:
            return self.node_host(node).run(command, timeout_s=20.0), True, ""
        except (UnreachableError, PrerequisiteError) as error:
            refused = str(error)
        step = ["srun", "--overlap", f"--jobid={self.job.id}", "-N1", "-n1", "-w", node, *command]
        try:
            return self.login.run(step, timeout_s=20.0), False, refused
        except (UnreachableError, PrerequisiteError):
            return "", False, refused

    def _nowhere(self, port: int, failures: dict[str, str]) -> UnreachableError:
        if failures and len(failures) == len(self.job.nodes):
            node, reason = next(iter(failures.items()))
            return UnreachableError(
                f"ssh to every node of job {self.job.id} failed: {node}: {reason}",
                f"check that you can log in: ssh {node}",
            )
        return UnreachableError(
            f"no node of job {self.job.id} listens on port {port} ({_some(self.job.nodes)})",
            "check that Ray runs there; for another dashboard port give --dashboard-port N",
        )


def _some(nodes: Iterable[str]) -> str:
    names = list(nodes)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def listening(text: str) -> dict[int, list[str]]:
    """Port -> addresses, from the text of /proc/net/tcp and tcp6: no tool is needed there but `cat`. 0.0.0.0 and ::
    mean every address of the machine."""
    found: dict[int, list[str]] = {}
    for address, port in _sockets(text):
        found.setdefault(port, [])
        if address not in found[port]:
            found[port].append(address)
    return found


def _sockets(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4 or words[3] != _LISTEN or ":" not in words[1]:
            continue
        address, _, port = words[1].partition(":")
        try:
            yield _readable(bytes.fromhex(address)), int(port, 16)
        except ValueError:
            continue


def _readable(raw: bytes) -> str:
    """The kernel writes each 32-bit word in the machine's own order, which is little-endian wherever Ray runs."""
    swapped = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    address = ipaddress.ip_address(swapped)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def target_of(addresses: list[str]) -> str:
    """What to forward to from the machine itself: its loopback when that is served, else the address that is."""
    for address in addresses:
        if ipaddress.ip_address(address).is_unspecified or ipaddress.ip_address(address).is_loopback:
            return "localhost"
    return addresses[0]
