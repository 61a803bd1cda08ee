"""Real gloo deadlocks: who waits for whom, and one sentence that names the rank to blame."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from live_job import LiveJob, close_pipes, until

from rldbg.live import diagnose_stacks

SCENES = Path(__file__).with_name("gloo_scenes.py")


class Theatre:
    """A parent with torch imported, which forks the ranks of one scene at a time."""

    def __init__(self, job):
        self.job = job
        self.process = subprocess.Popen(
            [sys.executable, str(SCENES)],
            env=job.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=job.folder,
        )
        assert self.process.stdout.readline() == "READY\n"
        self.pids = []

    def play(self, scene, folder, world_size=3, timeout_s=600):
        folder.mkdir(exist_ok=True)
        self.process.stdin.write(f"{scene} {world_size} {folder} {timeout_s}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line.startswith("PIDS"), line
        self.pids = [int(word) for word in line.split()[1:]]
        until(lambda: set(self.pids) <= {p["pid"] for p in self.job.ps(all=True)}, "the ranks' agents")

    def curtain(self):
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        until(
            lambda: not any(p["pid"] in self.pids and p["state"] != "exited" for p in self.job.ps()), "the ranks' end"
        )
        self.pids = []


@pytest.fixture(scope="module")
def theatre(tmp_path_factory):
    with LiveJob(tmp_path_factory.mktemp("hangs")) as job:
        theatre = Theatre(job)
        yield theatre
        theatre.process.kill()
        theatre.process.wait()
        close_pipes(theatre.process)


@pytest.fixture
def scene(theatre, tmp_path):
    yield lambda name, **options: theatre.play(name, tmp_path, **options)
    theatre.curtain()


def _who(theatre):
    return ",".join(f"@{pid}" for pid in theatre.pids)


def _diagnose(theatre, kind):
    """Two looks, as `rldbg stacks --diagnose` takes them, until the ranks have come to rest in the deadlock."""

    def look():
        before, after = (theatre.job.client.request("stacks", who=_who(theatre))["stacks"] for _ in range(2))
        diagnosis = diagnose_stacks(before, after)
        return diagnosis if diagnosis.kind == kind else None

    return until(look, f"a diagnosis of kind {kind!r}")


def test_a_rank_that_never_entered_is_named_with_its_place(theatre, scene, tmp_path):
    scene("absent")
    until(lambda: _diagnose(theatre, "absent").ranks == (2,), "rank 2 to be late")
    done = theatre.job.rldbg("stacks", _who(theatre), "--diagnose", "--json", check=False)
    body = json.loads(done.stdout)
    assert done.returncode == 1 and body["diagnosis"]["ranks"] == [2]
    verdict = body["diagnosis"]["verdict"]
    assert verdict.startswith("rank 2 never entered all_reduce #2") and "gloo_scenes.py" in verdict
    assert "reward_of_a_slow_rank" in verdict
    # The odd one comes first, the two that wait alike are one group.
    assert [len(group["who"]) for group in body["groups"]] == [1, 2]
    assert body["groups"][1]["waiting_in"] == "all_reduce #2"
    text = theatre.job.rldbg("stacks", _who(theatre), "--locals").stdout
    assert text.index("reward_of_a_slow_rank") < text.index("all_reduce") and "go_on = " in text
    (tmp_path / "go").write_text("")


@pytest.mark.parametrize(
    ("name", "kind", "ranks", "words"),
    [
        ("disagreement", "disagreement", [1], ["broadcast", "all_reduce"]),
        ("roots", "disagreement", [0], ["broadcast of shape 3 from rank 1", "broadcast of shape 3 from rank 0"]),
        (
            "wrong_group",
            "disagreement",
            [1],
            [
                "rank 0 waits in all_reduce #1 of group ",
                "(ranks 0, 1), which rank 1 never entered (called it with group",
            ],
        ),
        ("cycle", "cycle", [0, 1], ["wait for each other", "all_reduce #1"]),
        ("receives", "cycle", [0, 1], ["recv from rank"]),
        ("interpreter_stuck", "absent", [0], ["rank 0 never entered all_reduce #1", "gloo_scenes.py"]),
        ("stopped", "absent", [1], ["rank 1 is stopped by the debugger"]),
    ],
)
def test_other_deadlocks_are_told_apart(theatre, scene, tmp_path, name, kind, ranks, words):
    scene(name)
    until(lambda: {p["rank"] for p in theatre.job.ps() if p["pid"] in theatre.pids} == {0, 1, 2}, "all ranks")
    (tmp_path / "go").write_text("")
    if name == "stopped":
        theatre.job.wait_stopped()
    # A rank that is still on its way makes another one the odd one.
    diagnosis = until(lambda: (it := _diagnose(theatre, kind)) and list(it.ranks) == ranks and it, f"{ranks} named")
    assert all(word in diagnosis.verdict for word in words), diagnosis


def _until_told(theatre, words):
    def look():
        done = theatre.job.rldbg("stacks", _who(theatre), "--diagnose", "--json", check=False)
        return [cause["verdict"] for cause in json.loads(done.stdout)["waits"]]

    return until(lambda: (found := look()) and words in found[0] and found[0], words)


def test_ranks_of_a_group_that_a_library_made_are_known_by_its_name(theatre, scene):
    scene("named_group")
    verdict = _until_told(theatre, "rank 2 never entered")
    assert "rank 1" not in verdict and "reward_of_a_slow_rank" in verdict


def test_groups_that_ranks_number_differently_are_told(theatre, scene):
    scene("uneven_groups")
    verdict = _until_told(theatre, "process group 1 is not the same")
    assert "its members are ranks 0, 2 on rank 0 and rank 2 on rank 2" in verdict
    assert "in the order of its calls: 1 so far on ranks 0, 1, 2 so far on rank 2" in verdict


@pytest.mark.parametrize(("timeout_s", "pause_s"), [pytest.param(2, 5), pytest.param(6, 20, marks=pytest.mark.soak)])
def test_a_pause_longer_than_the_collective_timeout_is_survived(theatre, scene, tmp_path, timeout_s, pause_s):
    # GIVEN two ranks whose collectives time out soon
    scene("patient", world_size=2, timeout_s=timeout_s)
    job = theatre.job
    job.wait_stopped()
    # WHEN one of them is stopped for longer while the other waits in the collective
    until(lambda: _waits(job, theatre.pids[1]), "rank 1 to wait")
    until(lambda: job.stopped()[0]["since_s"] >= pause_s, f"{pause_s} s", 60)
    assert not list(tmp_path.glob("survived_*"))
    job.client.request("continue", who="all")
    # THEN both get through
    waited = until(lambda: len(list(tmp_path.glob("survived_*"))) == 2 and tmp_path, "both ranks")
    assert float((waited / "survived_1").read_text()) > timeout_s


# Gloo gives up after the 2 s that the scene sets: on a busy machine that may be before the rank is scheduled again.
@pytest.mark.flaky(reruns=2)
def test_timeouts_that_the_user_set_are_raised_when_a_rank_stops(theatre, scene, tmp_path):
    scene("impatient", world_size=2)
    job = theatre.job
    job.wait_stopped()
    (tmp_path / "go").write_text("")
    until(lambda: _waits(job, theatre.pids[1]), "rank 1 to wait")
    waiting_since_s = job.stopped()[0]["since_s"]
    until(lambda: job.stopped()[0]["since_s"] >= waiting_since_s + 3, "3 s", 60)
    job.client.request("continue", who="all")
    waited = until(lambda: len(list(tmp_path.glob("survived_*"))) == 2 and tmp_path, "both ranks")
    assert float((waited / "survived_1").read_text()) > 2, "longer than the user's own timeout"


def test_what_cannot_be_protected_is_named(theatre, scene, tmp_path):
    scene("unprotected", world_size=2)
    job = theatre.job
    until(lambda: _waits(job, theatre.pids[1]), "rank 1 to wait")
    (tmp_path / "go").write_text("")
    (stopped,) = job.wait_stopped()
    assert "gloo_scenes/1 already waits in all_reduce: that call keeps its own timeout" in stopped["notes"]


def _waits(job, pid):
    stacks = job.client.request("stacks", who="all")["stacks"]
    threads = next((stack.get("threads", []) for stack in stacks if stack["pid"] == pid), [])
    return any(thread.get("collective") for thread in threads)
