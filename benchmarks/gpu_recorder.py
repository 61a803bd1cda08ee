"""What recording costs a training step on a GPU. Needs CUDA, torch and transformers; runs from the source checkout.

    PYTHONPATH=src python3 benchmarks/gpu_recorder.py [--steps 10] [--blocks 6] [--quick]

Prints each figure beside its limit (a clone on the device, the pinned bandwidth of this machine) and beside a plain
`.cpu()`, all measured in this run. Exit code 3: there is no CUDA device.
"""

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from rldbg.core import Identity
from rldbg.recording.formats import native
from rldbg.recording.recorder import Recorder
from rldbg.recording.recorder.arena import Arena
from rldbg.recording.recorder.device import Devices, PendingCopy
from rldbg.recording.recorder.memory import ArenaMemory

GIB = 2**30
DEVICE = "cuda"


def say(name: str, figures: str, ratio: float, goal: str, holds: bool) -> bool:
    print(f"{name}\n  {figures}\n  ratio {ratio:.4f}, goal {goal}: {'holds' if holds else 'DOES NOT HOLD'}", flush=True)
    return holds


def stream_ms(action: Callable[[], object]) -> float:
    """How long the current stream is busy with what the action queues, the host being ahead of it."""
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(60_000_000)  # some 30 ms of GPU time in which the host queues everything below
    start.record()
    action()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


class Trainer:
    """A policy-gradient step of a causal model of about half a billion parameters, in two micro-batches."""

    def __init__(self, samples: int, prompt: int, response: int) -> None:
        from transformers import Qwen2Config, Qwen2ForCausalLM

        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=151_936,
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
        with torch.device(DEVICE):
            self.model = Qwen2ForCausalLM(config).to(torch.bfloat16)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)
        self.prompt, self.response = prompt, response
        self.tokens = torch.randint(0, config.vocab_size, (samples, prompt + response), device=DEVICE)
        self.old_log_probs = -torch.rand(samples, response, device=DEVICE)
        self.advantages = torch.randn(samples, 1, device=DEVICE).expand(samples, response).contiguous()
        self.mask = torch.ones(samples, response, dtype=torch.int64, device=DEVICE)
        self.positions = torch.arange(prompt + response, device=DEVICE).expand(samples, -1).contiguous()
        self.trajectories = {
            "tokens": self.tokens.tolist(),
            "loss_mask": [[0] * prompt + [1] * response for _ in range(samples)],
            "logprobs": [[0.0] * prompt + row for row in self.old_log_probs.tolist()],
            "reward": [0.5] * samples,
        }
        self.samples = [(f"g{number // 4}", number % 4) for number in range(samples)]

    def step(self, number: int, way: "Way") -> None:
        record = way.record
        record("trajectory", step=number, samples=self.samples, **self.trajectories)
        record("old_log_probs", step=number, samples=self.samples, old_log_probs=self.old_log_probs)
        half = len(self.samples) // 2
        for micro, rows in enumerate((slice(0, half), slice(half, None))):
            self._micro_batch(number, micro, rows, record)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        way.end_step(number)

    def _micro_batch(self, step: int, micro: int, rows: slice, record: Callable[..., None]) -> None:
        about = {"step": step, "micro": micro, "samples": self.samples[rows]}
        tokens, old, mask = self.tokens[rows], self.old_log_probs[rows], self.mask[rows]
        attention = torch.ones_like(tokens)
        record("batch_inputs", input_ids=tokens, attention_mask=attention, position_ids=self.positions[rows], **about)
        logits = self.model(input_ids=tokens, position_ids=self.positions[rows]).logits
        logits = logits[:, self.prompt - 1 : -1].float()
        log_all = torch.log_softmax(logits, dim=-1)
        log_probs = log_all.gather(-1, tokens[:, self.prompt :, None]).squeeze(-1)
        entropy = -(log_all.detach().exp() * log_all.detach()).sum(-1)
        record("forward_data", log_probs=log_probs, entropy=entropy, response_mask=mask, input_ids=tokens, **about)
        ratio = torch.exp(log_probs - old)
        elementwise = -torch.minimum(ratio * self.advantages[rows], ratio.clamp(0.8, 1.2) * self.advantages[rows])
        loss = (elementwise * mask).sum() / mask.sum()
        record(
            "is_loss_debug",
            log_probs=log_probs,
            old_log_probs=old,
            advantages=self.advantages[rows],
            prob_ratio=ratio,
            elementwise_loss=elementwise,
            effective_valid=mask,
            loss=loss,
            **about,
        )
        record("loss", loss=loss, pg_loss=loss, entropy_loss=entropy.mean(), **about)
        loss.backward()


