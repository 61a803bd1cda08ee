"""Continuous batching over HTTP: tokens per second at N concurrent requests against one at a time, and against
`model.generate` on an equal static batch in this process. The model has random weights.

    python benchmarks/bench_serve.py                                            the tiny model, 32 at once
    python benchmarks/bench_serve.py --quick                                    as little as possible: does it run
    python benchmarks/bench_serve.py --size 0.5b --concurrency 64 --dtype bfloat16   on a GPU

Needs torch, transformers, safetensors, starlette and uvicorn; nothing else of the project's dependencies.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
SHAPES = {
    "tiny": {
        "vocab_size": 49, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
    "0.5b": {
        "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
}  # fmt: skip


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        parameters = make_model(Path(folder), options)
        prompts = make_prompts(options)
        print(f"model {options.size}: {parameters / 1e6:.1f} M parameters, {options.dtype}, device {options.device}")
        server, address = start(Path(folder), options)
        try:
            results = asyncio.run(over_http(address, prompts, options))
        finally:
            server.terminate()
            server.wait(30)
        static = static_batch(Path(folder), prompts, options)
    report(results, static, options)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=list(SHAPES), default="tiny")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--alone", type=int, default=4, help="requests of the one-at-a-time measurement")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--threads", type=int, default=1, help="of the server and of the static batch, on a CPU")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    options = parser.parse_args()
    if options.quick:
        options.concurrency, options.tokens, options.alone, options.rounds = 4, 8, 1, 1
    if options.device == "auto":
        import torch

        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    return options


def make_model(folder, options):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES[options.size], max_position_embeddings=4096, pad_token_id=0, eos_token_id=1)
    model = LlamaForCausalLM(config).to(getattr(torch, options.dtype))
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def make_prompts(options):
    numbers = random.Random(0)
    size = SHAPES[options.size]["vocab_size"]
    return [[numbers.randrange(2, size) for _ in range(options.prompt)] for _ in range(options.concurrency)]


def start(folder, options):
    """The server in a process of its own, as `rldbg serve up` starts it."""
    ready = folder / "0.ready"
    command = [sys.executable, "-m", "rldbg.inference.server", "--model", str(folder), "--name", "bench"]
    command += ["--announce", str(ready), "--dtype", options.dtype, "--device", options.device]
    command += ["--threads", str(options.threads), "--max-running", str(max(256, options.concurrency))]
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    server = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})
    deadline = time.monotonic() + 300
    while not ready.exists():
        assert server.poll() is None and time.monotonic() < deadline, "the server does not start"
        time.sleep(0.05)
    return server, json.loads(ready.read_text())["address"]


async def over_http(address, prompts, options):
    async def one_at_a_time(count):
        for prompt in prompts[:count]:
            await generate(address, prompt, options)

    async def together():
        await asyncio.gather(*(generate(address, prompt, options) for prompt in prompts))

    await one_at_a_time(1)
    await together()
    measured = {}
    for name, work, count in (
        ("one at a time", lambda: one_at_a_time(options.alone), min(options.alone, len(prompts))),
        ("concurrent", together, len(prompts)),
    ):
        best = None
        for _ in range(options.rounds):
            before, started = await forward_calls(address), time.perf_counter()
            await work()
            seconds, after = time.perf_counter() - started, await forward_calls(address)
            tokens = count * options.tokens
            figures = {"tokens_per_s": tokens / seconds, "forward_calls_per_token": (after - before) / tokens}
            best = max(best or figures, figures, key=lambda item: item["tokens_per_s"])
        measured[name] = best
    return measured


async def generate(address, prompt, options):
    sampling = {"max_new_tokens": options.tokens, "temperature": 1.0, "ignore_eos": True, "sampling_seed": 0}
    answer = await http(address, "POST", "/generate", {"input_ids": prompt, "sampling_params": sampling})
    assert len(answer["output_ids"]) == options.tokens, answer


async def forward_calls(address):
    return (await http(address, "GET", "/get_server_info", None))["internal_states"][0]["forward_calls"]


async def http(address, method, path, body):
    """One request on a connection of its own."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(head.encode() + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
    answer = await reader.read()
    writer.close()
    status, _, rest = answer.partition(b"\r\n")
    assert b" 200 " in status, answer[:500]
    return json.loads(rest.partition(b"\r\n\r\n")[2])


def static_batch(folder, prompts, options):
    """transformers' own generate on the same prompts, all at once, in this process."""
    import torch
    from transformers import AutoModelForCausalLM

    sys.path.insert(0, str(SOURCE))
    from rldbg.inference.embedded.loading import tune_cpu

    tune_cpu(options.threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, options.dtype)).to(options.device).eval()
    inputs = torch.tensor(prompts, device=options.device)
    best = 0.0
    for _ in range(options.rounds + 1):
        started = time.perf_counter()
        with torch.inference_mode():
            made = model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=options.tokens,
                min_new_tokens=options.tokens,
                do_sample=True,
                top_k=0,
            )
        made.cpu()
        best = max(best, len(prompts) * options.tokens / (time.perf_counter() - started))
    return best


def report(results, static, options):
    alone, together = results["one at a time"], results["concurrent"]
    ratio = together["tokens_per_s"] / alone["tokens_per_s"]
    print(f"{'':34}{'tokens/s':>12}{'forward calls/token':>22}")
    for name, figures in (("one at a time, HTTP", alone), (f"{options.concurrency} concurrent, HTTP", together)):
        print(f"{name:34}{figures['tokens_per_s']:12.0f}{figures['forward_calls_per_token']:22.3f}")
    print(f"{f'model.generate, static batch {options.concurrency}':34}{static:12.0f}{1 / options.concurrency:22.3f}")
    print(f"concurrent / one at a time: {ratio:.1f}x")
    print(f"model.generate / concurrent: {static / together['tokens_per_s']:.2f}x (1.5 is the most it may be)")


if __name__ == "__main__":
    main()
