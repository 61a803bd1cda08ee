"""TRL's GRPOTrainer in vLLM-server mode, its own loop unchanged, against `rldbg serve`: weights go over HTTP."""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from client_environments import ROOT, TRL, environment_with
from real_runs import rldbg
from safetensors.numpy import load_file

from rldbg.inference.application import Service, build_application
from rldbg.inference.embedded.loading import load_backend
from rldbg.recording import open as open_recording
from rldbg.trainer import tiny_folder
from rldbg.weights import faults_of, snapshots_of
from served_application import served

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def server(tmp_path):
    """The address of a server in this process, and its model's folder."""
    model = tiny_folder(tmp_path / "tiny")

    def application():
        backend = load_backend(model, name="tiny", device="cpu")
        return build_application(backend, Service(logprob_mode="sampled"))

    with served(application) as address:
        yield address, model


def train(folder, python, server, *, steps, kinds="weights", arguments=None, **settings):
    """A recorded training whose engine is the server; returns its run folder."""
    address, model = server
    args = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": address, "max_steps": steps}
    job = json.dumps({"model": str(model), "args": args | (arguments or {}), **settings})
    flags = ["--run", folder / "run", "--record", kinds, "--full-length", "--no-doctor", "--wait", "0"]
    command = [python, "-m", "rldbg.frameworks.trl.http_weights", Path(__file__).with_name("trl_job.py"), job]
    own = {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    ran = rldbg("run", *flags, "--", *command, cwd=folder, **own)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "launch.no-training" not in ran.stderr, ran.stderr
    return folder / "run"


def faults(run):
    snapshots = list(snapshots_of(open_recording(run)))
    return [(item.side, item.version) for item in snapshots], list(faults_of(snapshots))


def test_the_server_has_the_trainers_weights_after_every_step(tmp_path, server):
    python = environment_with("trl", TRL, beside_ours=True)
    saved = {"save_strategy": "steps", "save_steps": 2, "save_only_model": True}
    run = train(tmp_path, python, server, steps=3, kinds="weights,weight_values", arguments=saved)
    address, model = server
    sequence = {"sequences": [[5, 12, 6, 16, 9, 8]], "prompt_lengths": [1]}
    with httpx.Client(base_url=address, timeout=60) as client:
        version = client.get("/get_weight_version").json()["weight_version"]
        trained = client.post("/get_sequence_logprobs/", json=sequence).json()["actual_logprobs"]
        client.post("/update_weights_from_disk", json={"model_path": str(tmp_path / "out" / "checkpoint-2")})
        saved = client.post("/get_sequence_logprobs/", json=sequence).json()["actual_logprobs"]
        client.post("/update_weights_from_disk", json={"model_path": str(model)})
        first = client.post("/get_sequence_logprobs/", json=sequence).json()["actual_logprobs"]
    assert version == "3", "one version per generation, however many parts it was sent in"
    assert trained == saved != first, "the third generation was made with the weights of two steps"
    versions, found = faults(run)
    assert sorted(versions) == [(side, number) for side in ("held", "sent") for number in range(3)] and not found
    values = [record for record in open_recording(run).records("weight_values") if record.key.step == 2]
    written = load_file(tmp_path / "out" / "checkpoint-2" / "model.safetensors")
    assert len(values) == len(written)
    for record in values:
        assert np.array_equal(record.array("values"), written[record.fields["weight_name"]])


def test_an_adapter_that_the_trainer_did_not_merge_is_told(tmp_path, server):
    """A real adapter of peft: merged, both sides agree; sent without it, its weights are named."""
    trl = environment_with("trl", TRL, beside_ours=True)
    python = environment_with("trl-peft", ("peft==0.21.2",), beside=trl)
    for name in ("merged", "forgotten"):
        (tmp_path / name).mkdir()
        versions, found = faults(train(tmp_path / name, python, server, steps=1, lora=name))
        assert sorted(versions) == [("held", 0), ("sent", 0)]
        assert [item.how for item in found] == ([] if name == "merged" else ["lora-missing"])
        assert not found or found[0].name.endswith(("q_proj.weight", "down_proj.weight"))
