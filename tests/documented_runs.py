"""Small recordings with one fault each, a log and a loss: what commands of docs/problems run on, beside the tour's."""

import json
from pathlib import Path

import numpy as np

import rldbg

LOG = """\
(RayTrainWorker pid=4711) INFO step 17 begins
[2026-11-02 10:15:03,114 E 812 812] (raylet) node_manager.cc:3064: 1 Workers (tasks / actors) killed due to memory \
pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 5e8a, IP: 10.0.0.7) over the last time period.
ray.exceptions.ActorDiedError: The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR \
Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:43110
"""


LOSS = """\
import torch


def compute(log_probs, old_log_probs, advantages, mask):
    ratio = torch.exp(log_probs - old_log_probs)
    loss = torch.maximum(-ratio * advantages, -ratio.clamp(0.8, 1.2) * advantages)
    return (loss * mask).sum() / len(mask)
"""


def write_documented_runs(folder: Path) -> None:
    _collapsed(folder / "collapsed")
    _not_finite(folder / "broken")
    _rewritten_history(folder / "rewritten")
    _stale_weights(folder / "stale")
    _profiled(folder / "profiled")
    (folder / "my_loss.py").write_text(LOSS)
    (folder / "logs").mkdir()
    (folder / "logs" / "driver.log").write_text(LOG)


def _collapsed(folder: Path) -> None:
    """The reward falls from one step to the next, and stays low."""
    draw = np.random.default_rng(0)
    samples = [(f"g{number // 4}", number % 4) for number in range(64)]
    with rldbg.Recorder(folder) as recorder:
        for step in range(48):
            tokens = draw.integers(3, 90, (64, 8))
            tokens[:, :2] = np.repeat(np.arange(16), 4)[:, None] + 3  # a group shares its prompt
            reward = (draw.random(64) < (0.8 if step < 40 else 0.1)).astype(np.float32)
            mask = np.tile([0, 0, 1, 1, 1, 1, 1, 1], (64, 1))
            recorder.record("trajectory", step=step, samples=samples, tokens=tokens, loss_mask=mask, reward=reward)


def _not_finite(folder: Path) -> None:
    samples = [("g0", 0), ("g0", 1)]
    mask = np.array([[0, 0, 1, 1], [0, 0, 1, 1]])
    with rldbg.Recorder(folder) as recorder:
        for step in range(3):
            log_probs = np.full((2, 4), -0.5, np.float32) * mask
            if step == 2:
                log_probs[1, 3] = np.nan
            tokens = np.array([[11, 4, 7, 2], [11, 4, 9, 2]])
            reward = np.array([1.0, 0.0], np.float32)
            recorder.record("trajectory", step=step, samples=samples, tokens=tokens, loss_mask=mask, reward=reward)
            recorder.record(
                "forward_data", step=step, micro=0, samples=samples,
                log_probs=log_probs[:, 2:], entropy=np.full((2, 2), 0.4, np.float32), response_mask=mask[:, 2:],
            )  # fmt: skip


def _rewritten_history(folder: Path) -> None:
    """The second turn's prompt is not what was trained on: a template dropped a token of the history."""
    from rldbg.trainer.rollout import turn_facts

    tokens = np.arange(10, 22)
    spans = ((3, 5), (7, 9), (10, 12))
    mask = np.zeros(len(tokens), np.int64)
    for start, end in spans:
        mask[start:end] = 1
    asked = [tokens[:start].copy() for start, _ in spans]
    asked[1][1] += 1
    turns = [turn_facts(prompt, tokens[start:end]) for prompt, (start, end) in zip(asked, spans, strict=True)]
    with rldbg.Recorder(folder) as recorder:
        recorder.record(
            "trajectory", step=0, samples=[("g", 0)], tokens=[tokens], loss_mask=[mask],
            reward=np.zeros(1, np.float32), extra_fields=[{"turns": turns}],
        )  # fmt: skip


def _stale_weights(folder: Path) -> None:
    """One tensor of the engine is that of the version before."""
    import torch

    from rldbg.weights import fingerprints, snapshot_fields

    names = ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "lm_head.weight")
    old, new = (
        {name: torch.arange(64.0).reshape(8, 8) + 100 * (number + version) for number, name in enumerate(names)}
        for version in (0, 10)
    )
    held = new | {names[1]: old[names[1]]}
    with rldbg.Recorder(folder) as recorder:
        recorder.record("weights", step=0, micro=0, **snapshot_fields("sent", fingerprints(old)))
        recorder.record("weights", step=1, micro=0, **snapshot_fields("sent", fingerprints(new)))
        recorder.record("weights", step=1, micro=1, **snapshot_fields("held", fingerprints(held), replica=1))
        recorder.record("loss", step=1, loss=0.0)


def _profiled(folder: Path) -> None:
    """Two ranks: one is slower in the update, and keeps 2 MiB per step."""
    phases = folder / "profiling" / "phases"
    phases.mkdir(parents=True)
    ms = 1_000_000
    for rank in range(2):
        lines = [{"worker": f"policy/{rank}", "role": "policy", "rank": rank, "host": "node1", "pid": rank + 1}]
        kept, not_of_malloc = 500 * 1024, 300 * 1024
        for step in range(1, 31):
            start = step * 1000 * ms
            update = 600 if rank else 300
            for name, begin, length in (("rollout", 0, 300), ("update", 300, update)):
                entry, kept = kept, kept + (2048 if rank and name == "update" else 0)
                in_use = [entry - not_of_malloc, kept - not_of_malloc, 10**6, 10**6]
                memory = [entry, kept + 9000, kept, None, None, None, *in_use]
                lines.append([name, start + begin * ms, length * ms, step, 1, memory])
        (phases / f"node1_{rank + 1}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
