"""`rldbg run --watch` and `rldbg.watch` on real processes: an event is said, steps are kept, ranks stop."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import RLDBG, clean_environment

import rldbg

WAIT = """\
import json, os, sys, time
from pathlib import Path
import rldbg

def wait_until_judged(recording, step):
    # Steps of this loop take no time: without this it would be over before the watcher has started.
    judged, deadline = recording / ".watch" / "judged", time.monotonic() + 60
    while (json.loads(judged.read_text())["step"] if judged.exists() else -1) < step and time.monotonic() < deadline:
        time.sleep(0.01)
"""
LOOP = f"""\
{WAIT}

stopped, recording = Path(sys.argv[1]), Path(os.environ["RLDBG_RUN"]) / "recording"
recorder = rldbg.Recorder(recording, keep_last=8)
for step in range(2000):
    reward = 0.5 + 0.01 * (step % 3)
    recorder.record("training_metrics", step=step, metrics={{"reward": reward if step < 12 else 0.1}})
    recorder.flush()
    recorder.end_step(step)
    if stopped.exists():  # the test has seen this process stopped, and resumed it
        break
    wait_until_judged(recording, step - 1)
else:
    sys.exit("nobody stopped it")
recorder.close()
"""


RANK = f"""\
{WAIT}

class Files:
    # A rank ends a step only when both have begun it, as in a collective.
    def __init__(self, rank):
        self.rank, self.folder = rank, Path(os.environ["RLDBG_RUN"]) / "begun"
        self.folder.mkdir(exist_ok=True)

    def barrier(self, step):
        (self.folder / f"{{step}}-{{self.rank}}").touch()
        while len(list(self.folder.glob(f"{{step}}-*"))) < 2:
            time.sleep(0.005)

class Gloo:
    def __init__(self, rank):
        import torch.distributed as dist
        dist.init_process_group("gloo")
        self.dist = dist

    def barrier(self, _step):
        self.dist.barrier()

def train(rank, group, stopped):
    recording = Path(os.environ["RLDBG_RUN"]) / "recording"
    recorder = rldbg.Recorder(recording, keep_last=8, identity=rldbg.Identity(role="policy", rank=rank))
    for step in range(2000):
        group.barrier(step)
        reward = 0.5 + 0.01 * (step % 3) if step < 12 else 0.1
        recorder.record("training_metrics", step=step, metrics={{"reward": reward}})
        recorder.flush()
        recorder.end_step(step)
        (recording.parent / f"last-{{rank}}").write_text(str(step))
        if stopped.exists():
            break
        wait_until_judged(recording, step - 1)
    else:
        sys.exit("nobody stopped it")
    recorder.close()
