"""`rldbg train` and `rldbg rerun` as people start them: interrupted, misconfigured, on two nodes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import rldbg

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "arithmetic.yaml"
SMALL = ("data.prompts_per_step=4", "data.samples_per_prompt=4", "warm_start.max_steps=5", "policy.micro_batch_size=4")
TRAJECTORIES = (
    "++debug.enable_data_dump=true",
    "++debug.dump_options.trajectory=true",
    "++debug.dump_options.loss=true",
)


def command(*arguments):
    return [sys.executable, "-m", "rldbg", *map(str, arguments)]


def rldbg_command(*arguments, timeout_s=600):
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=timeout_s, cwd=ROOT)


def wait_until(condition, *, timeout_s, what):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.1)


def test_ctrl_c_ends_the_run_its_actors_and_its_cluster(tmp_path):
    run = tmp_path / "run"
    process = subprocess.Popen(
        command("train", RECIPE, "--steps", 100000, "--run", run, *SMALL, *TRAJECTORIES),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        metrics = run / "metrics.jsonl"
        wait_until(lambda: metrics.is_file() and metrics.stat().st_size, timeout_s=400, what="the first step")
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) > 5, "the cluster and its actors are children of the command"
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=200)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, complaint
    gone, alive = psutil.wait_procs(family, timeout=60)
    assert gone and not alive
    assert json.loads((run / "run.json").read_text())["exit_code"] == 130
    assert not [finding for finding in rldbg.open(run).verify() if finding.severity == "error"]


@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        (("policy.rank=2",), 2, "policy.ranks"),
        (("++polcy.ranks=2",), 2, "policy"),
        (("model.path=/no/such/model",), 2, "/no/such/model"),
        (("data.operators=''",), 2, "no prompts"),
        (("data.prompts_per_step=5", "data.samples_per_prompt=1"), 2, "multiple of 2"),
        (("++rollout_worker.type=mock", "++rollout_worker.trajectory_load_path=/no/such/run"), 4, "/no/such/run"),
        (
            ("mode=remote_api", "++remote.url=http://127.0.0.1:9", "++cluster.in_process=true", "policy.ranks=1"),
            5,
            "127.0.0.1:9",
        ),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_started(rldbg_here, tmp_path, arguments, code, names):
    result = rldbg_here("train", RECIPE, "--run", tmp_path / "run", "--json", *arguments)
    error = json.loads(result.stdout)["error"]
    assert result.returncode == code, (result.stdout, result.stderr)
    assert names in error["message"] + error["hint"] and error["hint"]


def test_a_machine_without_ray_is_told_what_to_install(tmp_path):
    program = (
        "import sys; sys.modules['ray'] = None; from rldbg.cli.application import run; "
        f"sys.exit(run(['train', {str(RECIPE)!r}, '--steps', '1', '--run', {str(tmp_path / 'run')!r}]))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert result.returncode == 3 and "pip install 'rldbg[ray]'" in result.stderr, result.stderr


def test_two_nodes_train_together_and_the_step_runs_again_without_them(rldbg_here, tmp_path):
    from ray.cluster_utils import Cluster as RayCluster

    nodes = RayCluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=1)
        run = tmp_path / "run"
        overrides = (*SMALL, *TRAJECTORIES, "++debug.capsule=true", f"++cluster.address={nodes.address}")
        result = rldbg_command("train", RECIPE, "--steps", 2, "--run", run, "--json", *overrides)
        assert result.returncode == 0, result.stderr
    finally:
        nodes.shutdown()
    assert json.loads(result.stdout)["steps"] == 2
    assert rldbg.open(run).verify() == []
    again = rldbg_here("rerun", run, "--step", 1, "--json")
    report = json.loads(again.stdout)
    assert again.returncode == 0 and report["reproduced"] and report["ranks"] == [0, 1]
    assert {stage["verdict"] for stage in report["stages"]} == {"exact"}
    changed = rldbg_here("rerun", run, "--step", 1, "--set", "algorithm.entropy_coeff=0.5")
    assert changed.returncode == 0 and "first changes the loss stage" in changed.stdout
