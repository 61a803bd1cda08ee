"""Checks of a machine: each passes, warns or fails, with the reason and what to do. Nothing is changed."""

from rldbg.doctor.answer.diagnosis import ProbeResult
from rldbg.doctor.machine.probes import gpus, network, packages, resources, sessions, variables
from rldbg.doctor.machine.probes.machine import Machine, MachineCheck, result
from rldbg.doctor.machine.probes.sessions import RaySession, running_sessions

CHECKS = tuple(
    item
    for module in (resources, gpus, network, packages, variables, sessions)
    for item in vars(module).values()
    if isinstance(item, MachineCheck)
)


def probe_machine(machine: Machine | None = None) -> list[ProbeResult]:
    """All checks, in order; one that the machine does not allow is skipped with its reason."""
    machine = machine or Machine()
    return [_probe(check, machine) for check in CHECKS]


def _probe(check: MachineCheck, machine: Machine) -> ProbeResult:
    try:
        return check(machine)
    except (OSError, ValueError) as error:
        return result(check.id, check.title, "skip", f"{type(error).__name__}: {error}")
