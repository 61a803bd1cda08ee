"""Jobs that fail for a known reason on a real Ray; run as `python doctor_jobs.py NAME ADDRESS FOLDER`."""

import ctypes
import os
import resource
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import ray


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@ray.remote(num_cpus=0)
class Rank:
    def __init__(self, rank, world, port, timeout_s=6):
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", port, world, rank == 0, timedelta(seconds=60))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s))
        self.rank = rank

    def pid(self):
        return os.getpid()

    def train(self, mistake):
        import torch
        import torch.distributed as dist

        if self.rank == 1:
            mistake()
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        return float(tensor[0])


def _group(mistake):
    port = _free_port()
    ranks = [Rank.remote(rank, 2, port) for rank in range(2)]
    ray.get([rank.pid.remote() for rank in ranks])
    waiting = [rank.train.remote(mistake) for rank in ranks]
    while waiting:
        done, waiting = ray.wait(waiting)
        try:
            ray.get(done)
        except ray.exceptions.RayError as error:
            print(error, file=sys.stderr, flush=True)
    raise SystemExit(1)


def gloo_after_unknown(_folder):
    def mistake():
        scores = {"a": 1.0}
        return scores["reward of sample 17"]

    _group(mistake)


def gloo_after_missing_module(_folder):
    def mistake():
        import a_reward_library_nobody_has  # noqa: F401

    _group(mistake)


def dead_worker(_folder):
    @ray.remote(num_cpus=0, max_retries=0)
    def vanish():
        os.kill(os.getpid(), signal.SIGKILL)

    ray.get(vanish.remote())


def segfault(_folder):
    @ray.remote(num_cpus=0, max_retries=0)
    def crash():
        ctypes.string_at(0)

    ray.get(crash.remote())


def port_taken(_folder):
    @ray.remote(num_cpus=0, max_retries=0)
    def serve(port):
        import torch.distributed as dist

        dist.TCPStore("127.0.0.1", port, 1, True, timedelta(seconds=10))

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ray.get(serve.remote(taken.getsockname()[1]))


def full_disk(folder):
    """`folder` is a small tmpfs."""

    @ray.remote(num_cpus=0, max_retries=0)
    def save_checkpoint(path):
        import torch

        torch.save({"weight": torch.zeros(64 << 20)}, path)

    ray.get(save_checkpoint.remote(str(Path(folder, "step_10.pt"))))


def thread_limit(_folder):
    @ray.remote(num_cpus=0, max_retries=0)
    def many_threads():
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + (96 << 20)
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        stop = threading.Event()
        try:
            for _ in range(2000):
                threading.Thread(target=stop.wait, daemon=True).start()
        finally:
            # Ray needs memory to tell of the failure.
            stop.set()
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    ray.get(many_threads.remote())


def missing_in_runtime_env(folder):
    @ray.remote(num_cpus=0, max_retries=0, runtime_env={"env_vars": {"PYTHONPATH": folder}})
    def score():
        import my_project_rewards

        return my_project_rewards.score("42")

    ray.get(score.remote())


def other_version(_folder):
    raise AssertionError("handled before the connection")


def healthy(_folder):
    @ray.remote(num_cpus=0)
    class Trainer:
        def step(self, number):
            print(f"step:{number} - actor/pg_loss:0.1 - actor/grad_norm:0.3", flush=True)
            return number

    trainer = Trainer.remote()
    for number in range(30):
        ray.get(trainer.step.remote(number))
    print("done")


def hog(_folder):
    """With the memory monitor's threshold at zero Ray kills what runs."""

    @ray.remote(num_cpus=0, max_retries=0)
    def spend():
        block = bytearray(256 << 20)
        time.sleep(60)
        return len(block)

    ray.get(spend.remote())


def lost_head(folder):
    """Waits until the test has killed the head's process."""

    @ray.remote(num_cpus=0)
    def work():
        time.sleep(120)

    waiting = work.remote()
    Path(folder, "ready").touch()
    ray.get(waiting)


def main(name, address, folder):
    if name == "other_version":
        ray.__version__ = "2.9.3"
    ray.init(address=address, logging_level="info")
    globals()[name](folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
