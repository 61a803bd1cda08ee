"""A real vLLM engine on the CPU: weights go into it, one tensor is changed on the way, `check` names it.

vLLM loads our hooks by its own plug-in group, as it finds them in what is installed.
"""

import os
import subprocess
import time
from pathlib import Path

import pytest
from client_environments import ROOT
from environments import vllm
from real_runs import rldbg
from safetensors.torch import load_file, save_file
from taught_model import qwen2

import rldbg as api
from rldbg.weights import fingerprints, snapshot_fields

pytestmark = pytest.mark.timeout(900)
NAME = "model.layers.1.mlp.up_proj.weight"


def test_a_tensor_that_changes_on_its_way_into_vllm_is_named(tmp_path):
    # vLLM refuses heads of 16.
    model = qwen2(tmp_path / "model", hidden_size=128)
    old = load_file(model / "model.safetensors")
    new = {name: tensor * 1.5 for name, tensor in old.items()}
    recording = tmp_path / "recording"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "RLDBG_RECORD_DIR": str(recording),
                                "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
                                "HF_HUB_OFFLINE": "1"}  # fmt: skip
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
