"""A Ray driver that plays the scene named on each line of its standard input and prints what came of it."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import ray


@ray.remote(num_cpus=0.1)
class DTensorPolicyWorker:
    def __init__(self, rank):
        self.rank = rank
        os.environ["RANK"] = str(rank)

    def step(self, x):
        secret = self.rank * 7 + x
        breakpoint()
        return secret

    def count(self, n):
        total = 0
        for i in range(n):
            total = add(total, i)
        return total

    def train(self, folder):
        import numpy as np

        import rldbg

        with rldbg.Recorder(folder) as recorder:
            sample = {"tokens": [[5, 6, 7]], "loss_mask": [[0, 1, 1]], "logprobs": [[0.0, -1.0, -0.5]], "reward": [1.0]}
            recorder.record("trajectory", step=0, samples=[("g0", self.rank)], **sample)
        hidden = np.linspace(-1.0, 1.0, 64).reshape(8, 8)
        breakpoint()
        total = self.count(3)
        while not Path(folder, "go").exists():
            total = add(total, int(hidden.sum()))
        return total

    def fail(self, api_key):
        global_step = 31
        return inner({"values": [1, 2, 0]}, global_step)

    def children(self):
        code = "kind = 'popen'\nbreakpoint()\nkind = kind.upper()\n"
        done = subprocess.run([sys.executable, "-c", code], check=False)
        return done.returncode


def add(total, i):
    time.sleep(0.002)
    return total + i


def inner(batch, step):
    try:
        return [1 / value for value in batch["values"]]
    except ZeroDivisionError as error:
        reason = "a zero in the batch"
        raise RuntimeError(f"step {step} failed: {reason}") from error


@ray.remote(num_cpus=0.1)
class AsyncWorker:
    async def other(self):
        await asyncio.sleep(3600)

    async def step(self):
        mine = "async"
        breakpoint()
        return mine


@ray.remote(num_cpus=0.1, max_concurrency=4)
class ThreadedWorker:
    def wait(self):
        time.sleep(0.01)

    def step(self):
        mine = threading.current_thread().name
        breakpoint()
        return mine


@ray.remote(num_cpus=0.1)
def reward(n):
    doubled = n * 2
    breakpoint()
    return doubled


@ray.remote(num_cpus=0.1)
def failing_reward(n):
    raise ValueError(f"no reward for {n}")


@ray.remote(num_cpus=0.1)
def environment():
    names = ("USER_HOOK_RAN", "RLDBG_RUN", "RAY_DEBUG_POST_MORTEM", "USER_VARIABLE")
    return {name: os.environ.get(name) for name in names}


def user_setup_hook():
    os.environ["USER_HOOK_RAN"] = "yes"


def actors():
    workers = [DTensorPolicyWorker.remote(rank) for rank in range(4)]
    return ray.get([worker.step.remote(1) for worker in workers])


def thirty_two_actors():
    workers = [DTensorPolicyWorker.remote(rank) for rank in range(32)]
    return ray.get([worker.step.remote(1) for worker in workers])


def spread_actors():
    spread = DTensorPolicyWorker.options(scheduling_strategy="SPREAD")
    workers = [spread.remote(rank) for rank in range(4)]
    return ray.get([worker.step.remote(1) for worker in workers])


def task():
    return ray.get(reward.remote(5))


def legacy_task():
    return ray.get(reward.options(runtime_env={"env_vars": {"RAY_DEBUG": "legacy"}}).remote(6))


def driver():
    here = "the driver"
    breakpoint()
    return here


def loops():
    workers = [DTensorPolicyWorker.remote(rank) for rank in range(2)]
    return ray.get([worker.count.remote(1500) for worker in workers])


def training():
    workers = [DTensorPolicyWorker.remote(rank) for rank in range(2)]
    return ray.get([worker.train.remote(os.environ["SCENE_RECORDING"]) for worker in workers])


def async_actor():
    worker = AsyncWorker.remote()
    worker.other.remote()
    return ray.get(worker.step.remote())


def threaded_actor():
    worker = ThreadedWorker.remote()
    return ray.get(worker.step.remote())


def child():
    return ray.get(DTensorPolicyWorker.remote(0).children.remote())


def crash():
    try:
        return ray.get(DTensorPolicyWorker.remote(3).fail.remote("sk-aaaaaaaaaaaaaaaaaaaaaaaa"))
    except ray.exceptions.RayTaskError as error:
        return type(error.cause).__name__ if error.cause else str(error)[-80:]


def failing_task():
    try:
        return ray.get(failing_reward.remote(5))
    except ray.exceptions.RayTaskError as error:
        return type(error.cause).__name__


def variables():
    return ray.get(environment.remote())


def main():
    options = json.loads(os.environ.get("SCENE_RAY", "{}"))
    runtime_env = options.pop("runtime_env", None)
    if os.environ.get("SCENE_HOOK"):
        runtime_env = {"worker_process_setup_hook": user_setup_hook, "env_vars": {"USER_VARIABLE": "kept"}}
    if "address" not in options:
        options |= {"num_cpus": 4, "object_store_memory": 80 * 1024 * 1024}
    dashboard = ray.init(runtime_env=runtime_env, **options).dashboard_url
    print("READY", ray.get_runtime_context().gcs_address, dashboard or "", flush=True)
    for line in sys.stdin:
        name = line.strip()
        try:
            print("RESULT", name, json.dumps(globals()[name]()), flush=True)
        except Exception as error:  # noqa: BLE001 - the test reads it
            print("FAILED", name, repr(error), flush=True)
    ray.shutdown()
    print("ENDED", flush=True)


if __name__ == "__main__":
    main()