class Without:
    """Training without recording."""

    def record(self, kind: str, **fields: object) -> None:
        """Keeps nothing."""

    def end_step(self, step: int) -> None:
        """Has nothing to end."""


class Naive(Without):
    """Every tensor by .cpu(), then torch.save, in the training thread."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    def record(self, kind: str, *, step: int, micro: int = 0, **fields: object) -> None:
        host = {name: value.cpu() if torch.is_tensor(value) else value for name, value in fields.items()}
        torch.save(host, self._folder / f"{kind}_{step}_{micro}.pt")


Way = Without | Naive | Recorder


def timed_steps(trainer: Trainer, way: Way, numbers: Iterator[int], steps: int) -> list[float]:
    """Milliseconds of each step but the first, by CUDA events, the host running ahead as it does in training."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    for event in events[:-1]:
        event.record()
        trainer.step(next(numbers), way)
    events[-1].record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in itertools.pairwise(events[1:])]


def bench_step(folder: Path, steps: int, blocks: int) -> bool:
    trainer = Trainer(samples=16, prompt=256, response=768)
    numbers = iter(range(10**9))
    times: dict[str, list[float]] = {"without": [], "recorded": [], "naive": []}
    peaks: dict[str, int] = {}
    with Recorder(folder / "steps", identity=Identity(role="policy")) as recorder:
        ways: dict[str, Way] = {"without": Without(), "recorded": recorder, "naive": Naive(folder / "naive")}
        for way in ways.values():
            timed_steps(trainer, way, numbers, 4)
        for _ in range(blocks):
            for name, way in ways.items():
                recorder.flush()
                torch.cuda.reset_peak_memory_stats()
                times[name] += timed_steps(trainer, way, numbers, steps)
                peaks[name] = torch.cuda.max_memory_allocated()
        recorder.flush()
        written = sum(path.stat().st_size for path in (folder / "steps").glob("*/*.safetensors"))
        if recorder.stopped:
            raise SystemExit(recorder.stopped)
    without, recorded, naive = (statistics.median(times[name]) for name in ("without", "recorded", "naive"))
    return say(
        f"a training step of {trainer.parameters / 1e9:.2f}B parameters, all per-token kinds recorded",
        f"without {without:.2f} ms, recorded {recorded:.2f} ms, with .cpu() and torch.save {naive:.2f} ms; "
        f"extra device memory {(peaks['recorded'] - peaks['without']) / 2**20:.1f} MiB, "
        f"{written / 2**20:.0f} MiB written",
        recorded / without,
        "<= 1.01",
        recorded / without <= 1.01,
    )


def big_tensors() -> dict[str, torch.Tensor]:
    return {f"part{number:02d}": torch.randn(16, 2**20, device=DEVICE) for number in range(16)}


