"""`rldbg rerun batch.pt --loss`: a model's parameters, and several ranks under torchrun."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from rldbg.core import Environment, SampleId
from rldbg.recording import write_batch

LOSSES = """
import torch
import torch.distributed as dist

def values(log_probs, old_log_probs, advantages):
    ratio = torch.exp(log_probs - old_log_probs)
    return torch.maximum(-ratio * advantages, -ratio.clamp(0.8, 1.2) * advantages)

def own_mean(log_probs, old_log_probs, advantages, mask):
    return (values(log_probs, old_log_probs, advantages) * mask).sum() / mask.sum()

def whole_mean(log_probs, old_log_probs, advantages, mask):
    tokens = mask.sum().float()
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if ranks > 1:
        dist.all_reduce(tokens)
    return ranks * (values(log_probs, old_log_probs, advantages) * mask).sum() / tokens

def of_logits(logits, input_ids, old_log_probs, advantages, mask):
    width = mask.shape[1]
    log_probs = torch.log_softmax(logits[:, -width - 1 : -1].float(), -1)
    return own_mean(log_probs.gather(-1, input_ids[:, -width:, None])[..., 0], old_log_probs, advantages, mask)

def breaks_on_one(log_probs):
    if dist.get_rank() == 1:
        raise ValueError("only here")
    return log_probs.sum()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "my_losses.py").write_text(LOSSES)
    numbers = np.random.default_rng(1)
    length = np.array([12, 5, 11, 5, 6, 6, 7, 5])
    columns = np.arange(12)[None, :]
    real, mask = columns < length[:, None], (columns < length[:, None]) & (columns >= 4)
    tensors = {
        "input_ids": np.where(real, numbers.integers(2, 40, real.shape), 0).astype(np.int32),
        "loss_mask": mask.astype(np.int32),
        "attention_mask": real,
        "logprobs": np.where(mask, -numbers.random(real.shape) - 3, 0).astype(np.float32),
        "versions": np.where(mask, 0, -1).astype(np.int32),
        "rewards": (np.arange(8) % 2).astype(np.float32),
    }
    write_batch(folder / "batch.pt", tensors, [SampleId(f"g{row // 4}", row % 4) for row in range(8)])
    return folder


def run(project, loss, *options, ranks=1, device="cpu"):
    words = ["-m", "rldbg", "rerun", "batch.pt", "--loss", f"my_losses:{loss}", "--device", device, "--json", *options]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    environment = {**Environment().everything(), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(project)}
    done = subprocess.run(
        [sys.executable, *launcher, *words], cwd=project, env=environment, capture_output=True, text=True, timeout=170
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) >= 1, (done.stdout, done.stderr)
    return done.returncode, [json.loads(line) for line in lines]


def test_ranks_together_equal_one_only_if_the_loss_divides_by_all_tokens(project):
    code, (alone,) = run(project, "of_logits", "--model", "tiny", "--micro-batch", "3")
    assert code == 0 and "ppo" in alone["equal_to"] and "grpo" not in alone["equal_to"] and alone["ranks"] == 1
    assert alone["gradients"]["cosines"]["ppo"] == pytest.approx(1, abs=1e-5)
    code, (together,) = run(project, "whole_mean", "--model", "tiny", ranks=2)
    assert code == 0 and together["equal_to"] == ["ppo"] and together["ranks"] == 2
    assert together["gradients"]["norm"] == pytest.approx(alone["gradients"]["norm"], rel=1e-5)
    code, (apart,) = run(project, "own_mean", ranks=2)
    assert code == 0 and apart["equal_to"] == []
    assert "loss-by-rank" in [finding["id"] for finding in apart["findings"]]
    assert len(set(apart["points"][0]["loss_of_ranks"])) == 2


def test_an_error_on_one_rank_ends_all_of_them(project):
    code, errors = run(project, "breaks_on_one", ranks=2)
    assert code == 1 and all("ValueError: only here" in item["error"]["message"] for item in errors)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_the_gpu_gives_the_numbers_of_the_cpu(project):
    _, (here,) = run(project, "own_mean", "--model", "tiny")
    _, (there,) = run(project, "own_mean", "--model", "tiny", device="cuda")
    assert there["device"].startswith("cuda") and there["equal_to"] == here["equal_to"]
    assert there["gradients"]["norm"] == pytest.approx(here["gradients"]["norm"], rel=1e-4)
    assert there["points"][1]["loss"] == pytest.approx(here["points"][1]["loss"], rel=1e-4)
