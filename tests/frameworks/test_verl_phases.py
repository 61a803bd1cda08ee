"""Phases of verl's own trainer: its steps are those of the algorithm, whatever number of optimizer steps they have."""

import json
from collections import Counter

import environments
import pytest
from real_runs import rldbg
from taught_model import teach
from verl_files import options, write_files


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.flaky(reruns=1, only_rerun="node timed out during startup")
def test_six_steps_of_four_mini_batches(tmp_path):
    model = teach(tmp_path / "tiny", steps=10)
    write_files(tmp_path, model)
    small = ["actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"]
    given = {each.partition("=")[0] for each in small}
    usual = [each for each in options(tmp_path, model, steps=6) if each.partition("=")[0] not in given]
    variables = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "RAY_raylet_start_wait_time_s": "120"}
    flags = ["--laptop", "--model", model, "--tool", "phases", "--steps", "3:5", "--run", tmp_path / "run"]
    job = [environments.verl(), "-m", "verl.trainer.main_ppo", *usual, *small, f"hydra.run.dir={tmp_path}/hydra"]
    done = rldbg("profile", *flags, "--wait", "0", "--", *job, cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    report = json.loads(rldbg("profile", "report", tmp_path / "run", "--json").stdout)
    assert report["steps"] == 2, "3 and 4 of 6"
    phases = {}
    for row in report["phases"]:
        phases.setdefault(row["role"], set()).add(row["phase"])
    driver = phases.pop("task_runner_v1")
    assert {"rollout", "log_probs", "advantage", "update", "sync"} <= driver, driver
    others = set().union(*phases.values())
    assert {"request", "reward", "log_probs", "forward", "backward", "optimizer", "sync"} <= others, phases
    lines = [line for file in (tmp_path / "run/profiling/phases").iterdir() for line in file.read_text().splitlines()]
    spans = Counter(span[3] for span in map(json.loads, lines) if isinstance(span, list) and span[:1] == ["optimizer"])
    assert spans == dict.fromkeys(range(1, 7), 8), "four of verl's engine, and torch's within each"
