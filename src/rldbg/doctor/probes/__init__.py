"""Looks at a machine: each one passes, warns or fails, with the reason and what to do. Nothing is changed."""

from collections.abc import Callable

from rldbg.doctor.diagnosis import ProbeResult
from rldbg.doctor.probes import gpus, network, packages, resources, sessions, variables
from rldbg.doctor.probes.machine import Machine, result
from rldbg.doctor.probes.sessions import RaySession, running_sessions

Check = Callable[[Machine], ProbeResult]

CHECKS: tuple[Check, ...] = (
    *resources.CHECKS,
    *gpus.CHECKS,
    *network.CHECKS,
    *packages.CHECKS,
    *variables.CHECKS,
    *sessions.CHECKS,
)


def probe_machine(machine: Machine | None = None) -> list[ProbeResult]:
    """All checks, in order; one that the machine does not allow is skipped with its reason."""
    machine = machine or Machine()
    return [_probe(check, machine) for check in CHECKS]


def _probe(check: Check, machine: Machine) -> ProbeResult:
    try:
        return check(machine)
    except (OSError, ValueError) as error:
        name = check.__name__.replace("_", "-")
        return result(name, name, "skip", f"{type(error).__name__}: {error}")


__all__ = ["CHECKS", "Machine", "RaySession", "probe_machine", "running_sessions"]
