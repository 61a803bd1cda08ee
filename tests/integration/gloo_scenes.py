"""Deadlocks of real gloo ranks. The parent imports torch once and forks the ranks of the scene it is asked for."""

import datetime
import os
import re
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist


def reward_of_a_slow_rank(go_on):
    while not go_on.exists():
        time.sleep(0.01)


def absent(rank, folder):
    dist.all_reduce(torch.ones(2))
    if rank == 2:
        reward_of_a_slow_rank(folder / "go")
    dist.all_reduce(torch.ones(2))


def disagreement(rank, _folder):
    dist.barrier()
    if rank == 1:
        dist.broadcast(torch.ones(3), src=0)
    else:
        dist.all_reduce(torch.ones(3))


def roots(rank, _folder):
    dist.broadcast(torch.ones(3), src=1 if rank == 0 else 0)
    dist.barrier()


def cycle(rank, _folder):
    first, second = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
    for group in (second, first) if rank == 1 else (first, second):
        dist.all_reduce(torch.ones(2), group=group)


def wrong_group(rank, _folder):
    """Rank 1 forgets the group of ranks 0 and 1."""
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(2), group=pair if rank == 0 else None)
    dist.barrier()


def uneven_groups(rank, _folder):
    """One rank alone makes a group of its own: the next one has another number on each side."""
    if rank == 2:
        dist.new_group([2])
    dist.new_group([0, 2])
    dist.barrier()


def named_group(rank, folder):
    """Ranks 0 and 2 have a group of their own, as libraries make them, where they are 0 and 1; only one uses it."""
    if rank != 1:
        c10d, store = dist.distributed_c10d, dist.FileStore(str(folder / "weights"), 2)
        patience = datetime.timedelta(seconds=600)
        group, _ = c10d._new_process_group_helper(
            2, rank // 2, [], dist.Backend("gloo"), store, group_name="weights", timeout=patience
        )
        c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    if rank == 0:
        dist.broadcast(torch.ones(1 << 16), src=0, group=group)
        # A small broadcast needs nobody to receive it.
        dist.barrier(group=group)
    reward_of_a_slow_rank(folder / "go")


def receives(rank, _folder):
    if rank < 2:
        dist.recv(torch.ones(1), src=1 - rank)
    dist.barrier()


def interpreter_stuck(rank, folder):
    if rank == 0:
        reward_of_a_slow_rank(folder / "go")
        re.match(r"(a+)+$", "a" * 60 + "b")
    dist.all_reduce(torch.ones(2))


def stopped(rank, _folder):
    if rank == 1:
        breakpoint()
    dist.all_reduce(torch.ones(2))


def patient(rank, folder):
    """Rank 0 is stopped while rank 1 is already in the collective; the timeouts must not fire."""
    dist.barrier()
    if rank == 0:
        breakpoint()
    begin = time.monotonic()
    dist.all_reduce(torch.ones(2))
    (folder / f"survived_{rank}").write_text(f"{time.monotonic() - begin:.1f}")


def impatient(rank, folder):
    """Timeouts as the user set them; rank 0 is stopped before rank 1 calls the collective."""
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=2), dist.group.WORLD)
    if rank == 0:
        # Only what is set when a rank stops can be raised then.
        reward_of_a_slow_rank(folder / "set")
        breakpoint()
    else:
        (folder / "set").write_text("")
        reward_of_a_slow_rank(folder / "go")
    begin = time.monotonic()
    dist.all_reduce(torch.ones(2))
    (folder / f"survived_{rank}").write_text(str(time.monotonic() - begin))


def unprotected(rank, folder):
    """Rank 1 is in the collective before rank 0 is stopped."""
    if rank == 0:
        reward_of_a_slow_rank(folder / "go")
        breakpoint()
    dist.all_reduce(torch.ones(2))


def run(scene, rank, world_size, folder, timeout_s):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    store = dist.FileStore(str(folder / "store"), world_size)
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    globals()[scene](rank, folder)
    dist.destroy_process_group()


def main():
    print("READY", flush=True)
    for line in sys.stdin:
        scene, world_size, folder, timeout_s = line.split()
        children = []
        for rank in range(int(world_size)):
            pid = os.fork()
            if pid == 0:
                try:
                    run(scene, rank, int(world_size), Path(folder), float(timeout_s))
                    os._exit(0)
                except BaseException as error:  # noqa: BLE001 - a child must never return into the parent's loop
                    # Not on stdout: a rank may outlive the others, and its scene, by a moment.
                    print("FAILED", scene, rank, repr(error), file=sys.stderr, flush=True)
                    os._exit(1)
            children.append(pid)
        print("PIDS", *children, flush=True)
        threading.Thread(target=lambda pids=tuple(children): [os.waitpid(p, 0) for p in pids], daemon=True).start()


if __name__ == "__main__":
    main()
