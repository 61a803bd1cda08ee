"""One step by miles' own advantages and loss on two groups, on a model of transformers in Megatron's place.

Nothing of rldbg in it. The argument is the model's folder.
"""

import os
import sys
from argparse import Namespace

# Megatron's functions would be compiled for a few calls.
os.environ["TORCH_COMPILE_DISABLE"] = "1"

import torch
import torch.distributed
from miles.backends.training_utils.loss import compute_advantages_and_returns, get_log_probs_and_entropy, loss_function
from miles.backends.training_utils.parallel import GroupInfo, ParallelState, set_parallel_state
from transformers import AutoModelForCausalLM

ARGS = Namespace(
    advantage_estimator="grpo", kl_coef=0.0, normalize_advantages=False, use_rollout_logprobs=False,
    rollout_temperature=1.0, qkv_format="thd", log_probs_chunk_size=-1, true_on_policy_mode=False, allgather_cp=False,
    loss_type="policy_loss", eps_clip=0.2, eps_clip_high=0.28, entropy_coef=0.01, use_kl_loss=False, use_opsm=False,
    use_tis=False, get_mismatch_metrics=False, calculate_per_token_loss=False, recompute_loss_function=False,
    use_dynamic_global_batch_size=False, global_batch_size=8,
)  # fmt: skip
PROMPT, MICRO_BATCH = 3, 4


def alone():
    """The groups of the only rank."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    group = GroupInfo(rank=0, size=1, group=torch.distributed.group.WORLD)
    names = ("intra_dp", "intra_dp_cp", "cp", "tp", "pp", "ep", "etp")
    set_parallel_state(ParallelState(**dict.fromkeys(names, group)))


def rollout():
    """Rewards are normalised by group before they reach the ranks."""
    torch.manual_seed(1)
    tokens = []
    for group in range(2):
        for length in (8, 6, 8, 7):
            drawn = torch.randint(3, 14, (length - PROMPT,))
            tokens.append(torch.cat([torch.tensor([4, 5, 6 + group]), drawn]))
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.5])
    lengths = [len(row) - PROMPT for row in tokens]
    return {
        "tokens": tokens, "total_lengths": [*map(len, tokens)], "response_lengths": lengths,
        "loss_masks": [torch.ones(length, dtype=torch.int) for length in lengths],
        "rewards": [*((rewards - rewards.mean()) / (rewards.std() + 1e-6)).tolist() * 2],
    }  # fmt: skip


def logits_of(model, tokens):
    """Packed as Megatron has them, and each sequence alone."""
    return torch.cat([model(input_ids=row[None]).logits for row in tokens], 1)


def main():
    alone()
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    data = rollout()
    with torch.no_grad():
        shapes = {name: data[name] for name in ("total_lengths", "response_lengths")}
        logits = logits_of(model, data["tokens"])
        found = get_log_probs_and_entropy(logits, args=ARGS, unconcat_tokens=data["tokens"], **shapes)
    data["log_probs"] = data["rollout_log_probs"] = found["log_probs"]
    compute_advantages_and_returns(ARGS, data)
    for start in range(0, len(data["tokens"]), MICRO_BATCH):
        batch = {name: rows[start : start + MICRO_BATCH] for name, rows in data.items()}
        batch["unconcat_tokens"] = batch["tokens"]
        loss, *_ = loss_function(ARGS, batch, 2, logits_of(model, batch["tokens"]))
        loss.backward()
    torch.distributed.destroy_process_group()


main()