"""
LAUNCHES = {
    "processes": (
        "train(int(sys.argv[2]), Files(int(sys.argv[2])), Path(sys.argv[1]))",
        ["sh", "-c", 'python rank.py "$0" 0 & python rank.py "$0" 1; wait'],
    ),
    "torchrun": (
        'rank = int(os.environ["RANK"])\ntrain(rank, Gloo(rank), Path(sys.argv[1]))',
        ["torchrun", "--standalone", "--nproc-per-node", "2", "rank.py"],
    ),
    "ray": (
        "import ray\nray.init(num_cpus=2, include_dashboard=False)\n"
        "@ray.remote\nclass Policy:\n    def fit(self, rank, stopped):\n"
        "        train(rank, Files(rank), Path(stopped))\n"
        "ray.get([Policy.options(name=f'policy-{r}').remote().fit.remote(r, sys.argv[1]) for r in range(2)])",
        ["python", "rank.py"],
    ),
}


def test_a_run_stops_after_an_event_and_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    run, stopped = tmp_path / "run", tmp_path / "stopped"
    words = ["run", "--run", str(run), "--watch", "--stop", "--", "python", "loop.py", str(stopped)]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen([*RLDBG, *words], cwd=tmp_path, env=clean_environment(), stdout=said, stderr=said)
        try:
            deadline = time.monotonic() + 120
            while "stopped at" not in (tmp_path / "said").read_text() and time.monotonic() < deadline:
                assert process.poll() is None, (tmp_path / "said").read_text()
                time.sleep(0.2)
            stopped.touch()
            subprocess.run([*RLDBG, "continue", "--run", str(run)], env=clean_environment(), check=True, timeout=60)
            code = process.wait(60)
        finally:
            process.kill()
            process.wait()
    text = (tmp_path / "said").read_text()
    assert code == 0, text
    assert "watch: reward-drop at step 12: reward is 0.1" in text
    assert "stopped after step" in text
    assert "watch.reward-drop" in json.dumps(json.loads((run / "run.json").read_text())["findings"])
    kept = rldbg.open(run / "recording").steps()
    assert {10, 11, 12, 13, 14} <= set(kept)
    assert 5 not in kept


def test_a_loop_of_one_s_own_says_events_once(tmp_path: Path) -> None:
    program = (
        "import rldbg\n"
        "with rldbg.watch('rec', when='cost > 5') as watch:\n"
        "    for step in range(6):\n"
        "        watch.log(step, {'cost': 9.0 if step >= 3 else 1.0})\n"
        "    print([event.step for event in watch.close()])\n"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stdout) == (0, "[3]\n"), done.stderr
    assert done.stderr.count("rldbg: watch: expression at step 3: cost > 5 is true (cost 9)") == 1, done.stderr


def test_events_are_said_while_others_record(tmp_path: Path) -> None:
    """As in a driver that waits for its actors."""
    program = (
        "import sys, rldbg\n"
        "with rldbg.watch('rec', when='cost > 5'), rldbg.Recorder('rec') as recorder:\n"
        "    for step in range(3):\n"
        "        recorder.record('training_metrics', step=step, metrics={'cost': 9.0})\n"
        "        recorder.end_step(step)\n"
        "    recorder.flush()\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=clean_environment(),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("rldbg: watch: expression at step 0: cost > 5 is true")
        process.communicate(timeout=120)
    assert process.returncode == 0


def test_a_loop_of_one_s_own_ends_after_an_event(tmp_path: Path) -> None:
    program = (
        f"{WAIT}\n"
        f"with rldbg.watch({str(tmp_path / 'out' / 'rec')!r}, stop=True, when='cost > 5') as watch:\n"
        "    for step in range(2000):\n"
        "        watch.log(step, {'cost': 9.0 if step >= 3 else 1.0})\n"
        "        watch.recorder.flush()\n"
        f"        wait_until_judged(Path({str(tmp_path / 'out' / 'rec')!r}), step - 1)\n"
        "sys.exit('nobody stopped it')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 1
    assert "expression at step 3: cost > 5 is true (cost 9)" in done.stderr


@pytest.mark.parametrize(
    "launch", ["processes", *(pytest.param(name, marks=pytest.mark.soak) for name in ("torchrun", "ray"))]
)
def test_all_ranks_stop_at_the_end_of_the_same_step_and_resume(tmp_path: Path, launch: str) -> None:
    program, words = LAUNCHES[launch]
    (tmp_path / "rank.py").write_text(f"{RANK}\n{program}\n")
    run, stopped = tmp_path / "run", tmp_path / "stopped"

    def ask(*question: str) -> str:
        return subprocess.run(
            [*RLDBG, *question, "--run", str(run)],
            env=clean_environment(),
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout

    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [*RLDBG, "run", "--run", str(run), "--watch", "--stop", "--", *words, str(stopped)],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=said,
            stderr=said,
        )
        try:
            deadline = time.monotonic() + 100
            waiting: list[dict[str, str]] = []
            while len(waiting) < 2 and time.monotonic() < deadline:
                assert process.poll() is None, (tmp_path / "said").read_text()
                time.sleep(0.5)
                if "stopped at" in (tmp_path / "said").read_text():
                    waiting = [
                        each for each in json.loads(ask("ps", "--json"))["processes"] if each["state"] == "stopped"
                    ]
            assert len(waiting) == 2, (tmp_path / "said").read_text()
            # The line that is written behind the end of the step has not been reached.
            before = {(run / f"last-{rank}").read_text() for rank in range(2)}
            assert len(before) == 1, before
            stopped.touch()
            ask("continue")
            assert process.wait(50) == 0, (tmp_path / "said").read_text()
        finally:
            process.kill()
            process.wait()
    assert {(run / f"last-{rank}").read_text() for rank in range(2)} == {str(int(before.pop()) + 1)}
