"""A real vLLM engine on the CPU: weights of our trainer go into it, one tensor is changed on the way, `check` names it.

vLLM loads our hooks by its own plug-in group.
"""

import os
import subprocess
import time
from pathlib import Path

import pytest
from client_environments import ROOT
from environments import vllm
from real_runs import rldbg
from safetensors.torch import save_file

import rldbg as api
from rldbg.core import Run
from rldbg.trainer import Capsule, capsule_model, parse_recipe, recipe_from_data, train
from rldbg.weights import fingerprints, snapshot_fields

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
NAME = "model.layers.1.mlp.up_proj.weight"


def versions(folder):
    """A folder with our trainer's model, and the weights that two steps started from. vLLM refuses heads of 16."""
    recipe = {
        "name": "small",
        "steps": 2,
        "model": {"tiny": {"hidden_size": 128, "layers": 2, "heads": 2}},
        "data": {"prompts_per_step": 2, "samples_per_prompt": 2},
        "warm_start": {"max_steps": 2, "batch_size": 4},
        "policy": {"ranks": 1, "device": "cpu"},
        "inference": {"device": "cpu"},
        "cluster": {"in_process": True},
        "debug": {"enable_data_dump": True, "capsule": True},
    }
    run = train(parse_recipe(recipe, source="test"), Run.create(name="trainer", path=folder)).run
    capsules = [Capsule(api.open(run), step) for step in (0, 1)]
    model = capsule_model(capsules[0], recipe_from_data(capsules[0].recipe, source="test"))
    model.to_transformers().save_pretrained(folder / "model")
    return folder / "model", *(capsule.parameters() for capsule in capsules)


def plugin(folder):
    """What installing rldbg leaves for vLLM to find."""
    place = folder / "rldbg-0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: rldbg\nVersion: 0\n")
    (place / "entry_points.txt").write_text("[vllm.general_plugins]\nrldbg = rldbg.frameworks.plugin:register\n")
    return folder


def test_a_tensor_that_changes_on_its_way_into_vllm_is_named(tmp_path):
    model, old, new = versions(tmp_path / "trainer")
    recording = tmp_path / "recording"
    path = f"{ROOT / 'src'}{os.pathsep}{plugin(tmp_path / 'plugin')}"
    environment = os.environ | {"PYTHONPATH": path, "RLDBG_RECORD_DIR": str(recording), "VLLM_CPU_KVCACHE_SPACE": "1",
                                "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # fmt: skip
    log = (tmp_path / "engine.log").open("w")
    command = [str(vllm()), str(Path(__file__).with_name("vllm_job.py")), str(model)]
    engine = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=log, text=True, env=environment, cwd=tmp_path)

    def told(word):
        line = next((line for line in engine.stdout if line.startswith(word)), None)
        assert line is not None, (tmp_path / "engine.log").read_text()[-4000:]

    try:
        told("ready")
        for version, tensors in enumerate((old, new, new)):
            spoiled = tensors | ({NAME: tensors[NAME].flip(0)} if version == 2 else {})
            file = tmp_path / f"{version}.safetensors"
            save_file({name: tensor.contiguous() for name, tensor in spoiled.items()}, file)
            with api.Recorder(recording) as recorder:
                fields = snapshot_fields("sent", fingerprints(tensors))
                recorder.record("weights", step=version, micro=0, at=time.time(), **fields)
            engine.stdin.write(f"{file}\n")
            engine.stdin.flush()
            told("loaded")
    finally:
        engine.stdin.close()
        engine.wait(120)
        engine.stdout.close()
        log.close()
    checked = rldbg("check", recording, "--only", "engine-holds-what-was-sent")
    assert checked.returncode == 1, checked.stdout + checked.stderr
    found = " ".join(checked.stdout.split())
    assert f"version 2 replica 0 tensor {NAME}" in found
    assert "version 0" not in found and "version 1" not in found
