"""An error that was logged or printed before its program went on is told with the wait for what it should give."""

import re
import time
from pathlib import Path

import psutil
import pytest
from live_job import until
from other_python import interpreter
from ray_stage import plain_environment
from scene_programs import ScenePrograms, armed_programs

from rldbg.live import LOOKS_APART_S, UnarmedJob, explain, look_at_job

SCENES = Path(__file__).with_name("said_scenes.py")
_FAILED = r"caught ValueError: invalid literal for int\(\) with base 10: 'four' \(said_scenes.py:\d+ \(score\), "
_SERVED = rf"{_FAILED}caught at :\d+ \(serve\)\)"
# What is found in the first sentence, with an agent and without.
ARMED = {
    "logged_with_traceback": rf"thread engine-loop {_SERVED} \d+ s ago and went on",
    "logged_as_text": rf"thread engine-loop {_SERVED} \d+ s ago and went on",
    "printed": rf"thread engine-loop {_SERVED} \d+ s ago and went on",
    "printed_as_text": rf"thread engine-loop {_SERVED} \d+ s ago and went on",
    "said_by_a_task": rf"task engine-task {_SERVED} \d+ s ago and went on",
    "said_by_a_child": rf"\(engine\) {_FAILED}caught at :\d+ \(serve\)\) \d+ s ago and went on",
    "said_before_it_ended": rf"\(scheduler\) {_FAILED}caught at :\d+ \(_die_of\)\) \d+ s ago and has ended",
    "idle_loops": rf"take-requests of \S+ \(core\) {_FAILED}caught at :\d+ \(take_requests\)\) \d+ s ago and went on",
}
UNARMED = {
    scene: re.sub(r"caught at :\\d\+ \\\((\w+)\\\)", r"caught in \1", ARMED[scene])
    .replace(r"\S+ \(core\)", r"core@\d+")
    .replace(r"\(engine\)", r"engine@\d+")
    for scene in ARMED
    if scene not in ("logged_as_text", "said_before_it_ended")
}

_RAISED = r"process saver of \S+ raised ValueError: .* \(said_scenes.py:\d+ \(score\)\) \d+ s ago and has ended"
UNARMED["raised_by_a_child"] = rf"process saver \(pid \d+\) has ended \(exit code 1\); {_RAISED}"


@pytest.fixture(scope="module")
def unarmed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unarmed")
    programs = ScenePrograms(SCENES, folder, plain_environment(), [*UNARMED, "healthy"], logged=True)
    yield programs
    programs.end()


@pytest.fixture(scope="module")
def armed(tmp_path_factory):
    with armed_programs(SCENES, tmp_path_factory.mktemp("armed"), [*ARMED, "only_logged", "healthy"]) as programs:
        yield programs


def _outside(programs, scene):
    return explain(look_at_job(UnarmedJob(pids=(programs.pid(scene),)), apart_s=0.3).stacks)


def _inside(programs, scene):
    pid = programs.pid(scene)
    below = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    # Those that have ended are still known to the broker.
    known = programs.job.client.request("stacks", who="all")["stacks"]
    gone = [each["pid"] for each in known if pid in (each.get("started_by") or ())]
    who = ",".join(f"@{each}" for each in dict.fromkeys([pid, *below, *gone]))
    before = programs.job.client.request("stacks", who=who, waits=True)["stacks"]
    time.sleep(LOOKS_APART_S)
    return explain(programs.job.client.request("stacks", who=who, waits=True)["stacks"], before=before)


def _until_told(look, pattern):
    seen = []

    def told():
        seen[:] = look()
        return re.search(pattern, seen[0].verdict)

    try:
        until(told, pattern)
    except AssertionError:
        raise AssertionError(f"{pattern} not in {[(each.verdict, each.evidence) for each in seen]}") from None
    return seen[0]


@pytest.mark.parametrize("scene", ARMED)
def test_the_error_is_told_by_the_agent(armed, scene):
    until(lambda: any(p["pid"] == armed.pid(scene) for p in armed.job.ps()), f"the agent of {scene}")
    _until_told(lambda: _inside(armed, scene), ARMED[scene])


@pytest.mark.parametrize("scene", UNARMED)
def test_the_error_is_read_where_the_process_prints(unarmed, scene):
    _until_told(lambda: _outside(unarmed, scene), UNARMED[scene])


def test_an_error_of_another_thread_is_listed_below_the_finding(armed):
    until(lambda: any(p["pid"] == armed.pid("only_logged") for p in armed.job.ps()), "the agent")
    found = _until_told(lambda: _inside(armed, "only_logged"), "queue `engine.results`")
    assert "ERROR" not in found.verdict
    said = [line for line in found.evidence if line.startswith("also said: ")]
    assert re.search(r"thread logger of \S+ logged ERROR: the request is dropped", said[0]), found


def test_two_loops_that_wait_for_requests_are_not_a_deadlock(unarmed):
    found = _until_told(lambda: _outside(unarmed, "idle_loops"), UNARMED["idle_loops"])
    assert found.kind == "event_loop" and "wait for each other" not in found.verdict, found


@pytest.mark.parametrize("way", ["armed", "unarmed"])
def test_a_program_that_says_errors_and_goes_on_does_not_hang(way, request):
    programs = request.getfixturevalue(way)
    look = _inside if way == "armed" else _outside
    programs.pid("healthy")
    if way == "armed":
        until(lambda: any(p["pid"] == programs.pid("healthy") for p in programs.job.ps()), "the agent")
    for _ in range(3):
        first = look(programs, "healthy")[0]
        assert first.is_harmless and "ValueError" not in first.verdict, first


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_errors_of_other_pythons_are_told(tmp_path, version):
    programs = ScenePrograms(
        SCENES, tmp_path, plain_environment(), ["logged_with_traceback"], python=interpreter(version), logged=True
    )
    try:
        _until_told(lambda: _outside(programs, "logged_with_traceback"), UNARMED["logged_with_traceback"])
    finally:
        programs.end()
