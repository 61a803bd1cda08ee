"""Hooks, steps and marks inside a process: what a framework's functions become, and what nothing costs."""

import json
import sys
import time
import types
from contextlib import nullcontext

import pytest

import rldbg
from rldbg.agent.profiling import BEFORE_STEPS, Hook, HookedFunction, Phases, Plan
from rldbg.agent.profiling.process import Profile
from rldbg.frameworks import all_hooks
from rldbg.profiling import make_report
from rldbg.profiling.tracks import books_of, read_tracks


class Framework:
    def train(self, batch, step):
        return batch + step

    async def sample(self, state):
        return state.global_step


def hooked(hook: Hook, tmp_path):
    seen: list = []
    phases = Phases(str(tmp_path), about=lambda: {"worker": "w"}, step=lambda: 3, clock=lambda: (5, 7))
    module = types.ModuleType("framework")
    module.Framework = type("Framework", (Framework,), {"train": Framework.train, "sample": Framework.sample})
    problem = wrapped(hook, seen, phases.span).install(module)
    assert problem == ""
    return module.Framework(), seen


def wrapped(hook: Hook, seen: list, span) -> HookedFunction:
    return HookedFunction(hook, span=span, enter_step=seen.append, own=lambda: seen.append("own"))


def written(tmp_path) -> list:
    (file,) = (tmp_path / "phases").glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_function_becomes_a_phase_and_says_its_step(tmp_path):
    framework, seen = hooked(Hook("framework", "Framework.train", phase="update", step="step", offset=1), tmp_path)
    assert framework.train(1, step=2) == 3
    assert framework.train(1, 4) == 5
    assert seen == [3, 5]
    who, clock, first, second = written(tmp_path)
    assert who == {"worker": "w"}
    assert clock == {"clock": {"offset_ns": 5, "round_trip_ns": 7}}
    assert first[0] == second[0] == "update"
    assert first[3] == 3
    assert framework.train.__name__ == "train"


def test_a_step_that_ends_and_one_that_is_owned(tmp_path):
    framework, seen = hooked(Hook("framework", "Framework.train", step="1", ends=True, owns_steps=True), tmp_path)
    assert seen == ["own"]
    framework.train(1, 2)
    assert seen == ["own", 1]


def test_steps_are_calls_where_nobody_says_their_number(tmp_path):
    hook = Hook("framework", "Framework.train", step="calls", offset=1, ends=True)
    framework, seen = hooked(hook, tmp_path)
    framework.train(1, 2)
    framework.train(1, 2)
    assert seen == [2, 3], "when the first update has returned, step 2 begins"


def test_a_step_is_found_in_a_mapping(tmp_path):
    framework, seen = hooked(Hook("framework", "Framework.train", step="batch.metadata.global_step"), tmp_path)
    batch = types.SimpleNamespace(metadata={"global_step": 4})
    with pytest.raises(TypeError):
        framework.train(batch, 1)
    assert seen == [4]


def test_coroutines_and_attributes_of_arguments(tmp_path):
    import asyncio

    hook = Hook("framework", "Framework.sample", phase="rollout", step="state.global_step", offset=1)
    framework, seen = hooked(hook, tmp_path)
    assert asyncio.run(framework.sample(types.SimpleNamespace(global_step=6))) == 6
    assert seen == [7]
    assert written(tmp_path)[2][0] == "rollout"


def test_a_function_that_raises_is_a_phase_too(tmp_path):
    framework, _ = hooked(Hook("framework", "Framework.train", phase="update"), tmp_path)
    with pytest.raises(TypeError):
        framework.train("text", 1)
    assert written(tmp_path)[2][0] == "update"


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("Framework.gone", "there is no function Framework.gone"),
        ("Gone.train", "framework has no Gone"),
        ("Actor.train", "Actor is a Ray actor class, whose workers do not see the hook; name its base class instead"),
    ],
)
def test_a_function_that_cannot_be_hooked_is_said_with_the_reason(function, problem):
    module = types.ModuleType("framework")
    module.Framework = Framework
    module.Actor = type("Actor", (Framework,), {"__ray_metadata__": object()})

    assert wrapped(Hook("framework", function, phase="update"), [], nullcontext).install(module) == problem


def test_a_static_method_stays_one():
    module = types.ModuleType("framework")
    module.Framework = type("Framework", (), {"load": staticmethod(lambda name: name)})
    wrapped(Hook("framework", "Framework.load", phase="sync"), [], nullcontext).install(module)

    assert module.Framework().load("weights") == "weights"