def bench_caller_stream(folder: Path) -> list[bool]:
    """1 GiB in 16 tensors: what the caller's stream pays when the device buffer allows clones, and when not."""
    results = []
    tensors = big_tensors()
    clone = min(stream_ms(lambda: [tensor.clone() for tensor in tensors.values()]) for _ in range(5))
    plain = min(wall_ms(lambda: [tensor.cpu() for tensor in tensors.values()]) for _ in range(3))
    for buffer, name in ((2 * GIB, "with room in the device buffer"), (0, "without a device buffer")):
        settings = {"buffer_bytes": 2 * GIB, "device_buffer_bytes": buffer}
        stream, host = [], []
        with Recorder(folder / "big", identity=Identity(), **settings) as recorder:
            for step in range(5):
                calls: list[float] = []
                stream.append(stream_ms(lambda calls=calls, step=step: calls.append(call_ms(recorder, step, tensors))))
                host.append(calls[0])
                recorder.flush()
                (folder / "big" / "big" / f"step_{step:06d}_rank0.safetensors").unlink()
            if recorder.stopped:
                raise SystemExit(recorder.stopped)
        figures = (
            f"caller's stream {min(stream):.2f} ms, its thread {min(host):.2f} ms; "
            f"clone {clone:.2f} ms; plain .cpu() {plain:.1f} ms"
        )
        if buffer:
            results.append(say(f"1 GiB, {name}", figures, min(stream) / clone, "<= 1.05", min(stream) / clone <= 1.05))
        else:
            print(f"1 GiB, {name}\n  {figures}", flush=True)
    return results


def call_ms(recorder: Recorder, step: int, tensors: dict[str, torch.Tensor]) -> float:
    start = time.perf_counter()
    recorder.record("big", step=step, **tensors)
    return (time.perf_counter() - start) * 1e3


def wall_ms(action: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def bench_bandwidth() -> bool:
    """The copy to the host, by the recorder's own lanes and pinned slabs, against one large pinned copy."""
    source = torch.randn(GIB // 4, device=DEVICE)
    pinned = torch.empty(GIB // 4, pin_memory=True)
    limit = GIB / min(stream_ms(lambda: pinned.copy_(source, non_blocking=True)) for _ in range(5)) / 1e6
    tensors = big_tensors()
    arena = Arena(GIB + 2**22)
    devices = Devices(arena, 2 * GIB)
    speeds = []
    for _ in range(5):
        memory = ArenaMemory(arena, lambda: None)
        (transfer,) = devices.send([PendingCopy(tensor) for tensor in tensors.values()], memory.take)
        torch.cuda.synchronize()
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        side = transfer.stream.side_stream
        start.record(side)
        transfer.begin()
        end.record(side)
        transfer.finish()
        speeds.append(GIB / start.elapsed_time(end) / 1e6)
        memory.release()
    devices.close()
    return say(
        "copy to the host",
        f"ours {max(speeds):.1f} GB/s, pinned {limit:.1f} GB/s",
        max(speeds) / limit,
        ">= 0.8",
        max(speeds) / limit >= 0.8,
    )


def check_snapshot(folder: Path) -> bool:
    """What is in the file is what was there at the call, although the source is overwritten right after it."""
    good = True
    for buffer in (GIB, 0):
        tensor = torch.randn(64, 2**18, device=DEVICE)
        half = tensor.to(torch.bfloat16).T
        expected = tensor.cpu().clone(), half.cpu().clone()
        with Recorder(folder / f"check{buffer}", identity=Identity(), device_buffer_bytes=buffer) as recorder:
            recorder.record("mine", step=0, tensor=tensor, half=half, metrics={"mean": tensor.mean()})
            tensor.fill_(77)
            half.fill_(77)
        record = native.decode(folder / f"check{buffer}" / "mine" / "step_000000_rank0.safetensors").read(0)
        good &= torch.equal(torch.from_numpy(record.array("tensor").copy()), expected[0])
        good &= torch.equal(torch.from_numpy(record.array("half").copy()), expected[1].float())
    return say("the source overwritten right after the call", "bytes compared", float(good), "equal", good)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    options = parser.parse_args()
    steps, blocks = (2, 2) if options.quick else (options.steps, options.blocks)
    if not torch.cuda.is_available():
        print("there is no CUDA device here", file=sys.stderr)
        return 3
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="rldbg-gpu-"))
    try:
        results = [check_snapshot(folder), bench_bandwidth(), *bench_caller_stream(folder)]
        torch.cuda.empty_cache()
        results.append(bench_step(folder, steps, blocks))
    finally:
        shutil.rmtree(folder)
    return 0 if options.quick or all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
