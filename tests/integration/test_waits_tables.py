"""Waits for what is kept in a table, was given to others or is reached by a call, in real processes, armed and not."""

from pathlib import Path

import pytest
from ray_stage import plain_environment
from scene_programs import ScenePrograms, armed_programs, explained_by_the_agent, explained_from_outside, until_said

SCENES = Path(__file__).with_name("table_wait_scenes.py")
# What the sentence about each scene must say, and what it must not.
WORDS = {
    "other_key": [
        "queue `self.lanes[lane]`",
        "only deliver (line",
        "thread player-{number} (started in line",
        "it is `self.lanes` under 1, where others have items: '0' (3 items), '1' (3 items)",
    ],
    "other_worker": ["it is `workers` under 2, where others have items: 0 (2 items), 1 (2 items)"],
    "deleted_task": [
        "task ask-7 waits",
        "for future `answer` to be completed; in its file only hand_out (line",
        "a task (started in line",
        "no variable keeps it, and Python may delete such a task before it ends",
    ],
    "through_a_call": ["thread loader should put an item in, but sleeps (time.sleep) at", "(load)"],
    "given_to_a_thread": ["only fill (line", "thread filler (started in line", "has ended"],
    "never_true": [
        "condition `changed` to be notified, in a loop until `len(version) > 2` (len(version) = 2)",
        "raiser",
    ],
    "never_true_in_asyncio": ["condition `changed`", "in a loop until `len(version) > 2` (len(version) = 1)"],
    "other_event": ["only mark (line", "it is `self.loaded` under 1, where others are set: 'v1'"],
    "called_afterwards": [
        "only resume (line",
        "the main thread calls resume only afterwards, at table_wait_scenes.py:",
    ],
    "single_threaded_server": ["has not accepted the connection: the thread that accepts it waits here (deadlock)"],
    "dropped_result": ["queue `tasks`", "has the other end of the queue, but runs no code that would put an item in"],
    "kept_end_of_a_pipe": [
        "for data from pipe `here`; no other process has the other end open: process scheduler (pid",
        "(killed by SIGKILL)",
    ],
    "misrouted_result": [
        "an item of queue `results[0]` (multiprocessing queue, empty; others of `results` have items: 1 (2 items))",
        "router",
    ],
    "joined_before_drained": [
        "for its turn to write into a multiprocessing queue",
        "for room in a pipe (full)",
        "so they wait for each other (deadlock)",
    ],
    "lock_across_await": [
        "for lock `lock`; task processor holds it (taken in table_wait_scenes.py:",
        "for task `asyncio.wait(",
        "runs its event loop, so they wait for each other (deadlock)",
    ],
    "undrained_queue": [
        "for what it has put in a multiprocessing queue to be handed on; its main program is over",
        "thread QueueFeederThread hands it on, and waits at",
        "for room in a pipe (full); no other process has the other end open",
    ],
    "unfinished_extension": [
        "polls (a loop in torch until",
        "fused_kernel_lock",
        "process compiler (pid",
    ],
    "both_send": [
        "for room to send to 127.0.0.1:",
        "(what was sent is not read)",
        "so they wait for each other (deadlock)",
    ],
    "handed_method": ["queue `batches` (queue.Queue, empty)"],
    "idle_server": ["no process waits for another", "task work waits for requests"],
    "parked_server": ["no process waits for another", "stays until it is ended", "waits for requests (for condition"],
    "idle_workers": [
        "no process waits for another",
        "is a server that waits for requests",
        "waits for requests (for an",
    ],
    "idle_pipeline": ["no process waits for another", "thread hand_on", "waits for requests (for an item of queue"],
    "given_to_an_object": ["only run (line", "a thread (started in line", "has ended"],
    "never_notified": ["`self.not_empty`", "is seen that would notify it, and no line of its file does so"],
    "unanswered_request": [
        "thread server is at the other end, and waits at",
        "(serve) for data from 127.0.0.1:",
        "thread rollout is at the other end, so they wait for each other (deadlock)",
    ],
    "own_threads": ["no process waits for another", "sleeps (time.sleep)"],
    "locks_of_one_name": ["lock `Metrics.lock`; thread logger holds it (taken in", "lock `Replay.lock`", "(deadlock)"],
    "dropped_request": [
        "task ask-1 waits",
        "only handle_outputs (line",
        "it is not in `self.requests` any more, where this function has put it",
    ],
    "cancelled_holders": ["for semaphore `slots`", "never released", "task holder-0 was cancelled"],
    "ended_program": [
        "for data from a pipe; process sh -c sleep",
        "should write into it, but has ended (killed by SIGABRT); process",
        "(sleep 3600) has inherited its end of the pipe, so no end of file comes",
    ],
    "ended_program_of_asyncio": ["should write into it, but has ended (exit code 3); process", "(sleep 3600) has"],
    "cut_item": [
        "for the rest of an item of queue `samples` (multiprocessing queue;",
        " of 1000",
        "has ended in the middle of it: process collector (pid",
        "(killed by SIGKILL)",
    ],
    "not_notified": [
        "condition `self.condition` to be notified, in a loop until `self.index >= expected` (self.index = ",
        "): that is so already, only the notification is missing; task poll should notify it, but sleeps",
    ],
    "has_put_already": ["only once (line", "would put an item in"],
}
NOT_SAID = {
    "own_threads": "rldbg-write",
    "idle_server": "would put",
    "idle_workers": "would put",
    "parked_server": "would notify",
    "idle_pipeline": "should put",
    "cancelled_holders": "deadlock",
    "has_put_already": "put-once should",
}


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
    until_said(lambda: explained_from_outside(unarmed, scene), WORDS[scene], *_unsaid(scene))


@pytest.mark.parametrize("scene", WORDS)
def test_it_is_explained_by_the_agent(armed, scene):
    until_said(lambda: explained_by_the_agent(armed, scene), WORDS[scene], *_unsaid(scene))


def _unsaid(scene):
    return (NOT_SAID[scene],) if scene in NOT_SAID else ()
