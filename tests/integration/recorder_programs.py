"""Small training programs that the recorder's tests start as processes of their own, and kill.

    python recorder_programs.py PROGRAM DIRECTORY [ARGUMENT ...]

A program prints a line when the test may act; what it prints is what it has handed over.
"""

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable

import numpy as np

from rldbg.core import Identity
from rldbg.recording import Recorder

SAMPLES = [("g0", 0), ("g0", 1)]


def say(*words: object) -> None:
    # Not print: a signal handler that says something while print is still writing may not call it.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def train_forever(directory: str, format: str, seed: str) -> None:
    """Records without end, and says after each call what was handed over."""
    chance = np.random.default_rng(int(seed))
    recorder = Recorder(directory, format=format, identity=Identity(rank=int(seed) % 3), gather_s=0.05)
    for step in range(10**9):
        for micro in range(2):
            rows = chance.random((2, int(chance.integers(1, 20_000))), dtype=np.float32)
            recorder.record(
                "forward_data",
                step=step,
                micro=micro,
                samples=SAMPLES,
                log_probs=rows,
                entropy=rows,
                response_mask=np.ones_like(rows),
            )
            say("forward_data", step, micro)
            recorder.record("loss", step=step, micro=micro, samples=SAMPLES, loss=float(rows[0, 0]))
            say("loss", step, micro)
        recorder.end_step(step)


def record_and_wait(directory: str) -> None:
    """Hands one micro-batch over, which waits for others, and then waits itself."""
    recorder = Recorder(directory, gather_s=600)
    recorder.record("mine", step=0, micro=0, x=np.arange(10))
    say("ready")
    threading.Event().wait()


def record_flush_and_wait(directory: str) -> None:
    """A worker whose work is done and which nobody tells to end, as in a Ray cluster."""
    recorder = Recorder(directory, gather_s=600)
    recorder.record("mine", step=0, micro=0, x=np.arange(10))
    recorder.flush()
    say("ready")
    threading.Event().wait()


def record_and_handle_signal(directory: str) -> None:
    """Has its own SIGTERM handler, which leaves in order."""

    def leave(number: int, frame: object) -> None:
        say("handled", number)
        sys.exit(7)

    signal.signal(signal.SIGTERM, leave)
    record_and_wait(directory)


def record_in_a_loop_until_signal(directory: str) -> None:
    """Is nearly always inside record() when the signal comes, with a buffer that is nearly always full."""
    recorder = Recorder(directory, buffer_bytes=2**20)
    step = 0
    while True:
        recorder.record("mine", step=step, x=np.zeros(50_000))
        step += 1
        if step == 20:
            say("ready")


def record_and_exit(directory: str) -> None:
    recorder = Recorder(directory, gather_s=600)
    recorder.record("mine", step=0, micro=0, x=np.arange(10))


def record_and_crash(directory: str) -> None:
    record_and_exit(directory)
    raise RuntimeError("training failed")


def record_around_fork(directory: str) -> None:
    """A parent and its forked children use one recorder object."""
    recorder = Recorder(directory, gather_s=600)
    recorder.record("parent", step=0, micro=0, x=os.getpid())
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            if number:
                recorder.record("child", step=number, micro=0, x=os.getpid())
            recorder.end_step(number)
            sys.exit(0)
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0, status
    recorder.record("parent", step=0, micro=1, x=os.getpid())


def record_in_children(directory: str, count: str) -> None:
    """Children of multiprocessing, all at once; they leave by os._exit and still write what they have."""
    context = multiprocessing.get_context("fork")
    together = context.Barrier(int(count))
    children = [context.Process(target=_record_as_rank, args=(directory, rank, together)) for rank in range(int(count))]
    _run(children)


def _run(children: list) -> None:
    """All at once, to their ends."""
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0


def _record_as_rank(directory: str, rank: int, together: threading.Barrier) -> None:
    recorder = Recorder(directory, identity=Identity(rank=rank), gather_s=600)
    together.wait()
    for step in range(5):
        recorder.record("mine", step=step, micro=0, x=rank)
        recorder.record("large", step=step, x=np.full(100_000, rank))


def train_on_a_full_disk(directory: str, limit: str) -> None:
    """50 steps of 40 kB, more than the disk or the limit on files allows; says how many it trained."""
    if int(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    with Recorder(directory) as recorder:
        for step in range(50):
            recorder.record("mine", step=step, x=np.zeros(5_000))
        recorder.flush()
        say("trained", 50, "stopped" if recorder.stopped else "complete")


def train_sharded(directory: str) -> None:
    """Two ranks share a model by FSDP2; one parameter is so small that the second rank has nothing of it."""
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_train_shard, args=(directory, rank)) for rank in range(2)]
    _run(children)


def _train_shard(directory: str, rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
    np.savez(f"{directory}/whole{rank}.npz", **{name: value.numpy() for name, value in model.state_dict().items()})
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    model(torch.ones(2, 4)).sum().backward()
    # Only rank 0 records what is gathered, but gathering needs both.
    for place, settings in (("shards", {}), ("gathered", {"gather_shards": True, "ranks": [0]})):
        identity = Identity(rank=rank, world_size=2)
        with Recorder(f"{directory}/{place}", identity=identity, parameter_patterns=["weight"], **settings) as recorder:
            recorder.record_gradients(0, model)
            recorder.record_parameters(0, model)
    dist.destroy_process_group()


PROGRAMS: dict[str, Callable[..., None]] = {
    name: program for name, program in list(globals().items()) if callable(program) and not name.startswith("_")
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
