"""The trainer's step functions on a GPU: bf16, a random causal model of about half a billion parameters.

Needs torch and transformers only, and runs from a source checkout:

    PYTHONPATH=src python benchmarks/gpu_steps.py [--quick]

Without a GPU the same steps run on the CPU.
Prints time and memory of each stage, and the share of the GPU's measured matrix-product rate that the step reaches.
"""

import argparse
import json
import time
from dataclasses import replace

import numpy as np
import torch

from rldbg.core import SampleId
from rldbg.replay import Trajectory
from rldbg.trainer.settings import AlgorithmSettings, OptimizerSettings
from rldbg.trainer.shards import micro_batches, prepare
from rldbg.trainer.steps import apply_gradients, forward, make_optimizer, train_micro_batch

QUICK = {"vocabulary": 64, "hidden": 128, "layers": 1, "samples": 4, "micro": 2, "prompt": 8, "response": 8, "steps": 2}


def build(arguments, device):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=arguments.vocabulary,
        hidden_size=arguments.hidden,
        intermediate_size=arguments.hidden * 11 // 2,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // 64,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        return Qwen2ForCausalLM(config).to(torch.bfloat16).eval()


def samples(arguments):
    generator = np.random.default_rng(0)
    made = []
    for number in range(arguments.samples):
        response = int(generator.integers(arguments.response // 2, arguments.response + 1))
        length = arguments.prompt + response
        made.append(
            Trajectory(
                SampleId(f"g{number // 4}", number % 4),
                generator.integers(2, arguments.vocabulary, size=length),
                np.asarray([0] * arguments.prompt + [1] * response),
                float(generator.integers(0, 2)),
                np.zeros(length, dtype=np.float32),
            )
        )
    return made


class Timer:
    """Seconds of each stage, the device's work included."""

    def __init__(self, device):
        self.device, self.times = device, {}

    def __call__(self, name, work):
        self._wait()
        started = time.perf_counter()
        result = work()
        self._wait()
        self.times.setdefault(name, []).append(time.perf_counter() - started)
        return result

    def _wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def peak_rate(device):
    """Floating point operations a second of one large bf16 matrix product: the limit here."""
    size = 8192 if device.type == "cuda" else 128
    one = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    timer = Timer(device)
    for _ in range(6):
        timer("product", lambda: one @ one)
    return 2 * size**3 / min(timer.times["product"])


def step(arguments, model, optimizer, batch, algorithm, timer):
    """One policy step as the trainer does it; its loss and gradient norm."""
    micros = timer("batches", lambda: list(micro_batches(batch, size=arguments.micro, pad_id=0, device=timer.device)))
    with torch.no_grad():
        old = timer("old_log_probs", lambda: [forward(model, micro.batch).log_probs for micro in micros])
    ready = [replace(micro, old_log_probs=row) for micro, row in zip(micros, old, strict=True)]
    terms = timer("forward_backward", lambda: [train_micro_batch(model, micro, algorithm)[1] for micro in ready])
    norm = timer("optimizer", lambda: apply_gradients(model, optimizer, rate=1e-5, max_grad_norm=1.0))
    return sum(float(term.loss.detach()) for term in terms), norm


def main():
    parser = argparse.ArgumentParser()
    for name, value in {
        "vocabulary": 151936,
        "hidden": 896,
        "layers": 24,
        "samples": 16,
        "micro": 4,
        "prompt": 256,
        "response": 512,
        "steps": 6,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    arguments = parser.parse_args()
    if arguments.quick:
        for name, value in QUICK.items():
            setattr(arguments, name, value)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(arguments, device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    algorithm = AlgorithmSettings(entropy_coeff=0.001)
    optimizer = make_optimizer(model.parameters(), OptimizerSettings())
    batch = prepare(samples(arguments), algorithm, max_length=arguments.response)
    tokens = sum(len(item.tokens) for item in batch.trajectories)
    timer, losses = Timer(device), []
    for _ in range(arguments.steps):
        losses.append(step(arguments, model, optimizer, batch, algorithm, timer))
    limit = peak_rate(device)
    seconds = {name: min(values[1:] or values) for name, values in timer.times.items()}
    step_s = sum(seconds.values())
    # A forward pass is 2 operations a parameter and token, a backward pass 4; the old log probs are one more forward.
    achieved = 8 * parameters * tokens / step_s
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
                "dtype": "bfloat16",
                "parameters": parameters,
                "tokens_per_step": tokens,
                "seconds": {name: round(value, 4) for name, value in seconds.items()},
                "tokens_per_s": round(tokens / step_s),
                "achieved_tflops": round(achieved / 1e12, 2),
                "limit_tflops": round(limit / 1e12, 2),
                "ratio": round(achieved / limit, 3),
                "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)
                if device.type == "cuda"
                else None,
                "finite": bool(np.isfinite(losses).all()),
                "losses": [round(loss, 5) for loss, _ in losses],
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
