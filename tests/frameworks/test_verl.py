"""verl from its registry, its own trainer on this machine's processors (`--laptop`), recorded by hooks."""

import json
import os
from pathlib import Path

import environments
import pytest
from real_runs import rldbg
from taught_model import teach
from verl_files import options, write_files

from rldbg.recording import open as open_recording

TOOLS, LOOP = Path(__file__).with_name("verl_tools.py"), Path(__file__).with_name("verl_outputs.py")
KINDS = {
    "trajectory", "prepared_trajectories", "old_log_probs", "training_metrics", "forward_data", "is_loss_debug", "loss",
    "gradient", "param", "update_metrics",
}  # fmt: skip
pytestmark = [
    pytest.mark.timeout(900),
    # Ray ends itself when its own agent needs more than 15 s to start, which it does on a busy machine.
    pytest.mark.flaky(reruns=1, only_rerun="node timed out during startup"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return teach(tmp_path_factory.mktemp("model") / "tiny", steps=60)


def train(model, folder, *flags, kinds=KINDS, more=()):
    """verl's own command for one GPU, on this machine; returns the run folder."""
    python = environments.verl()
    write_files(folder, model)
    flags = [*flags, "--run", folder / "run", "--laptop", "--model", model, "--full-length", "--no-doctor"]
    flags += ["--record", ",".join(sorted(kinds))]
    variables = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "RAY_raylet_start_wait_time_s": "120"}
    given = {each.partition("=")[0] for each in more}
    usual = [each for each in options(folder, model) if each.partition("=")[0] not in given]
    job = [python, "-m", "verl.trainer.main_ppo", *usual, *more, f"hydra.run.dir={folder}/hydra"]
    done = rldbg("run", *flags, "--wait", "0", "--", *job, **variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "cannot record" not in done.stdout + done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    return train(model, tmp_path_factory.mktemp("verl"), "--set", "trainer.save_freq=1")


def test_every_kind_is_recorded_and_the_checks_hold(run):
    recording = open_recording(run)
    assert {entry.kind for entry in recording.entries()} == KINDS
    assert recording.steps("loss") == (1, 2)
    found = json.loads(rldbg("check", run, "--json").stdout)
    assert not [each for each in found["findings"] if each["severity"] == "error"], found["findings"]
    assert {"rollout-matches-trainer", "advantages-follow-rewards", "policy-versions-fresh"} <= set(found["passed"])


def test_gradients_are_those_before_clipping(run):
    recording = open_recording(run)
    norm = next(recording.records(kind="update_metrics")).fields["metrics"]["grad_norm"]
    parts = [record for record in recording.records(kind="gradient") if record.key.step == 1]
    assert sum(float(record.fields["norm"]) ** 2 for record in parts) ** 0.5 == pytest.approx(norm, rel=1e-4)


def test_samples_have_names_that_other_runs_have_too(run):
    recording = open_recording(run)
    driver = {sample for record in recording.records(kind="trajectory") for sample in record.samples}
    ranks = {sample for record in recording.records(kind="loss") for sample in record.samples}
    assert driver == ranks
    assert {sample.run_id for sample in driver} == {0, 1, 2, 3}
    assert len({sample.group_id for sample in driver}) == 8


def checkpoint(run):
    return run.parent / "checkpoints-Debug" / "global_step_1"


def again(run, *flags, typed=None):
    """What `rldbg rerun` of step 2 prints, and the verdict of each stage."""
    variables = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = rldbg("rerun", run, "--step", 2, "--json", *flags, typed=typed, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout[done.stdout.index('{"schema_version"') :])
    return done.stdout, {stage["stage"]: stage["verdict"] for stage in found["stages"]}


def assert_equal(verdicts):
    stages = ("advantage", "old_log_probs", "forward", "loss", "gradient")
    assert {verdicts[stage] for stage in stages} <= {"equal", "equal within noise"}, verdicts


def test_a_step_runs_again_from_the_checkpoint_with_its_optimizer_and_pdb_stops_in_its_loss(run):
    """In one process. Two ranks are run again from the recorded parameters, too."""
    shown, verdicts = again(run, "--model", checkpoint(run), "--pdb", typed="p sorted(data.keys())[:1]\nc\nc\n")
    assert "ppo_loss()" in shown
    assert "['advantages']" in shown
    assert f"parameters: checkpoint {checkpoint(run)}/actor; the optimizer continues" in shown
    assert_equal(verdicts)
    assert verdicts["parameter"] in ("equal", "equal within noise")


def test_two_ranks_with_a_reference_model_and_entropy(model, tmp_path):
    settings = {
        "trainer.save_freq": 1,
        "trainer.n_gpus_per_node": 2,
        "ray_kwargs.ray_init.num_gpus": 2,
        "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.actor.entropy_coeff": 0.001,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 4,
    }
    run = train(model, tmp_path, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")))
    recording = open_recording(run)
    for kind in ("forward_data", "loss", "gradient", "param"):
        assert {entry.rank for entry in recording.entries() if entry.kind == kind} == {0, 1}, kind
    assert {"entropy", "ref_log_probs"} <= set(next(recording.records(kind="forward_data")).fields)
    assert {"pg_loss", "entropy_loss", "kl_loss"} <= set(next(recording.records(kind="loss")).fields)
    found = json.loads(rldbg("check", run, "--json").stdout)
    assert not [each for each in found["findings"] if each["severity"] == "error"], found["findings"]
    assert_equal(again(run)[1])
    assert_equal(again(run, "--model", checkpoint(run))[1])


@pytest.mark.soak
def test_the_server_holds_what_was_sent_and_the_optimizer_continues(model, tmp_path):
    run = train(model, tmp_path, kinds={*KINDS, "weights", "optimizer_state"})
    found = json.loads(rldbg("check", run, "--json").stdout)
    assert "engine-holds-what-was-sent" in found["passed"], found
    verdicts = again(run)[1]
    assert_equal(verdicts)
    assert verdicts["parameter"] in ("equal", "equal within noise")


@pytest.mark.soak
def test_an_adapter_is_trained_without_a_gpu(model, tmp_path):
    run = train(model, tmp_path, more=["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=16"])
    assert {entry.kind for entry in open_recording(run).entries()} == KINDS
    found = json.loads(rldbg("check", run, "--json").stdout)
    assert not [each for each in found["findings"] if each["severity"] == "error"], found["findings"]


@pytest.mark.soak
def test_a_critic_is_trained_without_a_gpu_and_its_values_are_recorded(model, tmp_path):
    gae = ["algorithm.adv_estimator=gae", "critic.optim.lr=1e-3", "critic.ppo_micro_batch_size_per_gpu=8"]
    sizes = ["critic.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    run = train(model, tmp_path, kinds={*KINDS, "value_loss"}, more=[*gae, *sizes])
    recording = open_recording(run)
    assert recording.steps("value_loss") == (1, 2)
    assert {"values", "returns"} <= set(next(recording.records("prepared_trajectories")).fields)
    found = json.loads(rldbg("check", run, "--json").stdout)
    assert not [each for each in found["findings"] if each["severity"] == "error"], found["findings"]
    assert "advantages-follow-values" in found["passed"]
    assert_equal(again(run)[1])


@pytest.mark.soak
def test_a_critic_of_two_ranks_with_its_adapter(model, tmp_path):
    ranks = ["--set", "trainer.n_gpus_per_node=2", "--set", "ray_kwargs.ray_init.num_gpus=2"]
    more = ["algorithm.adv_estimator=gae", "critic.optim.lr=1e-3", "critic.ppo_micro_batch_size_per_gpu=4"]
    more += ["critic.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    more += ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"]
    more += ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=16"]
    run = train(model, tmp_path, *ranks, kinds={*KINDS, "value_loss", "weights"}, more=more)
    recording = open_recording(run)
    for kind in ("forward_data", "loss", "value_loss", "gradient", "param"):
        assert {entry.rank for entry in recording.entries() if entry.kind == kind} == {0, 1}, kind
    names = {record.fields["param_name"] for record in recording.records("gradient")}
    assert {name.startswith("critic.") for name in names} == {True, False}
    assert all("lora_" in name for name in names if not name.startswith("critic."))
    found = json.loads(rldbg("check", run, "--json").stdout)
    assert not [each for each in found["findings"] if each["severity"] == "error"], found["findings"]
    assert {"advantages-follow-values", "engine-holds-what-was-sent"} <= set(found["passed"])
    assert_equal(again(run)[1])


@pytest.mark.soak
def test_an_agent_loop_with_a_tool_is_recorded_turn_by_turn(model, tmp_path):
    rollout = "actor_rollout_ref.rollout"
    turns = [f"{rollout}.multi_turn.enable=True", f"{rollout}.multi_turn.max_assistant_turns=3"]
    tools = [f"{rollout}.multi_turn.function_tool_path={TOOLS}", f"{rollout}.multi_turn.format=digits"]
    loop = [f"{rollout}.agent.default_agent_loop=tool_agent", "data.max_response_length=16"]
    run = train(model, tmp_path, more=[*turns, *tools, *loop])
    record = next(open_recording(run).records("trajectory"))
    asked = [extra["turns"] for extra in record.fields["extra_fields"]]
    assert max(map(len, asked)) > 1
    for turns_of, mask in zip(asked, record.rows("loss_mask"), strict=True):
        assert sum(turn["tokens"] for turn in turns_of) == mask.sum(), "what the tool said is not trained on"
    found = json.loads(rldbg("check", run, "--json").stdout)
    assert not [each for each in found["findings"] if each["severity"] == "error"], found["findings"]
    assert {"history-is-append-only", "masks-cover-assistant-turns"} <= set(found["passed"])
    assert_equal(again(run)[1])


@pytest.mark.soak
def test_an_agent_loop_that_gives_several_sequences_names_each(model, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(LOOP.parent), prepend=os.pathsep)
    (tmp_path / "loops.yaml").write_text(f"- name: one_per_turn\n  _target_: {LOOP.stem}.OnePerTurn\n")
    agent = "actor_rollout_ref.rollout.agent"
    loop = [f"{agent}.agent_loop_config_path={tmp_path}/loops.yaml", f"{agent}.default_agent_loop=one_per_turn"]
    more = ["data.max_prompt_length=24", "actor_rollout_ref.rollout.temperature=1.5"]
    run = train(model, tmp_path, more=[*loop, *more])
    recording = open_recording(run)
    for record in recording.records("trajectory"):
        named, said = record.samples, record.fields["extra_fields"]
        assert len(set(named)) == len(named)
        last = [name for name, extra in zip(named, said, strict=True) if "/" not in name.group_id]
        assert len(last) == 16 < len(named) and len({name.group_id for name in last}) == 4
        assert all(len(extra["turns"]) == 1 for extra in said), "each sequence has one turn"
        ranks = [name for loss in recording.records("loss", record.key.step) for name in loss.samples]
        assert set(named) <= set(ranks), "the ranks name them in the same way"
    found = json.loads(rldbg("check", run, "--json").stdout)
    assert not [each for each in found["findings"] if each["severity"] == "error"], found["findings"]
    assert {"advantages-follow-rewards", "samples-trained-once", "policy-versions-fresh"} <= set(found["passed"])
    assert_equal(again(run)[1])
