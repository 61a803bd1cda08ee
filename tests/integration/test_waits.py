"""Every kind of wait, in real processes, armed and not: one sentence says who waits for what and why it never comes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from live_job import rldbg, until
from other_python import interpreter
from ray_stage import plain_environment
from scene_programs import ScenePrograms, armed_programs

from rldbg.live import UnarmedJob, explain, look_at_job

SCENES = Path(__file__).with_name("wait_scenes.py")
# What the sentence about each scene must say.
WORDS = {
    "lock_deadlock": [
        "pusher",
        "puller",
        "`self.tensors`",
        "`self.version`",
        "holds it",
        "deadlock",
        "wait_scenes.py:",
    ],
    "closure_locks": ["thread one", "`first`", "`second`", "wait for each other (deadlock)"],
    "own_lock": ["lock `lock`", "holds that itself (taken in wait_scenes.py:"],
    "empty_queue": [
        "`self.finished`",
        "queue.Queue, empty",
        "fill (line",
        "no thread or task is seen running it",
        "rollout-producer has ended",
    ],
    "leaked_item": [
        "queue `self.free` (queue.Queue, empty)",
        "episode takes one in line",
        "1 future has failed there with ValueError",
    ],
    "polled_container": [
        "for its loop while `len(self.accepted) < count` (len(self.accepted) = 2, count = 4) to end",
        "thread collector should change `self.accepted`, and waits at",
        "the main thread should put an item in, so they wait for each other (deadlock)",
    ],
    "one_after_the_other": [
        "for barrier `together`: 1 of 2 have arrived",
        "starts process meets-{number} (line",
        "which would arrive there, only afterwards, so they wait for each other (deadlock)",
    ],
    "started_afterwards": ["queue `items`", "thread late-filler would run it, and is started only afterwards, in line"],
    "thread_of_asyncio_left": [
        "the main thread waits at wait_scenes.py:",
        "for its other threads to end; what asyncio.run was given is over; thread asyncio_0 has not ended, and waits",
        "for an item of queue `self.entered` (queue.Queue, empty) (handed to it in wait_scenes.py:",
        "(listen)); in its file only enter (line",
    ],
    "file_lock_of_a_thread": [
        "for the lock on file",
        "thread warm-up holds it (as `FileLock(path)`, taken in wait_scenes.py:",
        "the main thread should set it, so they wait for each other (deadlock)",
    ],
    "busy_producer": ["`items`", "slow-producer should put an item in, but sleeps", "(produce)"],
    "full_queue": ["room in queue `items`", "2 of 2 items", "take an item out"],
    "dead_engine": ["multiprocessing queue", "process engine (pid", "has ended (killed by SIGKILL)"],
    "completed_elsewhere": ["task consumer", "queue `results`", "1 items", "in another thread", "call_soon_threadsafe"],
    "lost_future": [
        "task ask-reward",
        "future `self.reply`",
        "only answer (line",
        "no thread or task is seen running it",
    ],
    "async_queue": ["task consume", "queue `items` (asyncio.Queue, empty)", "put an item in"],
    "async_locks": ["task left", "task right", "wait for each other (deadlock)"],
    "child_process": ["to end", "is that process, but sleeps"],
    "file_lock": ["the lock on file", "weights.lock", "holds it, but sleeps"],
    "silent_peer": ["data from 127.0.0.1:", "has not accepted the connection"],
    "unset_event": ["event `loaded` to be set", "would set it"],
    "lost_join": ["for thread evaluator to end", "event", "would set it"],
    "executor": ["future `scored`", "thread scorer_0 should complete it, but sleeps", "(work)"],
    "broken_barrier": ["barrier `together`: 1 of 2 have arrived", "second-party has ended"],
    "barrier_and_lock": ["thread evaluator should arrive there", "for lock `self.lock`", "(deadlock)"],
    "lost_semaphore": ["semaphore `slots`", "it was acquired and never released", "thread client-0 has ended"],
    "both_read": ["for data from a pipe", "for input on its standard input", "wait for each other (deadlock)"],
    "standard_input": ["input on its standard input"],
    "sleeps": ["no process waits for another", "sleeps (time.sleep) at wait_scenes.py:"],
    "computes": ["no process waits for another", "is computing at wait_scenes.py:"],
    "raised_with_thread": ["raised ValueError: reward is not a number at wait_scenes.py:", "(raised_with_thread)"],
    "import_deadlock": ["the import of module `left_half`", "first-import imports it"],
    "process_locks": ["lock `grads`", "lock `params`", "holds it", "wait for each other (deadlock)"],
    "blocked_loop": ["for task `loading`", "runs it, but sleeps (time.sleep) at wait_scenes.py:", "(load)"],
    "dead_thread": ["`self.answers` (queue.Queue, empty)", "thread engine-loop has ended"],
    "polls_for_file": ["a loop until `os.path.exists(checkpoint)` (checkpoint = '/nowhere/step_4')", "polls_for_file)"],
    "async_semaphore": [
        "for semaphore `slots`; task rollout-0 holds it (taken in wait_scenes.py:",
        "for future `reply`",
    ],
    "pooled_library_call": ["future `judged` to be completed", "thread judge_0", "and waits at threading.py:"],
    "killed_pool_worker": [
        "the results of pool `pool`",
        "all 2 workers of the pool are idle",
        "the one that had this work has ended",
    ],
    "process_event": ["event `loaded` to be set", "process engine (pid", "has ended (exit code 3)"],
    "named_pipe": ["for a process to open the other end of ", "weights.fifo"],
    "silent_pipe": [
        "data from the named pipe",
        "silent_pipe_of_weights",
        "is at the other end, but sleeps",
        "(upload)",
    ],
    "loop_waits_for_its_task": ["queue `results`", "task producer should put", "its event loop", "(deadlock)"],
    "loop_in_itself": ["future `scored` to be completed", "its thread runs an event loop"],
    "hung_server": ["for data from 127.0.0.1:", "thread request", "is at the other end, but sleeps", "(answer)"],
    "forked_with_lock": ["lock `lock`", "thread log-writer of wait_scenes", "held it when this process was forked"],
    "retries": ["polls (a loop", "tries `update_weights()` again after each ConnectionError (status = '503')"],
    "locked_database": ["for the lock on file", "runs.db", "holds it, but sleeps"],
    "abandoned_socket": ["data from a local socket", "no other process has the other end", "has ended (exit code 9)"],
    "failed_task": ["`items` to be marked as done", "task reward-worker has ended: RuntimeError: reward of item 7"],
    "stale_lock_file": [
        "kernel_cache.lock (",
        "old) to be removed; process",
        "which is named in it, has ended: nobody will remove",
    ],
    "cancelled_producer": [
        "event `loaded`",
        "only load (line",
        "is seen running it: task weights-loader was cancelled",
    ],
    "task_group": [
        "task fetch-0 waits at",
        "create_future()` to be completed",
        "(main) for the tasks of its TaskGroup",
    ],
    "killed_reader": [
        "for its turn to take an item of queue `prompts`",
        "never releases the lock of the queue",
        "process worker-1 (pid",
        "has ended (killed by SIGKILL)",
    ],
    "managed_queue": ["an item of queue `scores` (multiprocessing queue)", "would put an item in"],
    "managed_circle": ["queue `samples` (multiprocessing", "(_act) for lock `lock`", "wait for each other (deadlock)"],
    "shared_events": ["event `go`", "should set it, and waits", "event `done`", "wait for each other (deadlock)"],
    "shared_signal": ["condition `turn`", "should release it", "semaphore `free`", "wait for each other (deadlock)"],
    "library_queue": [
        "an item of queue `samples.threads` (ThreadsQueue, empty)",
        "an item of queue `weights.tasks` (relay.Queue, empty)",
        "wait for each other (deadlock)",
    ],
    "interpreter_kept": ["for the interpreter lock (GIL); thread tokenizer holds it, but is in C code", "(tokenize)"],
    "next_batch": ["a batch of its data loader", "and waits at wait_scenes.py:", "the other end of ", "item.fifo"],
    "blocked_client_loop": ["the main thread waits", "thread client-loop runs the event loop that should complete it"],
    "served_stream": ["for data from 127.0.0.1:", "is at the other end, and waits", "(answer) for event `loaded`"],
    "served_request": [
        "for data from 127.0.0.1:",
        "is at the other end, and waits",
        "(application) for event `loaded`",
    ],
    "remote_call": [
        "the answer to gRPC call `/engine.Engine/Generate` from 127.0.0.1:",
        "is at the other end, and waits",
        "(generate) for event `loaded`",
    ],
    "data_loader": ["a batch of its data loader", "worker 0 (pid", "has ended (killed by SIGKILL)"],
}
# Who is seen by an agent is not seen as an exception of the main program: that is held or recorded as a crash.
ARMED = [scene for scene in WORDS if scene not in ("raised_with_thread", "import_deadlock", "standard_input")]


@pytest.fixture(scope="module")
def unarmed(tmp_path_factory):
    programs = ScenePrograms(SCENES, tmp_path_factory.mktemp("unarmed"), plain_environment(), WORDS)
    yield programs
    programs.end()


@pytest.fixture(scope="module")
def armed(tmp_path_factory):
    with armed_programs(SCENES, tmp_path_factory.mktemp("armed"), ARMED) as programs:
        yield programs


def _family(pid):
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def _verdict(causes):
    return " | ".join(text for cause in causes for text in (cause.verdict, *cause.evidence))


def _until_said(look, words):
    """A scene is ready a moment before it waits."""
    seen = []

    def said():
        seen[:] = [_verdict(look())]
        return all(word in seen[0] for word in words)

    try:
        until(said, words)
    except AssertionError:
        raise AssertionError(f"{words} not in {seen}") from None
    return seen[0]


@pytest.mark.parametrize("scene", WORDS)
def test_a_wait_is_explained_from_outside(unarmed, scene):
    job = UnarmedJob(pids=(unarmed.pid(scene),))
    _until_said(lambda: explain(look_at_job(job, apart_s=0.3).stacks), WORDS[scene])


@pytest.mark.parametrize("scene", ARMED)
def test_a_wait_is_explained_by_the_agent(armed, scene):
    who = ",".join(f"@{process}" for process in _family(armed.pid(scene)))
    until(lambda: any(p["pid"] == armed.pid(scene) for p in armed.job.ps()), f"the agent of {scene}")

    def look():
        before, after = (armed.job.client.request("stacks", who=who, waits=True)["stacks"] for _ in range(2))
        return explain(after, before=before)

    words = [word for word in WORDS[scene] if scene != "computes" or "computing" not in word]
    if scene == "dead_thread":
        words.append("RuntimeError: out of pages was raised at wait_scenes.py:")
    _until_said(look, words)


_NEWER = (
    "lock_deadlock",
    "lost_future",
    "cancelled_producer",
    "completed_elsewhere",
    "async_locks",
    "dead_engine",
    "raised_with_thread",
)
# Of Python 3.10 only py-spy knows the stacks: names and lines, not objects.
OTHERS = {
    "3.12": dict.fromkeys(_NEWER),
    "3.13": dict.fromkeys(_NEWER),
    "3.10": {
        "closure_locks": ["thread one", "`first`", "(deadlock)"],
        "unset_event": ["event `loaded` to be set"],
        "sleeps": ["sleeps (time.sleep) at wait_scenes.py:"],
    },
}


@pytest.mark.parametrize("version", OTHERS)
def test_processes_of_other_pythons_are_explained(tmp_path, version):
    programs = ScenePrograms(SCENES, tmp_path, plain_environment(), OTHERS[version], python=interpreter(version))
    try:
        for scene, words in OTHERS[version].items():
            job = UnarmedJob(pids=(programs.pid(scene),))
            _until_said(lambda job=job: explain(look_at_job(job, apart_s=0.3).stacks), words or WORDS[scene])
    finally:
        programs.end()


def test_a_forked_worker_is_not_told_with_the_tasks_of_its_parent(tmp_path):
    programs = ScenePrograms(SCENES, tmp_path, plain_environment(), ["pooled_in_loop"])
    try:
        job = UnarmedJob(pids=(programs.pid("pooled_in_loop"),))
        words = ["run_in_executor(pool, _grade)` to be completed", "others wait because of that", "to end: sleep 3600"]
        _until_said(lambda: explain(look_at_job(job, apart_s=0.3).stacks), words)
        parent, worker = look_at_job(job, apart_s=0.3).stacks
        assert parent["tasks"] and not worker["tasks"]
    finally:
        programs.end()


def test_the_command_line_explains_a_process_that_nobody_armed(unarmed):
    pid = unarmed.pid("lock_deadlock")
    done = rldbg("stacks", "--pid", str(pid), "--diagnose", "--json", check=False)
    body = json.loads(done.stdout)
    assert done.returncode == 1 and body["diagnosis"]["kind"] == "deadlock"
    assert {"pusher", "puller"} <= {group["thread"] for group in body["groups"]}
    text = rldbg("stacks", "--pid", str(pid)).stdout
    assert "pusher  waits for lock `self.version`" in text and "wait for each other (deadlock)" in text
    assert "self = <Weights>" in rldbg("stacks", "--pid", str(pid), "--locals").stdout
    gone = rldbg("stacks", "--pid", "4194303", check=False)
    assert gone.returncode == 4 and "does not exist" in gone.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_the_right_to_trace_the_command_that_gives_it_is_named(unarmed):
    program = (
        "import os, sys\nfrom rldbg.agent.waits import look\nos.setuid(65534)\n"
        "print(look([int(sys.argv[1])], children=False)[0]['unanswered'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(unarmed.pid("sleeps"))], capture_output=True, text=True, check=False
    )
    assert "belongs to uid 0" in done.stdout and "sudo rldbg stacks" in done.stdout, done
