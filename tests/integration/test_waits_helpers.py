"""Waits for a step that was skipped, and helpers that only have nothing to do, in real processes, armed and not."""

import threading
from pathlib import Path

import pytest
from ray_stage import plain_environment
from scene_programs import ScenePrograms, armed_programs, explained_by_the_agent, explained_from_outside, until_said

from rldbg.live import LOOKS_APART_S, UnarmedJob, explain_job, explain_run

SCENES = Path(__file__).with_name("helper_wait_scenes.py")
# What the sentence about each scene must say, and what nothing may say.
WORDS = {
    "library_lock": [
        "thread client-loop runs the event loop that should complete it, and waits at __init__.py:",
        "for lock `self.lifecycle`; the main thread holds it (taken in __init__.py:",
        "so they wait for each other (deadlock)",
    ],
    "flag_stays": [
        "polls (a loop while `self.paused` (self.paused = True))",
        "only update (line",
        "would change `self.paused`, and no thread or task is seen running it; update sets it to True in line",
        "which an exception in between skips",
    ],
    "early_return": [
        "semaphore `self.slots`",
        "which `if not prompt: return` in line",
        "or an exception in between, skips",
    ],
    "skipped_end": [
        "for lock `self.mutex`; no thread is seen holding it",
        "(sync_once acquires it in line",
        "which an exception in between skips)",
        "because of that thread weight-sync waits",
    ],
    "idle_neighbour": ["an item of queue `channels['policy'][1]`", "process policy-engine (pid", "(killed by SIGKILL)"],
    "taken_by_next": [
        "event `self.synced` to be set",
        "because of that thread prefetch waits at",
        "for room in queue `self.slots['ready']`",
    ],
    "polled_server": ["polls (a loop while `await ask()"],
    "entered_condition": [
        "for lock `self.idle`; thread rollout holds it (taken in",
        "for lock `Monitor._lock`; thread reporter holds it",
        "for lock `Weights._lock`; the main thread holds it",
        "so they wait for each other (deadlock)",
    ],
    "guarded_methods": [
        "for lock `getattr(self, attribute)`; thread publisher holds it (taken in",
        "the main thread holds it (taken in",
        "so they wait for each other (deadlock)",
    ],
    "left_out": [
        "an item of queue `self.scores` (queue.Queue, empty); thread scorer-",
        "which `if sample < 0: continue` in line",
        "its items come from dispatch",
    ],
    "writer_over": [
        "room in queue `self.experience` (multiprocessing queue, full)",
        "process writer (pid",
        "(exit code 0)",
    ],
    "dropped_answer": [
        "future `self.pending[prompt]` to be completed; task receiver would complete it in line",
        "but drops an answer whose key `line` is not in `self.pending` (it does so only if `answer is not None`)",
    ],
    "tools_that_end": ["is running (at the moment it waits for"],
    "environment_failed": [
        "no process that has the other end open runs anything that writes into it: process env-1 (pid",
        "has ended (exit code 1)",
    ],
    "prefetcher_failed": ["an item of queue `self.batches` (queue.Queue, empty)", "thread prefetch ", "has ended"],
    "begun_already": ["barrier `together`: 2 of 3 have arrived", "thread shard-2 has ended"],
}
NOT_SAID = {
    "skipped_end": "should set it, and waits",
    "idle_neighbour": "reference-engine",
    "taken_by_next": "would take an item out",
    "writer_over": "may wait for each other",
    "begun_already": "only afterwards",
    "dropped_answer": "deadlock",
    "tools_that_end": "has ended",
    "environment_failed": "deadlock",
    "polled_server": "deadlock",
}
# Of what goes on, two looks at once are one.
GOES_ON = {"polled_server", "tools_that_end"}


@pytest.fixture(scope="module")
def unarmed(tmp_path_factory):
    programs = ScenePrograms(SCENES, tmp_path_factory.mktemp("unarmed"), plain_environment(), WORDS)
    yield programs
    programs.end()


@pytest.fixture(scope="module")
def armed(tmp_path_factory):
    with armed_programs(SCENES, tmp_path_factory.mktemp("armed"), WORDS) as programs:
        yield programs


@pytest.mark.parametrize("scene", WORDS)
def test_it_is_explained_from_outside(unarmed, scene):
    apart = {"apart_s": LOOKS_APART_S} if scene in GOES_ON else {}
    until_said(lambda: explained_from_outside(unarmed, scene, **apart), WORDS[scene], *_unsaid(scene))


@pytest.mark.parametrize("scene", WORDS)
def test_it_is_explained_by_the_agent(armed, scene):
    apart = {"apart_s": LOOKS_APART_S} if scene in GOES_ON else {}
    until_said(lambda: explained_by_the_agent(armed, scene, **apart), WORDS[scene], *_unsaid(scene))


def test_what_has_ended_a_thread_is_told_with_it(armed):
    raised = ["thread prefetch has ended: KeyError: 'integrate' was raised at helper_wait_scenes.py:"]
    until_said(lambda: explained_by_the_agent(armed, "prefetcher_failed"), raised)


@pytest.mark.parametrize("kind", ["unarmed", "armed"])
def test_a_ring_that_closes_between_two_looks_is_found_in_a_third(kind, tmp_path):
    with armed_programs(SCENES, tmp_path, ["closing_late"] if kind == "armed" else []) as programs:
        if kind == "unarmed":
            programs = ScenePrograms(SCENES, tmp_path, plain_environment(), ["closing_late"])
        pid = programs.pid("closing_late")
        threading.Timer(0.5, (programs.folder / "go").touch).start()
        seen = explain_run(programs.job.client)[1] if kind == "armed" else explain_job(UnarmedJob(pids=(pid,)))[1]
        if kind == "unarmed":
            programs.end()
    assert "so they wait for each other (deadlock)" in seen[0].verdict


def _unsaid(scene):
    return (NOT_SAID[scene],) if scene in NOT_SAID else ()
