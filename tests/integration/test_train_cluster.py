"""The trainer on a real Ray cluster: two policy ranks with two micro-batches each, rollout workers, inference."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import rldbg
from rldbg.analysis import check
from rldbg.core import PrerequisiteError, Run
from rldbg.trainer import Reporting, parse_recipe, train
from rldbg.trainer.cluster import Cluster, WorkerLostError
from rldbg.trainer.rerun import StageVerdict, rerun
from rldbg.trainer.settings import ClusterSettings

pytestmark = pytest.mark.timeout(900)
KINDS = ("trajectory", "old_log_probs", "forward_data", "loss", "param", "gradient", "weights")
RECORDING = {
    "enable_data_dump": True,
    "dump_format": "safetensors",
    "capsule": True,
    "dump_options": dict.fromkeys(KINDS, True),
}


@pytest.fixture(scope="module")
def cluster():
    with Cluster(ClusterSettings()) as started:
        yield started


@pytest.fixture
def trained(cluster, tmp_path, monkeypatch):
    """Trains a small recipe on the module's cluster, whose workers are in another folder; gives the run folder."""
    monkeypatch.chdir(tmp_path)
    return training_on(cluster)


def training_on(cluster, parent=Path()):
    def run(name, *, on_step=None, on_note=None, **changes):
        data = {
            "name": name,
            "steps": 3,
            "model": {"tiny": {"hidden_size": 16, "layers": 1, "heads": 2}},
            "data": {"operators": "+", "prompts_per_step": 4, "samples_per_prompt": 4},
            "warm_start": {"max_steps": 20, "until_success": 0.5, "batch_size": 16},
            "algorithm": {"entropy_coeff": 0.001},
            "policy": {"ranks": 2, "micro_batch_size": 4},
            "debug": RECORDING,
        } | changes
        reporting = Reporting(on_step or (lambda *_: None), on_note or (lambda _: None))
        folder = Run.create(name=name, path=parent / name)
        return train(parse_recipe(data, source="test"), folder, cluster=cluster, reporting=reporting).run

    return run


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """What a run gives when nothing happens to it."""
    return training_on(cluster, tmp_path_factory.mktemp("undisturbed"))("undisturbed")


def losses(run):
    return {tuple(record.key): float(record.fields["loss"]) for record in rldbg.open(run).records("loss")}


def rewards(run):
    return [record.array("reward").tolist() for record in rldbg.open(run).records("trajectory")]


def parameters(run, step):
    return {
        (record.key.rank, record.fields["param_name"]): record.array("param")
        for record in rldbg.open(run).records("param", step)
    }


def assert_same(one, other):
    assert losses(one) == losses(other) and len(losses(one)) == 3 * 2 * 2
    assert rewards(one) == rewards(other)
    ours, theirs = parameters(one, 2), parameters(other, 2)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def kill(cluster, name):
    import ray

    actor = ray.get_actor(name, namespace=cluster.namespace)
    os.kill(ray.get(actor.__ray_call__.remote(lambda _self: os.getpid())), signal.SIGKILL)


def killing(cluster, *names):
    """Kills a worker after each of the first steps."""
    return lambda step, _metrics: kill(cluster, names[step]) if step < len(names) else None


def replaying(run):
    """Neither rollout workers nor inference, for tests of the policy alone."""
    return {"type": "mock", "need_llm_inference": False, "trajectory_load_path": str(run)}


def test_two_ranks_replay_and_rerun_bit_for_bit(undisturbed, trained):
    assert rldbg.open(undisturbed).verify() == []
    assert check(rldbg.open(undisturbed), only=["engine-holds-what-was-sent"]).verdict == "pass"
    values = parameters(undisturbed, 2)
    for (rank, name), value in values.items():
        assert np.array_equal(value, values[1 - rank, name])
    replayed = trained("replayed", rollout_worker=replaying(undisturbed))
    assert_same(undisturbed, replayed)
    for rank in (None, 0, 1):
        report = rerun(replayed, 1, rank=rank)
        assert {stage.verdict for stage in report.stages} == {StageVerdict.EXACT}, report.to_dict()


def test_a_run_repeats_itself_bit_for_bit_though_workers_are_killed_and_replaced(undisturbed, trained, cluster):
    victims, notes = ("rollout/1", "inference/0"), []
    run = trained("disturbed", on_step=killing(cluster, *victims), on_note=notes.append)
    assert len(notes) == 2
    for victim, note in zip(victims, notes, strict=True):
        assert victim in note and "replaced (1 of 3)" in note
    assert_same(undisturbed, run)
    assert rldbg.open(run).verify() == []


def test_a_worker_that_keeps_dying_ends_the_run_by_name(trained, cluster):
    with pytest.raises(WorkerLostError, match="rollout/0"):
        trained(
            "dying",
            on_step=killing(cluster, "rollout/0"),
            cluster={"max_restarts": 0},
            policy={"ranks": 1, "micro_batch_size": 4},
        )


def test_a_killed_rank_ends_the_run_by_name_and_leaves_the_recording_readable(undisturbed, trained, cluster, tmp_path):
    with pytest.raises(WorkerLostError, match="policy/1") as caught:
        trained(
            "killed",
            on_step=lambda step, _metrics: kill(cluster, "policy/1") if step == 1 else None,
            rollout_worker=replaying(undisturbed),
        )
    assert "--resume" in caught.value.hint
    recording = rldbg.open(tmp_path / "killed")
    assert recording.steps("loss")[:1] == (0,)  # the step before the kill may have been on its way to the disk
    found = {finding.id for finding in recording.verify()}
    assert not any("corrupt" in name or "truncated" in name for name in found), found
    assert json.loads((tmp_path / "killed" / "run.json").read_text())["exit_code"] == 5


def test_sharded_ranks_train_like_replicated_ones(undisturbed, trained):
    fsdp = {"ranks": 2, "micro_batch_size": 4, "fsdp": True}
    sharded = trained("sharded", policy=fsdp, rollout_worker=replaying(undisturbed))
    ours, theirs = losses(undisturbed), losses(sharded)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert theirs[key] == pytest.approx(value, abs=1e-5), key


def test_a_taken_port_is_told(undisturbed, trained):
    import socket

    import ray

    with socket.socket() as taken:
        taken.bind((ray.util.get_node_ip_address(), 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PrerequisiteError, match=str(port)):
            policy = {"ranks": 2, "micro_batch_size": 4, "port": port}
            trained("port", policy=policy, rollout_worker=replaying(undisturbed))
