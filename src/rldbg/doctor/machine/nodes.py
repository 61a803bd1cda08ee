"""The checks on every node of a Ray cluster that answers, and what differs between the nodes."""

import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rldbg.core import Environment, PrerequisiteError, join_ray, versions
from rldbg.doctor.answer.diagnosis import ProbeResult
from rldbg.doctor.machine.probes import probe_machine
from rldbg.doctor.machine.probes.machine import Machine, result

_TASK_S = 60.0
_CONNECT_S = 3.0
_QUIET = {"log_to_driver": False, "configure_logging": False}
_CURRENT_CLUSTER = "/tmp/ray/ray_current_cluster"


def cluster_address(machine: Machine) -> str | None:
    """The cluster this shell would use: RAY_ADDRESS, else the one last started here if its port answers."""
    named = Environment(machine.variables).text("RAY_ADDRESS")
    if named:
        return named
    current = machine.text(_CURRENT_CLUSTER)
    host, _, port = (current or "").partition(":")
    if not port.isdigit():
        return None
    return current if _answers(host, int(port)) else None


def probe_nodes(address: str) -> list[ProbeResult]:
    """All checks on every living node, by tasks that take no resources; dead nodes and other versions count too."""
    import rldbg

    try:
        ray = join_ray(address, otherwise="give --no-nodes", namespace="rldbg-doctor", **_QUIET)
    except PrerequisiteError as error:
        return [result("cluster-admits", "node", "fail", error.message, error.hint)]
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.cloudpickle.register_pickle_by_value(rldbg)
    try:
        nodes: list[dict[str, Any]] = ray.nodes()
        look = ray.remote(num_cpus=0, max_retries=0)(_look)
        waiting = {
            node["NodeManagerAddress"]: look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote()
            for node in nodes
            if node["Alive"]
        }
        answers = {name: _answer(name, reference) for name, reference in waiting.items()}
    finally:
        ray.cloudpickle.unregister_pickle_by_value(rldbg)
        ray.shutdown()
    found = [probe for probes, _versions in answers.values() for probe in probes]
    found += [_dead(node) for node in nodes if not node["Alive"]]
    return [*found, *_differences({name: facts for name, (_probes, facts) in answers.items() if facts})]


def _answers(host: str, port: int) -> bool:
    """A file of a cluster that has ended is still there."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S):
            return True
    except OSError:
        return False


def _look() -> tuple[list[ProbeResult], dict[str, str]]:
    """Runs on a node; rldbg need not be installed there, it travels with the task."""
    return probe_machine(), versions() | {"machine": platform.machine(), "kernel": platform.release()}


def _answer(node: str, reference: Any) -> tuple[list[ProbeResult], dict[str, str]]:
    import ray

    try:
        probes, facts = ray.get(reference, timeout=_TASK_S)
    except (ray.exceptions.RayError, TimeoutError) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        failed = result("node-answers", "node", "fail", reason, "read raylet.out of that node")
        return [replace(failed, node=node)], {}
    return [replace(probe, node=node) for probe in probes], facts


def _dead(node: Mapping[str, Any]) -> ProbeResult:
    reason = node.get("DeathReasonMessage") or "Ray lists it as dead"
    dead = result("node-alive", "node", "warn", reason, "ray list nodes --detail; read its raylet.out")
    return replace(dead, node=node["NodeManagerAddress"])


def _differences(facts: Mapping[str, Mapping[str, str]]) -> Sequence[ProbeResult]:
    """Packages of which not all nodes have the same version."""
    names = sorted({name for versions_here in facts.values() for name in versions_here})
    found = []
    for name in names:
        by_version: dict[str, list[str]] = {}
        for node, versions_here in facts.items():
            by_version.setdefault(versions_here.get(name, "missing"), []).append(node)
        if len(by_version) > 1:
            reason = "; ".join(f"{version} on {', '.join(sorted(nodes))}" for version, nodes in by_version.items())
            fix = f"use one environment on all nodes: {name} differs"
            found.append(result("versions-equal", f"{name} on all nodes", "fail", reason, fix))
    return found or [result("versions-equal", "versions on all nodes", "pass", f"{len(facts)} nodes agree")]
