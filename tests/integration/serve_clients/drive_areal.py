"""Drives inference servers with AReaL's own remote engines; prints what they saw as JSON."""

import asyncio
import json
import shutil
import sys
import tempfile
import threading
import time

from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig, NameResolveConfig
from areal.api.io_struct import ModelRequest, WeightUpdateMeta
from areal.api.workflow_api import RolloutWorkflow
from areal.engine.sglang_remote import RemoteSGLangEngine
from areal.engine.vllm_remote import RemotevLLMEngine
from areal.utils import name_resolve, names

address, model = sys.argv[1], sys.argv[2]
name_resolve.reconfigure(NameResolveConfig(type="nfs", nfs_record_root=tempfile.mkdtemp()))
greedy = GenerationHyperparameters(max_new_tokens=6, greedy=True, ignore_eos=True)


class Episode(RolloutWorkflow):
    """The smallest workflow there is."""

    async def arun_episode(self, engine, data):
        import torch

        gconfig = GenerationHyperparameters(max_new_tokens=5, temperature=1.0, stop_token_ids=[0, 1])
        answer = await engine.agenerate(ModelRequest(input_ids=list(data["prompt"]), gconfig=gconfig))
        tokens = answer.input_tokens + answer.output_tokens
        masks = [0] * answer.input_len + [1] * answer.output_len
        logprobs = [0.0] * answer.input_len + answer.output_logprobs
        return {
            "input_ids": torch.tensor([tokens]),
            "loss_mask": torch.tensor([masks]),
            "logprobs": torch.tensor([logprobs]),
            "versions": torch.tensor([[-1] * answer.input_len + answer.output_versions]),
            "attention_mask": torch.ones(1, len(tokens), dtype=torch.bool),
            "rewards": torch.tensor([1.0]),
        }


def drive(kind):
    config = InferenceEngineConfig(
        experiment_name="e", trial_name="t", consumer_batch_size=4, max_head_offpolicyness=1000, setup_timeout=30,
        request_timeout=60,
    )  # fmt: skip
    engine = kind(config)
    engine.initialize(addr=address, train_data_parallel_size=1)
    try:
        answer = asyncio.run(engine.agenerate(ModelRequest(input_ids=[5, 12, 6, 16], gconfig=greedy)))
        report = {"tokens": answer.output_tokens, "logprobs": answer.output_logprobs, "stop": answer.stop_reason}
        batch = engine.rollout_batch([{"prompt": [5, 12, 6, 16]}] * 4, workflow=Episode())
        report["episodes"] = len(batch)
        # A long answer, paused and continued under way: the engine asks for the rest.
        long = GenerationHyperparameters(max_new_tokens=300, greedy=True, ignore_eos=True)
        result = {}
        thread = threading.Thread(
            target=lambda: result.update(
                tokens=asyncio.run(engine.agenerate(ModelRequest(input_ids=[5, 6], gconfig=long))).output_tokens
            )
        )
        thread.start()
        engine.pause_generation()
        engine.continue_generation()
        thread.join(60)
        report["resumed"] = len(result["tokens"])
        # The trainer's word that the weights are saved; without it AReaL waits.
        saved = names.update_weights_from_disk("e", "t", engine.get_version())
        name_resolve.add(saved, str(time.time()), replace=True)
        # A copy: AReaL removes a checkpoint that is loaded.
        weights = shutil.copytree(model, f"{tempfile.mkdtemp()}/weights")
        engine.update_weights_from_disk(WeightUpdateMeta(type="disk", path=weights)).result(timeout=60)
        return report
    finally:
        engine.destroy()


print(json.dumps({"sglang": drive(RemoteSGLangEngine), "vllm": drive(RemotevLLMEngine)}))
