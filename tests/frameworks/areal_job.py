"""One step of AReaL's own FSDP actor on two groups: nothing of rldbg in it. The argument is the model's folder.

One sequence per micro-batch: without flash attention packed sequences see one another.
"""

import os
import socket
import sys

import torch
from areal.api import FinetuneSpec, ParallelStrategy
from areal.api.cli_args import MicroBatchSpec, NormConfig, OptimizerConfig, PPOActorConfig
from areal.engine.fsdp_engine import FSDPPPOActor

os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
with socket.create_server(("127.0.0.1", 0)) as free:
    os.environ["MASTER_PORT"] = str(free.getsockname()[1])


def batch():
    torch.manual_seed(1)
    groups = []
    for group in range(2):
        ids = torch.randint(3, 14, (4, 8))
        ids[:, :3] = torch.tensor([4, 5, 6 + group])
        held = torch.ones(4, 8, dtype=torch.bool)
        held[1, 6:] = False
        drawn = held.clone().long()
        drawn[:, :3] = 0
        versions = torch.where(drawn != 0, 0, -1)
        groups.append({
            "input_ids": ids, "attention_mask": held, "loss_mask": drawn, "versions": versions,
            "logprobs": torch.zeros(4, 8), "rewards": torch.tensor([1.0, 0.0, 1.0, 0.5]),
        })  # fmt: skip
    return groups


def main():
    config = PPOActorConfig(
        experiment_name="small", trial_name="one", path=sys.argv[1], dtype="float32", attn_impl="sdpa",
        mb_spec=MicroBatchSpec(max_tokens_per_mb=8), ppo_n_minibatches=2, recompute_logprob=True,
        use_decoupled_loss=True,
        optimizer=OptimizerConfig(lr=1e-3, gradient_clipping=0.1), gradient_checkpointing=False,
        reward_norm=NormConfig(mean_level="group", std_level="group", group_size=4), adv_norm=None, kl_ctl=0.0,
    )  # fmt: skip
    actor = FSDPPPOActor(config)
    actor.create_process_group(ParallelStrategy())
    actor.initialize(None, FinetuneSpec(total_train_epochs=1, dataset_size=8, train_batch_size=8))
    data = batch()
    for part, log_probs in zip(data, actor.compute_logp(data), strict=True):
        part["prox_logp"] = log_probs
        part["logprobs"][:, 1:] = log_probs[:, :-1] * part["loss_mask"][:, 1:]
    actor.ppo_update(actor.compute_advantages(data))
    actor.destroy()


main()
