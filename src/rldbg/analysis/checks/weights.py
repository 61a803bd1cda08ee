"""Checks on the weights that an engine holds."""

from __future__ import annotations

from collections.abc import Iterable

from rldbg.analysis.checks.base import Check, NotApplicable, StepView, Violation


def _held_is_sent(view: StepView) -> Iterable[Violation]:
    faults = view.side.weight_faults
    if faults is None:
        raise NotApplicable("no weights that an engine holds")
    for fault in faults.get(view.step, ()):
        more = f" (and {fault.tensors - 1} more tensors)" if fault.tensors > 1 else ""
        yield Violation(fault.where, (f"{fault.how}: it {fault.text}{more}",))


CHECKS = (
    Check(
        "engine-holds-what-was-sent",
        "each engine replica holds the weights that the trainer sent",
        "a replica's weights are not those that the trainer sent: a tensor was lost, changed or misplaced",
        ("look at the tensor's name in `rldbg weights map RUN`", "check the loader of this tensor in the engine"),
        _held_is_sent,
        of_weights=True,
    ),
)
