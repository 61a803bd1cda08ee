"""TRL's AsyncGRPOTrainer, its own loop and loss, recorded by `rldbg run --record` alone."""

import json
from pathlib import Path

import pytest
from client_environments import TRL, environment_with
from real_runs import rldbg

from rldbg.recording import open as open_recording
from rldbg.trainer import tiny_folder

JOB = Path(__file__).with_name("trl_async_job.py")
LAUNCHER = (
    "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
)  # fmt: skip
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("ranks", [1, 2])
def test_rollouts_of_older_weights_are_trained_on_and_every_sample_has_its_pass(tmp_path, ranks):
    python = environment_with("trl", TRL, beside_ours=True)
    settings = {"model": str(tiny_folder(tmp_path / "tiny")), "args": {"per_device_train_batch_size": 8 // ranks}}
    flags = ["--run", tmp_path / "run", "--record", "--full-length", "--no-doctor", "--wait", "0"]
    job = [python, *(LAUNCHER if ranks > 1 else ()), JOB, json.dumps(settings)]
    variables = {"HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    done = rldbg("run", *flags, "--", *job, cwd=tmp_path, **variables)
    assert done.returncode == 0 and "cannot record" not in done.stderr, done.stdout + done.stderr

    recording = open_recording(tmp_path / "run")
    for step in (0, 1):
        collated = [sample for record in recording.records("trajectory", step) for sample in record.samples]
        passed = [sample for record in recording.records("is_loss_debug", step) for sample in record.samples]
        assert sorted(collated) == sorted(passed) and len(set(passed)) == 16
    assert {entry.rank for entry in recording.entries() if entry.kind == "forward_data"} == set(range(ranks))
    assert recording.steps("weights") == (0, 1, 2), "before the first step, and after each"
    found = json.loads(rldbg("check", tmp_path / "run", "--json").stdout)
    assert {each["id"] for each in found["findings"]} == {"policy-versions-fresh"}, "it collates ahead of its updates"
    expected = {"rollout-matches-trainer", "advantages-follow-rewards", "loss-follows-inputs", "samples-trained-once"}
    expected |= {"replicas-agree", "gradients-agree"} if ranks > 1 else {"first-ratio-is-one"}
    assert expected <= set(found["passed"]), found