def test_without_a_profile_step_and_phase_do_nothing():
    assert not hasattr(sys, "_rldbg_profile")
    rldbg.step(3)
    with rldbg.phase("reward"):
        pass


def test_hooks_of_our_own_trainer_exist():
    import importlib

    for hook in all_hooks():
        if hook.module.startswith("rldbg."):
            owner = importlib.import_module(hook.module)
            for name in hook.function.split("."):
                owner = getattr(owner, name)
            assert callable(owner)


def test_micro_batches_of_one_step_and_a_module_that_counts_itself(tmp_path, monkeypatch):
    class Framework:
        def __init__(self, done):
            self.done, self.args, self.iterations = done, types.SimpleNamespace(per_generation=2), 2

        def train(self):
            return self.done

    hook = Hook(
        "framework", "Framework.train", step="self.done", per=("args.per_generation", "iterations"), offset=1,
        unless=("counts.itself",),
    )  # fmt: skip
    module, seen = types.ModuleType("framework"), []
    module.Framework = Framework
    assert wrapped(hook, seen, None).install(module) == ""

    for done in range(6):
        Framework(done).train()
    assert seen == [1, 1, 1, 1, 2, 2]
    monkeypatch.setitem(sys.modules, "counts.itself", module)
    Framework(0).train()
    assert len(seen) == 6


def test_a_loop_that_counts_from_0_keeps_that_step_in_the_report(tmp_path, monkeypatch):
    who = {"role": "train", "rank": None, "host": "h", "pid": 1, "kind": "process"}
    monkeypatch.setattr(Profile, "_identity", lambda _self: who)
    monkeypatch.setattr(Profile, "_measure_clock", lambda _self: None)
    profile = Profile(Plan("phases", (), str(tmp_path / "profiles"), str(books_of(tmp_path))), None, None)
    with profile.span("start"):
        pass
    for step in range(3):
        profile.step(step)
        with profile.span("update"):
            time.sleep(0.001)
    (track,) = read_tracks(tmp_path)
    assert [span.step for span in track.spans] == [BEFORE_STEPS, 0, 1, 2]
    assert make_report(tmp_path).steps == 3


def test_steps_without_a_number_count_from_1(tmp_path):
    profile = Profile(Plan("phases", (), str(tmp_path), str(tmp_path)), None, None)
    profile._window = window = types.SimpleNamespace(seen=[], enter_step=lambda number: window.seen.append(number))
    profile._has_chosen = True
    profile.step()
    profile.step()
    assert window.seen == [1, 2]


def test_a_worker_of_ray_that_becomes_an_actor_has_its_name_in_the_report(tmp_path, monkeypatch):
    """It is announced when it imports Ray, before it is given one."""
    who = {"role": "ray_worker", "rank": None, "host": "h", "pid": 1, "kind": "task"}
    monkeypatch.setattr(Profile, "_identity", lambda _self: who)
    monkeypatch.setattr(Profile, "_measure_clock", lambda _self: None)
    profile = Profile(Plan("phases", (), str(tmp_path / "profiles"), str(books_of(tmp_path))), None, None)
    profile._phases.announce()
    who |= {"role": "policy", "rank": 1, "kind": "actor"}
    with profile.span("update"):
        pass
    (track,) = read_tracks(tmp_path)
    assert (track.worker, track.rank) == ("policy", 1)


@pytest.mark.parametrize(("worked_s", "processes"), [(0.0, 1), (3600.0, 0)])
def test_a_process_that_worked_without_phases_is_known_when_it_ends(tmp_path, monkeypatch, worked_s, processes):
    who = {"role": "reward_server", "rank": None, "host": "h", "pid": 1, "kind": "process"}
    monkeypatch.setattr(Profile, "_identity", lambda _self: who)
    monkeypatch.setattr(Profile, "_measure_clock", lambda _self: None)
    monkeypatch.setattr("rldbg.agent.profiling.process._WORKED_S", worked_s)
    (books_of(tmp_path) / "phases").mkdir(parents=True)
    profile = Profile(Plan("phases", (), str(tmp_path / "profiles"), str(books_of(tmp_path))), None, None)
    profile.finish()
    assert [track.worker for track in read_tracks(tmp_path)] == ["reward_server"] * processes
