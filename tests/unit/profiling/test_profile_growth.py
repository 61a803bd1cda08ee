"""Growth that real processes really have: who leaks is told from who takes and frees."""

import contextlib
import multiprocessing
import random
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from rldbg.agent.profiling import Held, Phases, during, held, in_use
from rldbg.profiling.growth import leaks_of
from rldbg.profiling.report import make_report
from rldbg.profiling.tracks import PhaseSpan, Track

MS = 1_000_000
MIB = 1024


def block(mib: float) -> bytearray:
    return bytearray(b"x" * int(mib * 2**20))


def real_steps(run: Path, count: int, work: dict[str, Callable[[int], None]]) -> None:
    """A process of its own: what other tests have left in this one would be taken first."""
    steps = multiprocessing.get_context("fork").Process(target=_steps, args=(run, count, work))
    steps.start()
    steps.join(60)
    assert steps.exitcode == 0


def _steps(run: Path, count: int, work: dict[str, Callable[[int], None]]) -> None:
    sys.modules["torch"] = types.SimpleNamespace()  # type: ignore[assignment]
    who = {"worker": "policy/0", "role": "policy", "rank": 0, "host": "h", "pid": 1}
    number = 0
    phases = Phases(str(run / "profiling"), about=lambda: who, step=lambda: number, clock=lambda: None)
    for number in range(1, count + 1):
        for name, call in work.items():
            with phases.span(name) if name else contextlib.nullcontext():
                call(number)


@pytest.mark.parametrize(("first", "leaking"), [(4, "log_probs"), (13, "log_probs"), (4, "")])
def test_temporaries_of_other_phases_do_not_hide_who_leaks(tmp_path: Path, first: int, leaking: str) -> None:
    kept, sizes = [], random.Random(5)
    work: dict[str, Callable[[int], None]] = {
        "rollout": lambda step: block(24) and None,
        "log_probs": lambda step: None,
        "update": lambda step: block(sizes.uniform(2, 12)) and None,
        "": lambda step: None,
    }
    real_steps(
        tmp_path, 30, work | {leaking: lambda step: kept.append(block(1)) if first == 4 or step >= first else None}
    )
    (leak,) = make_report(tmp_path).leaks
    assert (leak.first_step, leak.phase) == (first, leaking)
    assert leak.mib_per_step == pytest.approx(1.0, rel=0.05)


def test_small_objects_are_counted_too(tmp_path: Path) -> None:
    kept: list[str] = []

    def keep(_step: int) -> None:
        kept.extend("x" * 100 + str(number) for number in range(7000))

    def use_up_what_was_freed(step: int) -> None:
        """What this process has freed of Python's blocks, the new one has too: it does not grow before that is used."""
        before = held().host
        while step == 1 and held().host < before + 4 * MIB:
            keep(step)

    real_steps(tmp_path, 30, {"": use_up_what_was_freed, "rollout": lambda step: block(24) and None, "log_probs": keep})
    (leak,) = make_report(tmp_path).leaks
    assert (leak.first_step, leak.phase) == (4, "log_probs")


@pytest.mark.parametrize("keeps", [True, False])
def test_a_leak_under_larger_noise_is_named_and_noise_is_not(tmp_path: Path, keeps: bool) -> None:
    kept, cache, sizes = [], [None] * 6, random.Random(5)

    def rollout(step: int) -> None:
        cache[sizes.randrange(6)] = block(sizes.uniform(1, 20))

    real_steps(tmp_path, 30, {"rollout": rollout, "log_probs": lambda step: kept.append(block(1)) if keeps else None})
    leaks = make_report(tmp_path).leaks
    assert [leak.phase for leak in leaks] == (["log_probs"] if keeps else [])
    assert all(leak.first_step == 4 and "up and down by more" in leak.text for leak in leaks)


@pytest.mark.parametrize("freed_in", ["log_probs", "update", "rollout"])
def test_what_is_returned_is_no_leak(tmp_path: Path, freed_in: str) -> None:
    """Batches of sizes that vary, of which every step frees the last, and a heap that is emptied every ten steps."""
    batch, saw, sizes = [], [], random.Random(3)

    def rollout(step: int) -> None:
        batch[:] = [block(sizes.uniform(20, 40))]

    work = {"rollout": rollout, "log_probs": lambda step: batch.append(block(1)), "update": lambda step: None}
    inner = work[freed_in]

    def also(step: int) -> None:
        inner(step)
        if step % 10 == 0:
            saw.clear()

    real_steps(tmp_path, 30, work | {freed_in: also, "loss": lambda step: saw.append(block(2))})
    assert make_report(tmp_path).leaks == ()


def test_a_phase_that_another_one_relieves_is_told_from_the_one_that_leaks() -> None:
    """Both keep a megabyte; the update returns the one of the rollout."""
    (leak,) = leaks_of("p", counted({"rollout": 1, "log_probs": 1, "update": -1}, 30))
    assert leak.phase is None
    assert leaks_of("p", counted({"rollout": 1, "log_probs": 0, "update": -1}, 30)) == []


def test_a_phase_that_gains_now_more_now_less_is_not_named_beside_one_that_gains_more() -> None:
    """The loss leaks; the rollout keeps as much on average for the backward pass, which returns both."""
    spans, used, sizes = [], 100 * MIB, random.Random(1)
    for step in range(1, 31):
        rollout, loss = sizes.uniform(0, 2), sizes.uniform(1, 2)
        for place, (name, gain) in enumerate(
            {"rollout": rollout, "loss": loss + 1, "backward": -rollout - loss}.items()
        ):
            entry, used = used, used + int(gain * MIB)
            memory = [9, 9, 9, None, None, None, entry, used, 0, 0]
            spans.append(PhaseSpan(name, (step * 10 + place) * MS, MS, step, 1, memory))
    (leak,) = leaks_of("p", Track("policy/0", "policy", 0, "h", 1, spans=spans))
    assert leak.phase is None
    (leak,) = leaks_of("p", counted({"rollout": 1, "loss": 3, "backward": -3}, 30))
    assert leak.phase == "rollout"


def counted(gains: dict[str, int], steps: int) -> Track:
    spans, used = [], 100 * MIB
    for step in range(1, steps + 1):
        for place, (name, gain) in enumerate(gains.items()):
            entry, used = used, used + gain * MIB
            memory = [9, 9, 9, None, None, None, entry, used, 0, 0]
            spans.append(PhaseSpan(name, (step * 10 + place) * MS, MS, step, 1, memory))
    return Track("policy/0", "policy", 0, "h", 1, spans=spans)


def test_counting_stops_where_it_would_cost_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = in_use._Budget()
    now = time.monotonic_ns()
    assert budget.allows(now)
    budget.spend(10**9)
    assert not budget.allows(now) and budget.allows(now + 201 * 10**9)
    monkeypatch.setattr(in_use, "_budget", budget)
    assert in_use.in_use() is None, "a phase that begins is not counted"
    assert in_use.in_use(always=True) is not None, "one that was counted at entry is at exit"
    monkeypatch.setattr(in_use, "_is_known", False)
    assert in_use.in_use(always=True) is None
    assert held().used is None and held().host > 0


def test_what_is_in_use_is_written_behind_the_rest() -> None:
    before, after = Held(1, 1, None, None, in_use.InUse(5, 6)), Held(2, 2, None, None, in_use.InUse(7, 8))
    assert during(before, after)[6:] == [5, 7, 6, 8]
    assert len(during(before, after._replace(used=None))) == 6
