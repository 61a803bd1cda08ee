"""Fingerprints of a model's weights: ours, the limit of the memory, and a copy of all of it through a checksum.

PYTHONPATH=src python benchmarks/bench_fingerprints.py            0.5B bfloat16 parameters, on the GPU if there is one
PYTHONPATH=src python benchmarks/bench_fingerprints.py --quick    a fiftieth of it

Needs torch and numpy only, no network; on a GPU also triton, which torch brings, and a C compiler. The tensors have the
shapes of a 0.5B Qwen2. The limit is the time in which the device reads them once; the peer is what people do without
fingerprints: copy every tensor to the host and hash its bytes. Goal: at most 5 ms on an H200, and the same numbers as
a CPU gives.
"""

import argparse
import time
from hashlib import blake2b

import torch

from rldbg.weights import fingerprints

GOAL_MS = 5.0


def shapes(layers: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    wide, narrow, inner = 896, 128, 4864
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, wide), "model.norm.weight": (wide,)}
    for number in range(layers):
        layer = f"model.layers.{number}."
        for name, rows in (("q", wide), ("k", narrow), ("v", narrow)):
            found[f"{layer}self_attn.{name}_proj.weight"] = (rows, wide)
            found[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
        found[f"{layer}self_attn.o_proj.weight"] = (wide, wide)
        found[f"{layer}mlp.gate_proj.weight"] = found[f"{layer}mlp.up_proj.weight"] = (inner, wide)
        found[f"{layer}mlp.down_proj.weight"] = (wide, inner)
        found[f"{layer}input_layernorm.weight"] = found[f"{layer}post_attention_layernorm.weight"] = (wide,)
    return found


def best_ms(call, device: torch.device, repeats: int) -> float:
    """The fastest of some calls, each from an idle device to an idle device."""
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return 1000 * min(times)


def checksums(tensors: dict[str, torch.Tensor]) -> list[str]:
    plain = (tensor.cpu().view(torch.uint8).numpy() for tensor in tensors.values())
    return [blake2b(values.tobytes(), digest_size=8).hexdigest() for values in plain]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small model, few repetitions")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers, vocabulary = (2, 2048) if options.quick else (24, 151936)
    tensors = {
        name: torch.randn(shape, device=device, dtype=torch.bfloat16)
        for name, shape in shapes(layers, vocabulary).items()
    }
    elements = sum(tensor.numel() for tensor in tensors.values())
    repeats = 3 if options.quick else 20
    started = time.perf_counter()
    first = fingerprints(tensors)
    first_ms = 1000 * (time.perf_counter() - started)
    ours = best_ms(lambda: fingerprints(tensors), device, repeats)
    whole = torch.empty(elements, device=device, dtype=torch.bfloat16)
    limit = best_ms(lambda: whole.view(torch.int32 if elements % 2 == 0 else torch.int16).max(), device, repeats)
    peer = best_ms(lambda: checksums(tensors), device, 1 if device.type == "cpu" else 3)
    print(f"{len(tensors)} tensors, {elements / 1e6:.1f} million elements, {device}")
    print(f"fingerprints           {ours:9.2f} ms   {ours / limit:6.2f} x the limit, {ours / GOAL_MS:.2f} x the goal")
    print(f"the first time         {first_ms:9.2f} ms   kernels are compiled")
    print(f"limit: read them once  {limit:9.2f} ms")
    print(f"peer: copy and hash    {peer:9.2f} ms   {peer / ours:6.2f} x ours")
    if device.type == "cuda":
        on_cpu = {item.name: item for item in fingerprints({name: tensor.cpu() for name, tensor in tensors.items()})}
        same = all(item.total == on_cpu[item.name].total for item in first)
        print(f"equal to those of the CPU: {'yes' if same else 'NO'}")


if __name__ == "__main__":
    main()
