"""TRL's GRPOTrainer in vLLM-server mode, its own loop unchanged, against `rldbg serve`: weights go over HTTP."""

import asyncio
import json
import os
import subprocess
import threading
from pathlib import Path

import httpx
import pytest
import uvicorn
from client_environments import ROOT, TRL, environment_with

from rldbg.inference.application import Service, build_application
from rldbg.inference.embedded.loading import load_backend
from rldbg.inference.server import listen
from rldbg.trainer import tiny_folder

pytestmark = pytest.mark.timeout(600)


def test_the_server_has_the_trainers_weights_after_every_step(tmp_path):
    model = tiny_folder(tmp_path / "tiny")
    listener, servers = listen("127.0.0.1", 0), []

    async def serve():
        backend = load_backend(model, name="tiny", device="cpu")
        application = build_application(backend, Service(logprob_mode="sampled"))
        servers.append(uvicorn.Server(uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=2)))
        await servers[0].serve(sockets=[listener])

    python = environment_with("trl", TRL, beside_ours=True)
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    arguments = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": address, "max_steps": 3,
                 "save_strategy": "steps", "save_steps": 2, "save_only_model": True}  # fmt: skip
    try:
        ran = subprocess.run(
            [python, "-m", "rldbg.frameworks.trl.http_weights",
             Path(__file__).with_name("trl_job.py"), json.dumps({"model": str(model), "args": arguments})],
            capture_output=True, text=True, cwd=tmp_path, timeout=400,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1",
                              "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        sequence = {"sequences": [[5, 12, 6, 16, 9, 8]], "prompt_lengths": [1]}
        with httpx.Client(base_url=address, timeout=60) as client:
            version = client.get("/get_weight_version").json()["weight_version"]
            trained = client.post("/get_sequence_logprobs/", json=sequence).json()["actual_logprobs"]
            client.post("/update_weights_from_disk", json={"model_path": str(tmp_path / "out" / "checkpoint-2")})
            saved = client.post("/get_sequence_logprobs/", json=sequence).json()["actual_logprobs"]
            client.post("/update_weights_from_disk", json={"model_path": str(model)})
            first = client.post("/get_sequence_logprobs/", json=sequence).json()["actual_logprobs"]
    finally:
        servers[0].should_exit = True
        thread.join(60)
        listener.close()
    assert version == "3", "one version per generation, however many parts it was sent in"
    assert trained == saved != first, "the third generation was made with the weights of two steps"
