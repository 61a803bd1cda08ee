"""TRL's AsyncGRPOTrainer with rollouts of the user's own, made in this process; the argument is its settings (JSON).

Its attention needs a kernel for GPUs: the same sums are made by torch here, and the GPU is named, whose speed it looks
up. Nothing else of TRL is changed.
"""

import json
import queue
import sys
import time
from types import SimpleNamespace

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, packing
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

SETTINGS = json.loads(sys.argv[1])
PER_GROUP, LENGTH = 4, 6


def attention(query, key, value, starts_q, starts_k, *_, softmax_scale, **__):
    """[tokens, heads, size]; each segment of queries sees the keys of its path, the last of which are its own."""
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    parts = []
    for q, q_end, k, k_end in zip(starts_q[:-1], starts_q[1:], starts_k[:-1], starts_k[1:], strict=True):
        scores = torch.einsum("qhd,khd->hqk", query[q:q_end], key[k:k_end]) * softmax_scale
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + int(k_end - k - (q_end - q)))
        parts.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), value[k:k_end]))
    return torch.cat(parts)


packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=attention)
torch.cuda.get_device_name = lambda *_: "no GPU"


class Rollouts:
    """Both of TRL's protocols: what makes samples, and what is sent the weights. A group is made when asked for."""

    def __init__(self, model, tokenizer, prompts):
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.prompts = [tokenizer(prompt)["input_ids"] for prompt in prompts]
        self.rollout_buffer, self.metrics_queue = self, queue.Queue()
        self.version, self.groups, self.waiting = 0, 0, []
        self.random = torch.Generator().manual_seed(5)

    def get(self, timeout=None):
        if not self.waiting:
            self.waiting = list(self.group())
        return self.waiting.pop(0)

    def qsize(self):
        return len(self.waiting)

    @torch.no_grad()
    def group(self):
        prompt = self.prompts[self.groups % len(self.prompts)]
        ids, found = torch.tensor([prompt] * PER_GROUP), []
        for _ in range(LENGTH):
            log_probs = self.model(ids).logits[:, -1].log_softmax(-1)
            tokens = torch.multinomial(log_probs.exp(), 1, generator=self.random)
            ids = torch.cat([ids, tokens], 1)
            found.append(log_probs.gather(1, tokens))
        rewards = ids[:, len(prompt) :].float().mean(1)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        mask = np.array([0] * len(prompt) + [1] * LENGTH)
        for row, values in enumerate(torch.cat(found, 1)):
            before = np.zeros(len(prompt), np.float32)
            yield RolloutSample(
                [], [], ids[row].numpy(), mask, np.concatenate([before, values.numpy()]), float(advantages[row]),
                self.version, self.groups, {"reward": float(rewards[row])}, time.time(),
            )  # fmt: skip
        self.groups += 1

    def send_weights(self, iterator):
        self.model.load_state_dict({name: value.clone() for name, value in iterator}, strict=False)

    def update_model_version(self, model_version):
        self.version, self.waiting = model_version, []

    def check_health(self, stale_after_s):
        pass

    start = stop = init_weight_transfer = pause = resume = destroy = lambda self: None


common = {
    "output_dir": "out", "max_steps": 2, "per_device_train_batch_size": 8, "num_generations": PER_GROUP, "seed": 3,
    "max_completion_length": LENGTH, "learning_rate": 1e-3, "report_to": [], "use_cpu": True, "bf16": False,
    "logging_steps": 1, "save_strategy": "no", "gradient_checkpointing": False, "disable_tqdm": True,
    "gradient_accumulation_steps": 2, "token_budget": 0,
}  # fmt: skip
tokenizer = AutoTokenizer.from_pretrained(SETTINGS["model"])
rollouts = Rollouts(SETTINGS["model"], tokenizer, [f"{a}+{b}=" for a in range(4) for b in range(4)])
AsyncGRPOTrainer(
    model=SETTINGS["model"],
    args=AsyncGRPOConfig(**common | SETTINGS.get("args", {})),
    train_dataset=Dataset.from_list([{"prompt": ""}]),
    processing_class=tokenizer,
    rollout_worker=rollouts,
    weight_transfer=rollouts,
).train()
