"""Logs for the tests: what healthy workers print, in the dialects of the programs involved, from a fixed seed."""

import random

TEMPLATES = (
    "\x1b[36m(WorkerDict pid={pid}, ip=10.0.0.{node})\x1b[0m [rank{rank}]: INFO:{time},123:batch {number} done",
    "(RolloutWorker pid={pid}) [{time} TP{node}] Decode batch. #req: {node}, #token: {number}, use: 0.4",
    "INFO {short} [loggers.py:118] Engine 000: Avg prompt throughput: 1.0 tokens/s, KV cache usage: {fraction:.1f}%",
    "node{node}:{pid}:{pid}1 [{node}] NCCL INFO Channel 0{node}/0 : 1[1] -> 2[2] via P2P/CUMEM/read",
    "(TaskRunner pid=152) step:{step} - actor/pg_loss:{fraction:.3f} - actor/grad_norm:{fraction:.3f} - perf/mfu:0.3",
    "[{time},014 I 812 812] (raylet) node_manager.cc:312: Sending heartbeat {number}",
    "(RewardWorker pid={pid}) 样本 {number} 的回答正确，奖励 {fraction:.2f}",
    "Training Progress:  {step}%|█         | {step}/150 [23:07<5:43:53, 146.34s/it]",
)


def healthy_lines(count, *, seed=0, ranks=64):
    """Lines of a run over many ranks in which nothing is wrong; the step grows."""
    rng = random.Random(seed)
    lines = []
    for number in range(count):
        rank = rng.randrange(ranks)
        clock = f"10:{number // 60 % 60:02d}:{number % 60:02d}"
        lines.append(
            rng.choice(TEMPLATES).format(
                pid=4000 + rank,
                rank=rank,
                node=rank % 8,
                number=number,
                fraction=rng.random(),
                step=1 + number * 40 // max(count, 1),
                time=f"2026-11-15 {clock}",
                short=f"11-15 {clock}",
            )
        )
    return lines
