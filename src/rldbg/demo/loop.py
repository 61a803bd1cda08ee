"""A training loop on two ranks, for the tour: `torchrun --nproc-per-node 2 loop.py [hang|crash]`."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

REWARDS = (1.0, 0.5, 0.25)


def reward_of(step: int) -> float:
    """From the rank's own samples; one more step than there are rewards is one too many."""
    return REWARDS[step]


def wait_for_judge(answer: Path) -> None:
    """A judge model that never answers."""
    while not answer.exists():
        time.sleep(0.1)


def train(fault: str) -> None:
    rank = dist.get_rank()
    for step in range(4 if fault == "crash" and rank == 1 else 3):
        if fault == "hang" and rank == 1 and step == 1:
            wait_for_judge(Path("judge.json"))
        loss = torch.tensor(-(rank + 1) * reward_of(step))
        dist.all_reduce(loss)
        print(f"rank {rank}, step {step}: loss {loss.item():.2f}\n", end="", flush=True)
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1] if len(sys.argv) > 1 else "")
    dist.destroy_process_group()
