"""Waits for an answer that was left out for an item, or dropped because nobody waits under its key, in real processes,
armed and not."""

from pathlib import Path

import pytest
from ray_stage import plain_environment
from scene_programs import ScenePrograms, armed_programs, explained_by_the_agent, explained_from_outside, until_said

SCENES = Path(__file__).with_name("answer_scenes.py")
# What the sentence about each scene must say.
WORDS = {
    "handler_returns": [
        "queue `self.scores`",
        "thread reward-worker should put an item in (it does so in line",
        "of score, which `if not sample['answer']: return` in line",
        "its items come from ask (answer_scenes.py:",
        "in the main thread, which is waiting",
    ],
    "pipe_continue": ["is at the other end (it answers in line", "which `if command == 'seed': continue` in line"],
    "process_returns": ["of handle, which `if len(tokens) > 4: return` in line"],
    "future_skipped": ["task batch-worker", "of run_one, which `if prompt.startswith('#'): return` in line"],
    "socket_continue": ["thread param-server", "which `if not line.startswith('{'): continue` in line"],
    "stream_continue": ["(it answers in line", "which `if message['kind'] == 'heartbeat': continue` in line"],
    "exception_caught": ["thread weight-server", "of apply, which an exception (caught in line", ") skips)"],
    "dropped_by_type": [
        "for future `awaited` to be completed; thread dispatcher",
        "but drops an answer whose key `reply['id']` is not in `self.pending` (`if awaited is None: continue` in line",
        "the last answer had key '2', `self.pending` has keys 1, 2",
    ],
    "dropped_not_in": [
        "the main thread waits at",
        "whose key `number` is not in `self.open` (`if number not in self.open: continue` in line",
        "the last answer had key 'req-7', `self.open` has key 7",
        "thread engine waits for an item of queue `self.asked`",
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
}
DROPPED = [scene for scene in WORDS if scene.startswith("dropped")]


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
    """Who waits for an answer is not in a ring with an engine that is idle."""
    return ("deadlock",) if scene in DROPPED else ("only afterwards",) if scene == "leaked_slots" else ()
