"""Runs units in this process, in several, or on a Ray cluster. The result does not depend on which.

Other processes get only names and open the recordings themselves; their results are small.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from rldbg.analysis.measure import non_finite_numbers
from rldbg.analysis.side import Side, SideSource
from rldbg.analysis.tolerances import Tolerances
from rldbg.analysis.units import Unit, UnitResult, UnitWorker

# Below this a second process costs more than it saves.
_PARALLEL_FROM_BYTES = 1 << 28


class Task(NamedTuple):
    """Units of one kind and step for one process, with all it needs to run them."""

    a: SideSource
    b: SideSource
    tolerances: Tolerances
    units: tuple[Unit, ...]


@non_finite_numbers()
def run_task(task: Task) -> list[UnitResult]:
    """The entry point of another process: runs the units in order."""
    a, b = task.a.open(), task.b.open()
    b.compare_with(a)
    worker = UnitWorker(a, b, task.tolerances)
    return [worker.run(unit) for unit in task.units]


def run_units(
    a: Side, b: Side, units: Sequence[Unit], tolerances: Tolerances, *, jobs: int | None, on_ray: str | None
) -> Iterator[UnitResult]:
    """Results in the order of the units. `jobs` None chooses by the size of the work and the number of cores."""
    if on_ray is not None:
        return _on_ray(_tasks(a, b, units, tolerances, parts=64), on_ray)
    if jobs is None:
        size = sum(a.size_bytes(kinds[0], step) for step, kinds in {unit[:2] for unit in units})
        jobs = len(os.sched_getaffinity(0)) if size >= _PARALLEL_FROM_BYTES else 1
    if jobs > 1:
        return _in_processes(_tasks(a, b, units, tolerances, parts=jobs), jobs)
    worker = UnitWorker(a, b, tolerances)
    return (worker.run(unit) for unit in units)


def _tasks(a: Side, b: Side, units: Sequence[Unit], tolerances: Tolerances, *, parts: int) -> list[Task]:
    """Units that share a pairing stay together, cut into at most `parts` by rank."""
    tasks = []
    for _, group in groupby(units, key=lambda unit: unit[:2]):
        members = tuple(group)
        size = -(-len(members) // parts)
        for start in range(0, len(members), size):
            tasks.append(Task(a.source, b.source, tolerances, members[start : start + size]))
    return tasks


def _in_processes(tasks: Sequence[Task], jobs: int) -> Iterator[UnitResult]:
    # Imported late: only large comparisons need these.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for results in pool.map(run_task, tasks):
            yield from results


def _on_ray(tasks: Sequence[Task], address: str) -> Iterator[UnitResult]:
    from rldbg.core import join_ray  # brings HTTP clients along

    ray = join_ray(address, otherwise="leave out --on-ray", logging_level="ERROR", log_to_driver=False)
    try:
        remote = ray.remote(num_cpus=1)(run_task)
        for future in [remote.remote(task) for task in tasks]:
            yield from ray.get(future)
    finally:
        ray.shutdown()
