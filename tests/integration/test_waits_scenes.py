"""Waits whose cause lies elsewhere, in real processes, armed and not: one sentence says who waits for what and why it
never comes."""

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from ray_stage import plain_environment
from scene_programs import ScenePrograms, armed_programs, explained_by_the_agent, explained_from_outside, until_said

from rldbg.live import LOOKS_APART_S, UnarmedJob, explain_job, explain_run

HERE = Path(__file__).parent
# Waits for a step that was skipped, and helpers that only have nothing to do.
HELPERS = "helper_wait_scenes.py"
# For what is kept in a table, was given to others or is reached by a call.
TABLES = "table_wait_scenes.py"
# For an answer that was left out for an item, or dropped because nobody waits under its key.
ANSWERS = "answer_scenes.py"
# Of two for each other, without a lock.
PAIRS = "pair_wait_scenes.py"
# What the sentence about each scene of a file must say.
WORDS = {
    HELPERS: {
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
        "idle_neighbour": [
            "an item of queue `channels['policy'][1]`",
            "process policy-engine (pid",
            "(killed by SIGKILL)",
        ],
        "numbered_engines": [
            "for an item of queue `answers` (multiprocessing queue",
            "process engine-0 (pid",
            "has ended (exit code 3), and ",
            "which does the same, waits for its next item",
        ],
        "renewed_condition": [
            "(len(self.samples) = 4, count = 2): that does not hold any more, only the notification is missing",
            "this was `self.changed`, which stands for something else by now",
        ],
        "quota_of_a_window": ["thread judge should put an item in, but waits for a time limit of its own at"],
        "paced_by_clock": ["for room in queue `prepared`", "should take an item out, but sleeps (time.sleep)"],
        "limited_condition": [
            "for condition `changed`",
            "in a loop while `len(batch) < 4` (len(batch) = 0) or its time limit is over",
        ],
        "told_ranks": ["all_reduce", "broadcast", "wait for each other"],
        "taken_by_next": [
            "event `self.synced` to be set",
            "because of that thread prefetch waits at",
            "for room in queue `self.slots['ready']`",
        ],
        # At the moment of a look the client sleeps between two questions, or asks one.
        "polled_server": ["helper_wait_scenes.py:"],
        "never_healthy": [
            "polls (a loop that tries `urllib.request.urlopen(url, timeout=5).close()` again after each urllib.error",
            "listens at 127.0.0.1:",
        ],
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
        "failed_save": [
            "for an item of queue `self.saved` (queue.Queue, empty); the work of one of `self.begun` has failed, and",
            "OSError: [Errno 28] No space left on device was raised at helper_wait_scenes.py:",
            "(write); it would put an item in only in line",
        ],
        "failed_key": [
            "key `saved/2` of the torch.distributed store `store`; the work of future `written` has failed, and",
            "(_write_step); it would set it only in line",
        ],
        "begun_already": ["barrier `together`: 2 of 3 have arrived", "thread shard-2 has ended"],
    },
    TABLES: {
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
        "dropped_result": [
            "queue `tasks`",
            "has the other end of the queue, but runs no code that would put an item in",
        ],
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
        "parked_server": [
            "no process waits for another",
            "stays until it is ended",
            "waits for requests (for condition",
        ],
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
        "locks_of_one_name": [
            "lock `Metrics.lock`; thread logger holds it (taken in",
            "lock `Replay.lock`",
            "(deadlock)",
        ],
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
    },
    ANSWERS: {
        "handler_returns": [
            "queue `self.scores`",
            "thread reward-worker should put an item in (it does so in line",
            "of score, which `if not sample['answer']: return` in line",
            "its items come from ask (answer_scenes.py:",
            "in the main thread, which is waiting",
        ],
        "equal_rewards": [
            "queue `self.batch`",
            "thread group-filter should put an item in (it does so in line",
            "only if `any((abs(each) > 1e-06 for each in advantages))`; of its last item advantages = [0.0, 0.0])",
        ],
        "useful_groups": ["thread group-filter should put an item in (it does so in line", "`max(each) > min(each)`"],
        "pipe_continue": ["is at the other end (it answers in line", "which `if command == 'seed': continue` in line"],
        "process_returns": ["of handle, which `if len(tokens) > 4: return` in line"],
        "future_skipped": ["task batch-worker", "of run_one, which `if prompt.startswith('#'): return` in line"],
        "socket_continue": ["thread param-server", "which `if not line.startswith('{'): continue` in line"],
        "stream_continue": ["(it answers in line", "which `if message['kind'] == 'heartbeat': continue` in line"],
        "exception_caught": ["thread weight-server", "of apply, which an exception (caught in line", ") skips)"],
        "dropped_by_type": [
            "for future `awaited` to be completed; thread dispatcher",
            "but drops an answer whose key `reply['id']` is not in `self.pending`",
            "(`if awaited is None: continue` in line",
            "the last answer had key '2', `self.pending` has keys 1, 2",
        ],
        "dropped_not_in": [
            "the main thread waits at",
            "whose key `number` is not in `self.open` (`if number not in self.open: continue` in line",
            "the last answer had key 'req-7', `self.open` has key 7",
            "thread engine waits for an item of queue `self.asked`",
        ],
        "dropped_by_one_of_three": [
            "thread listener-b would complete it",
            "the last answer had key 'req-7', `self.open` has key 7",
        ],
        "dropped_over_tcp": [
            "for future `waiter` to be completed; task on_engine",
            "is not in `self.inflight` (it does so only if `waiter is not None and (not waiter.done())`)",
        ],
        "dropped_over_pipe": [
            "for event `arrived` to be set; thread collector",
            "(`if arrived is None: continue` in line",
            "the last answer had key 4, `self.waiting` has key 3",
        ],
        "unknown_client": [
            "rpc-server",
            "should put an item in (it does so in line",
            "which `if inbox is None: continue` in line",
            "the last answer had key 'Actor-1', `clients` has keys 'actor-0', 'actor-1')",
        ],
        "never_marked": ["task_done was not called (thread saver does so in line", "`if job['dry']: continue` in line"],
        "leaked_slots": ["for an item of queue `self.free`", "which an exception in between skips"],
    },
    PAIRS: {
        "kept_answer": [
            "for input on its standard input",
            "task judge-reader of ",
            "is at the other end, and waits at pair_wait_scenes.py:",
            "(what it wrote last (3 bytes) is still in the buffer of its standard output, not flushed), so they wait",
            "because of that task _ask_judge (Task-1) of",
        ],
        "kept_question": [
            "(what it wrote last (10 bytes) is still in the buffer of `program.stdin`, not flushed), so they wait for",
        ],
        "kept_request": [
            "the main thread waits at pair_wait_scenes.py:",
            "(what it wrote last (9 bytes) is still in the buffer of `self.file`, not flushed)",
        ],
        "loops_of_threads": [
            "the main thread waits at pair_wait_scenes.py:",
            "for its loop while `self.rolled <= self.trained` (self.rolled = 0, self.trained = 0) to end",
            "thread roller should change `self.rolled`, and waits at",
            "for its loop until `self.trained > self.rolled`",
            "the main thread should change `self.trained`, so they wait for each other (deadlock)",
        ],
        "woke_the_other": [
            "thread learner waits at pair_wait_scenes.py:",
            "`self.samples < 1` (self.samples = 1): that does not hold any more, only the notification is missing",
            "thread engine waits for the same condition, in a loop while `self.weights < 1` (self.weights = 0)",
            "calls notify(), which wakes one of them only: if its own loop goes on, the notification is lost",
        ],
        "one_client": [
            "for its turn to set key `weights/1` of the torch.distributed store `store`; thread publisher has the",
            "connection of that store, which serves one call at a time, and waits at",
            "the main thread is at the call that would set it, so they wait for each other (deadlock)",
        ],
        "loops_in_turn": ["thread roller polls (a loop while `self.turn != own` (self.turn = '"],
        "loops_by_ticks": [
            "for its loop until `self.rolled`",
            "should change `self.trained`",
            "so they wait for each other (deadlock)",
        ],
        "loops_by_helper": [
            "for its loop until `self.rolled` (self.rolled = False) to end",
            "should change `self.trained`",
            "so they wait for each other (deadlock)",
        ],
        "loops_by_globals": [
            "for its loop until `SAVED` (SAVED = False) to end; thread other should change `SAVED`",
            "so they wait for each other (deadlock)",
        ],
        "loops_of_tasks": [
            "should change `self.rolled`",
            "should change `self.trained`",
            "so they wait for each other (deadlock)",
        ],
        "loops_of_processes": [
            "for its loop until `loaded.value` (loaded.value = 0) to end",
            "should change `loaded.value`, and waits at",
            "for its loop while `version.value < 1` (version.value = 0) to end",
            "should change `version.value`, so they wait for each other (deadlock)",
        ],
    },
}
# What nothing may say.
NOT_SAID = {
    "loops_in_turn": "deadlock",
    "skipped_end": "should set it, and waits",
    "paced_by_clock": "polls",
    "idle_neighbour": "reference-engine",
    "taken_by_next": "would take an item out",
    "writer_over": "may wait for each other",
    "begun_already": "only afterwards",
    "dropped_answer": "deadlock",
    "tools_that_end": "has ended",
    "environment_failed": "deadlock",
    "polled_server": "deadlock",
    "own_threads": "rldbg-write",
    "idle_server": "would put",
    "idle_workers": "would put",
    "parked_server": "would notify",
    "idle_pipeline": "should put",
    "cancelled_holders": "deadlock",
    "has_put_already": "put-once should",
    "dropped_by_type": "deadlock",
    "dropped_not_in": "deadlock",
    "dropped_over_tcp": "deadlock",
    "dropped_over_pipe": "deadlock",
    "leaked_slots": "only afterwards",
}
# Of what goes on, two looks at once are one.
GOES_ON = {"polled_server", "tools_that_end"}
ALL_WORDS = {scene: words for scenes in WORDS.values() for scene, words in scenes.items()}
SCENES = [(file, scene) for file, scenes in WORDS.items() for scene in scenes]


