"""Many episodes at once: ours, the peer, the limit and the ratio, from one run.

Every episode makes one request to the same small server, which answers after a millisecond. Ours is a whole `rldbg
rollout` (workflow, outcome, batch saved); the peer is `httpx.AsyncClient` with `asyncio.gather` and a semaphore, which
is what a script of one's own would do; the limit is the bare client of the rollout. Processor time a request, without
the start of Python.

    python benchmarks/bench_rollout.py [--episodes 3000] [--concurrency 1000] [--quick]
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

BODY = {"input_ids": [65, 66], "sampling_params": {"max_new_tokens": 4}, "return_logprob": True}
WORKFLOW = "async def flow(prompt, generate):\n    return float(len((await generate([65, 66])).tokens))\n"


def served(address) -> None:
    """In a process of its own, so that only the clients are measured."""
    from small_server import small_server

    with small_server() as server:
        address.put(server.address)
        time.sleep(600)


def ours(address: str, episodes: int, concurrency: int) -> None:
    from rldbg.core import Run
    from rldbg.inference.workflows import RolloutRequest, rollout

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "flow.py").write_text(WORKFLOW)
        (folder / "data.jsonl").write_text("".join(json.dumps({"prompt": f"{n}"}) + "\n" for n in range(episodes)))
        request = RolloutRequest(f"{folder}/flow.py:flow", f"{folder}/data.jsonl", [address], concurrency=concurrency)
        report = rollout(request, lambda: Run.create(name="b", path=folder / "run"), load_tokenizer=lambda name: None)
        assert report.rows == episodes, report.to_dict()


def bare(address: str, episodes: int, concurrency: int) -> None:
    from rldbg.inference.workflows.http_client import HttpClient

    async def run() -> None:
        client = HttpClient(headers={}, connections=concurrency, connect_s=30)
        answers = await asyncio.gather(*(client.post(f"http://{address}/generate", BODY) for _ in range(episodes)))
        assert all(answer.json()["output_ids"] for answer in answers)

    asyncio.run(run())


def peer(address: str, episodes: int, concurrency: int) -> None:
    import httpx

    async def run() -> None:
        turns = asyncio.Semaphore(concurrency)
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        async with httpx.AsyncClient(limits=limits, timeout=None) as client:

            async def one() -> None:
                async with turns:
                    assert (await client.post(f"http://{address}/generate", json=BODY)).json()["output_ids"]

            await asyncio.gather(*(one() for _ in range(episodes)))

    asyncio.run(run())


def main() -> None:
    import multiprocessing

    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=3000)
    parser.add_argument("--concurrency", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    options = parser.parse_args()
    episodes, concurrency = (20, 10) if options.quick else (options.episodes, options.concurrency)
    context = multiprocessing.get_context("spawn")
    address = context.Queue()
    server = context.Process(target=served, args=(address,), daemon=True)
    server.start()
    place = address.get(timeout=60)
    costs = {}
    for name, work in (("ours", ours), ("peer (httpx)", peer), ("limit (bare client)", bare)):
        work(place, 10, 10)
        started, processor = time.monotonic(), time.process_time()
        work(place, episodes, concurrency)
        costs[name] = (time.process_time() - processor) / episodes
        wall = time.monotonic() - started
        print(f"{name:20} {costs[name] * 1e3:7.2f} ms of processor a request, {wall:5.1f} s in all")
    server.terminate()
    mine, theirs, least = costs.values()
    print(f"ours / peer {mine / theirs:.2f}   ours / limit {mine / least:.2f}")


if __name__ == "__main__":
    main()
