"""TRL from its registry, its trainers unchanged, recorded by `rldbg run --record` alone."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from client_environments import TRL, environment_with
from real_runs import rldbg

from rldbg.recording import open as open_recording
from rldbg.trainer import tiny_folder

JOB = Path(__file__).with_name("trl_job.py")
KINDS = {"trajectory", "forward_data", "is_loss_debug", "loss", "gradient", "param", "training_metrics"}
WITH_OPTIMIZER = (*KINDS, "optimizer_state")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def python():
    return environment_with("trl", TRL, beside_ours=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def record(python, model, tmp_path_factory):
    """Runs the job recorded, and returns its run folder; equal jobs run once."""
    done: dict[str, Path] = {}

    def run(*launcher, again="", kinds=(), **settings):
        name = json.dumps([launcher, again, sorted(kinds), settings])
        if name not in done:
            folder = tmp_path_factory.mktemp("trl")
            job = [*(launcher or [str(python)]), str(JOB), json.dumps({"model": str(model)} | settings)]
            asked = ["--record", ",".join(sorted(kinds))] if kinds else ["--record"]
            flags = ["--run", folder / "run", *asked, "--full-length", "--no-doctor", "--wait", "0"]
            ran = rldbg("run", *flags, "--", *job, HF_HUB_OFFLINE="1", ACCELERATE_USE_CPU="1", OMP_NUM_THREADS="1")
            assert ran.returncode == 0, ran.stdout + ran.stderr
            assert "cannot record" not in ran.stderr
            done[name] = folder / "run"
        return done[name]

    return run


def findings(run, *options):
    return json.loads(rldbg("check", run, "--json", *options).stdout)


def test_every_kind_is_recorded_and_the_checks_hold(record):
    run = record()
    recording = open_recording(run)
    assert {entry.kind for entry in recording.entries()} == KINDS
    found = findings(run)
    errors = [each for each in found["findings"] if each["severity"] == "error"]
    assert not errors
    assert {
        "advantages-follow-rewards", "entropy-not-negative", "gradients-sound", "group-shares-a-prompt",
        "losses-finite", "log-probs-finite", "masks-non-empty", "only-sampled-tokens-trained", "parameters-move",
        "policy-versions-fresh", "response-mask-follows", "rewards-finite", "samples-trained-once",
    } <= set(found["passed"]), found  # fmt: skip
    trajectory = next(recording.records(kind="trajectory"))
    assert set(trajectory.fields["extra_fields"][0]["rewards"]) == {"digits", "short"}
    metrics = next(recording.records(kind="training_metrics")).fields["metrics"]
    gradients = [record for record in recording.records(kind="gradient") if record.key.step == 0]
    raw = np.sqrt(sum(float(record.fields["norm"]) ** 2 for record in gradients))
    assert raw == pytest.approx(metrics["grad_norm"], rel=1e-4), "before clipping"
    assert metrics["grad_norm"] > 1.0, "the gradients were clipped"
    assert json.loads((run / "run.json").read_text())["config"]["trl"]["loss_type"] == "dapo"


def test_two_equal_runs_are_equal_and_a_different_loss_is_named(record):
    same = rldbg("compare", record(), record(again="yes"))
    assert same.returncode == 0, same.stdout
    other = rldbg("compare", record(), record(args={"loss_type": "dr_grpo"}))
    assert other.returncode == 1
    assert "loss" in other.stdout
    assert "loss_type" in other.stdout, other.stdout


@pytest.mark.parametrize(
    ("trainer", "check"),
    [("wrong mask", "response-mask-follows"), ("wrong sign", "advantages-follow-rewards")],
)
def test_a_fault_in_the_trainer_is_named(record, trainer, check):
    found = findings(record(trainer=trainer))
    assert check in {each["id"] for each in found["findings"] if each["severity"] == "error"}, found


def test_iterations_and_accumulation_are_epochs_and_micro_batches(record):
    args = {"num_iterations": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "beta": 0.05}
    run = record(args=args | {"max_steps": 4})
    recording = open_recording(run)
    places = [(key.step, key.epoch, key.mini_batch, key.micro) for key in map(_key, recording.records(kind="loss"))]
    assert sorted(places) == [(step, epoch, 0, micro) for step in (0, 1) for epoch in (0, 1) for micro in (0, 1)]
    assert {entry.kind for entry in recording.entries()} == KINDS | {"old_log_probs"}
    assert "ref_log_probs" in next(recording.records(kind="forward_data")).fields
    errors = [each for each in findings(run)["findings"] if each["severity"] == "error"]
    assert not errors


def test_completions_that_are_left_out_and_rewards_normalised_by_function_are_no_faults(record):
    args = {"mask_truncated_completions": True, "multi_objective_aggregation": "normalize_then_sum", "beta": 0.02}
    run = record(args=args | {"reward_weights": [1.0, 2.0], "max_completion_length": 12, "loss_type": "bnpo"})
    extras = [row for each in open_recording(run).records(kind="trajectory") for row in each.fields["extra_fields"]]
    assert {row.get("left_out") for row in extras} >= {"truncated"}
    assert not [each for each in findings(run)["findings"] if each["severity"] == "error"]


@pytest.fixture
def two_ranks(record, python):
    """By accelerate, which starts them by torchrun; without --multi_gpu it starts one where there is no GPU."""
    launcher = [str(python), "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    return record(*launcher, kinds=WITH_OPTIMIZER, args={"per_device_train_batch_size": 4})


def test_two_ranks_under_accelerate_launch(two_ranks):
    run = two_ranks
    recording = open_recording(run)
    for kind in KINDS:
        assert {entry.rank for entry in recording.entries() if entry.kind == kind} == {0, 1}, kind
    samples = [sample for record in recording.records(kind="trajectory") for sample in record.samples]
    assert len(set(samples)) == len(samples) == 16
    found = findings(run)
    assert not [each for each in found["findings"] if each["severity"] == "error"]
    assert {"gradients-agree", "replicas-agree"} <= set(found["passed"])


def test_rloo_is_recorded_by_the_same_hooks_and_runs_again_from_a_checkpoint(record, tmp_path):
    kinds = {*KINDS, "old_log_probs"} - {"param"}
    saved = {"save_strategy": "steps", "save_steps": 1, "output_dir": str(tmp_path / "out")}
    run = record(trainer="RLOO", kinds=kinds, args=saved)
    assert {entry.kind for entry in open_recording(run).entries()} == kinds
    found = findings(run)
    assert not [each for each in found["findings"] if each["severity"] == "error"]
    assert "loss-follows-inputs" in found["passed"], found
    assert verdicts_of_rerun(run, 1, but="parameter") <= {"equal", "equal within noise"}


def _key(record):
    return record.key


def test_profiled_steps_are_generations(python, model, tmp_path):
    settings = {"model": str(model), "args": {"num_iterations": 2, "max_steps": 6}}
    flags = ["--tool", "phases", "--run", tmp_path / "run", "--wait", "0"]
    variables = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = rldbg("profile", *flags, "--", python, JOB, json.dumps(settings), **variables)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "run" / "profiling" / "phases").iterdir()
    spans = [line for line in map(json.loads, file.read_text().splitlines()) if isinstance(line, list)]
    steps = {phase: [span[3] for span in spans if span[0] == phase] for phase in ("rollout", "loss")}
    assert steps == {"rollout": [1, 2, 3], "loss": [1, 1, 2, 2, 3, 3]}, "6 optimizer steps, 3 generations"


def test_a_command_for_gpus_runs_here_with_a_small_model(python, model, tmp_path):
    large = tmp_path / "large"
    shutil.copytree(model, large, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((large / "config.json").read_text())
    sizes = {"num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64}
    (large / "config.json").write_text(json.dumps(config | sizes | {"num_key_value_heads": 8, "head_dim": 128}))
    options = [
        "--model_name_or_path",
        large,
        "--output_dir",
        tmp_path / "out",
        "--num_generations",
        4,
        "--bf16",
        "true",
    ]
    options += ["--per_device_train_batch_size", 4, "--max_completion_length", 4, "--report_to", "none"]
    flags = ["--laptop", "--steps", "1", "--record", "--run", tmp_path / "run", "--wait", "0", "--no-doctor"]
    job = [python, JOB.with_name("trl_flags_job.py"), *options]

    done = rldbg("run", *flags, "--", *job, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"--model_name_or_path={tmp_path}/run/laptop-model" in done.stderr
    assert {entry.kind for entry in open_recording(tmp_path / "run").entries()} == KINDS


def verdicts_of_rerun(run, step, *, but=""):
    done = rldbg(
        "rerun", run, "--step", step, "--json", HF_HUB_OFFLINE="1", ACCELERATE_USE_CPU="1", OMP_NUM_THREADS="1"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout[done.stdout.index('{"schema_version"') :])
    verdicts = {stage["stage"]: stage["verdict"] for stage in found["stages"]}
    stages = {"trajectory", "advantage", "forward", "loss", "gradient", "parameter"} - {but}
    return {verdicts[stage] for stage in stages}


def test_a_recorded_step_runs_again_with_the_optimizers_state(record):
    run = record(kinds=WITH_OPTIMIZER, args={"max_steps": 3})
    assert verdicts_of_rerun(run, 2) <= {"equal", "equal within noise"}


def test_a_recorded_step_of_two_ranks_runs_again(two_ranks):
    assert verdicts_of_rerun(two_ranks, 1) <= {"equal", "equal within noise"}


def test_pdb_stops_in_the_loss_of_the_trainer_itself(record):
    run = record(kinds=WITH_OPTIMIZER, args={"max_steps": 3})
    variables = {"HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    done = rldbg("rerun", run, "--step", 1, "--pdb", typed="p sorted(inputs)[:2]\nc\n", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "grpo_trainer.py" in done.stdout
    assert "_compute_loss()" in done.stdout
    assert "['advantages', 'completion_ids']" in done.stdout
