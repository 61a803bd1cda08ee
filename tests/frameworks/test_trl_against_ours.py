"""TRL and our own trainer on the same prompts, responses, weights and algorithm: the same numbers, stage by stage."""

import json
from pathlib import Path

import pytest
from client_environments import TRL, environment_with
from real_runs import rldbg
from taught_model import teach

JOB = Path(__file__).with_name("trl_replay_job.py")
OURS = (
    "warm_start.max_steps=0", "data.operators=+", "++data.largest=3", "data.prompts_per_step=4",
    "data.samples_per_prompt=4", "policy.ranks=1", "algorithm.entropy_coeff=0", "++algorithm.epsilon=1e-4",
    "optimizer.learning_rate=0.001", "optimizer.final_learning_rate=0.001", "optimizer.warmup_steps=0",
    "optimizer.beta2=0.999", "++optimizer.eps=0.001", "++debug.enable_data_dump=true", "++debug.target_param_pattern=.",
    "++debug.dump_options={trajectory: true, forward_data: true, loss: true, is_loss_debug: true, gradient: true, "
    "param: true}",
)  # fmt: skip
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return teach(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def ours(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ours") / "run"
    done = rldbg("train", "arithmetic", "--run", folder, "--steps", 2, f"model.path={model}", *OURS)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def theirs(ours, model, tmp_path):
    def run(args=None, **settings):
        python = environment_with("trl", TRL, beside_ours=True)
        settings |= {"model": str(model), "recorded": str(ours), "args": args or {}}
        flags = ["--run", tmp_path / "run", "--record", "--full-length", "--no-doctor", "--wait", "0"]
        variables = {"HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
        done = rldbg("run", *flags, "--", python, JOB, json.dumps(settings), **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return tmp_path / "run"

    return run


def test_the_same_algorithm_gives_the_same_numbers(ours, theirs):
    done = rldbg("compare", ours, theirs(), "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    verdicts = {stage["stage"]: stage["verdict"] for stage in found["stages"]}
    assert set(verdicts) >= {"trajectory", "reward", "advantage", "forward", "loss", "gradient", "parameter"}
    assert {verdict for stage, verdict in verdicts.items() if stage != "config"} <= {"equal", "equal within noise"}


@pytest.mark.parametrize(
    ("settings", "stage", "word"),
    [
        pytest.param({"args": {"loss_type": "dr_grpo"}}, "loss", "aggregation: A token_mean, B sum", id="loss_type"),
        pytest.param({"args": {"temperature": 0.5}}, "trajectory", "temperature", id="temperature"),
        pytest.param({"wrong_mask": True}, "forward", "B does not train on tokens that the mask", id="mask"),
    ],
)
def test_a_planted_difference_is_named(ours, theirs, settings, stage, word):
    done = rldbg("compare", ours, theirs(**settings))
    assert done.returncode == 1, done.stdout
    assert f"first at stage {stage}" in done.stdout.partition("\n")[0], done.stdout
    assert word in done.stdout.partition("the configurations differ")[0], done.stdout