def _programs(file, kind, folder):
    if kind == "armed":
        return armed_programs(HERE / file, folder, WORDS[file])
    return ScenePrograms(HERE / file, folder, plain_environment(), WORDS[file])


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Programs of a file, for all tests in a row that ask for them; an indirect parameter would start them for each."""
    now = {}
    with ExitStack() as stack:

        def programs_of(file, kind):
            if (file, kind) not in now:
                stack.close()
                now.clear()
                now[file, kind] = stack.enter_context(_programs(file, kind, tmp_path_factory.mktemp(kind)))
            return now[file, kind]

        yield programs_of


@pytest.mark.parametrize(("file", "scene"), SCENES)
def test_it_is_explained_from_outside(started, file, scene):
    _explained(started(file, "unarmed"), scene, explained_from_outside)


@pytest.mark.parametrize(("file", "scene"), SCENES)
def test_it_is_explained_by_the_agent(started, file, scene):
    _explained(started(file, "armed"), scene, explained_by_the_agent)


def test_what_has_ended_a_thread_is_told_with_it(tmp_path):
    raised = ["thread prefetch has ended: KeyError: 'integrate' was raised at helper_wait_scenes.py:"]
    with armed_programs(HERE / HELPERS, tmp_path, ["prefetcher_failed"]) as armed:
        until_said(lambda: explained_by_the_agent(armed, "prefetcher_failed"), raised)


def test_what_has_ended_a_thread_of_a_server_is_told_with_who_asks_it(tmp_path):
    raised = ["listens at 127.0.0.1:", "thread model-loader has ended: FileNotFoundError: [Errno 2]"]
    with armed_programs(HERE / HELPERS, tmp_path, ["never_healthy"]) as armed:
        until_said(lambda: explained_by_the_agent(armed, "never_healthy"), raised)


@pytest.mark.parametrize("kind", ["unarmed", "armed"])
def test_a_ring_that_closes_between_two_looks_is_found_in_a_third(kind, tmp_path):
    scenes = HERE / HELPERS
    with armed_programs(scenes, tmp_path, ["closing_late"] if kind == "armed" else []) as programs:
        if kind == "unarmed":
            programs = ScenePrograms(scenes, tmp_path, plain_environment(), ["closing_late"])
        pid = programs.pid("closing_late")
        threading.Timer(0.5, (programs.folder / "go").touch).start()
        seen = explain_run(programs.job.client)[1] if kind == "armed" else explain_job(UnarmedJob(pids=(pid,)))[1]
        if kind == "unarmed":
            programs.end()
    assert "so they wait for each other (deadlock)" in seen[0].verdict


def _explained(programs, scene, look):
    apart = {"apart_s": LOOKS_APART_S} if scene in GOES_ON else {}
    unsaid = (NOT_SAID[scene],) if scene in NOT_SAID else ()
    until_said(lambda: look(programs, scene, **apart), ALL_WORDS[scene], *unsaid)
