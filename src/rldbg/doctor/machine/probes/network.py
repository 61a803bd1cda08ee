"""Names, cards, proxies, and whether the head answers."""

import socket

from rldbg.doctor.machine.probes.machine import Machine, ProbeOutcome, check

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_IFNAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_VIRTUAL = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "cali", "tun", "tap", "ifb", "dummy")
_CONNECT_S = 3.0


@check("own host name")
def hostname_loopback(machine: Machine) -> ProbeOutcome:
    name = socket.gethostname()
    addresses = machine.addresses_of_own_name()
    if not addresses:
        fix = f"add the node's address and {name} to /etc/hosts, or export GLOO_SOCKET_IFNAME=<nic>"
        return "warn", f"{name} has no address: Gloo falls back to loopback", fix
    if all(address.startswith("127.") for address in addresses):
        if any(machine.variables.get(variable) for variable in _IFNAMES[:1]):
            return "pass", "resolves to loopback, but GLOO_SOCKET_IFNAME is set"
        fix = "several nodes need: export GLOO_SOCKET_IFNAME=<nic>, or another line in /etc/hosts"
        return "warn", f"{name} resolves to {addresses[0]}", fix
    return "pass", f"{name} is {', '.join(addresses)}"


def _cards(machine: Machine) -> list[str]:
    folder = machine.path("/sys/class/net")
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@check("network cards")
def nic_choice(machine: Machine) -> ProbeOutcome:
    cards = [name for name in _cards(machine) if not name.startswith(_VIRTUAL)]
    if len(cards) <= 1:
        return "pass", ", ".join(cards) or "loopback only"
    if any(machine.variables.get(name) for name in _IFNAMES):
        return "pass", f"{', '.join(cards)}; the choice is set by variables"
    fix = "ip route get <head-ip> shows the right one: ray start --node-ip-address, GLOO_ and NCCL_SOCKET_IFNAME"
    return "warn", f"{len(cards)} to choose from: {', '.join(cards)}", fix


@check("interface variables")
def nic_variables(machine: Machine) -> ProbeOutcome:
    cards = _cards(machine)
    for name in _IFNAMES:
        wanted = machine.variables.get(name, "")
        plain = [item.lstrip("=") for item in wanted.split(",") if item and not wanted.startswith("^")]
        if plain and cards and not any(card.startswith(tuple(plain)) for card in cards):
            fix = f"export {name}=<one of {', '.join(cards)}>, or an exclusion such as ^lo,docker"
            return "fail", f"{name}={wanted} is not a network interface of this node", fix
    return "pass", "all interfaces exist"


@check("proxies")
def proxies(machine: Machine) -> ProbeOutcome:
    found = [name for name in _PROXIES if machine.variables.get(name)]
    exempt = machine.variables.get("no_proxy") or machine.variables.get("NO_PROXY") or ""
    if not found:
        return "pass", "none"
    ranges = [item for item in exempt.split(",") if "/" in item]
    reason = f"{', '.join(found)} set" + (f"; httpx does not understand {ranges[0]} in no_proxy" if ranges else "")
    fix = "calls between trainer and engines go there too: unset them for the job, or list exact hosts in no_proxy"
    return "warn", reason, fix


@check("Ray head")
def ray_head(machine: Machine) -> ProbeOutcome:
    address = machine.variables.get("RAY_ADDRESS", "")
    host, _, port = address.removeprefix("ray://").partition(":")
    if not host or address == "auto" or address.startswith("http") or not port.isdigit():
        return "skip", "RAY_ADDRESS is not set to a host"
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S):
            return "pass", f"{address} answers"
    except OSError as error:
        fix = f"ping {host}; ip route get {host}; start the head with --node-ip-address of a card this node can reach"
        return "fail", f"{address}: {error}", fix
