"""One training step recorded under any layout: ranks, micro-batches, order and padding, always the same numbers."""

import numpy as np

import rldbg

SAMPLES, PROMPT, RESPONSE, WIDTH = 12, 4, 9, 6


def step_values(seed=0):
    """What is true of the step, however it is cut."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, RESPONSE + 1, SAMPLES)
    prompts = rng.integers(1, PROMPT + 1, SAMPLES)
    rows = [rng.integers(5, 90, prompt + length) for prompt, length in zip(prompts, lengths, strict=True)]
    return {
        "ids": [(f"g{number // 4}", number % 4) for number in range(SAMPLES)],
        "tokens": rows,
        "prompts": prompts,
        "lengths": lengths,
        "reward": rng.random(SAMPLES).astype(np.float32),
        "log_probs": [-rng.random(length).astype(np.float32) for length in lengths],
        "losses": rng.random(SAMPLES),
        "parameter": rng.standard_normal((8, WIDTH)).astype(np.float32),
    }


def write(root, values, *, ranks=1, micro=4, order=None, pad=0, shards=None, step=0):
    order = list(range(SAMPLES)) if order is None else order
    per_rank = [order[rank * len(order) // ranks : (rank + 1) * len(order) // ranks] for rank in range(ranks)]
    for rank, chosen in enumerate(per_rank):
        identity = rldbg.Identity(rank=rank, coordinates={"dp": rank})
        with rldbg.Recorder(root, identity=identity) as recorder:
            if rank == 0:
                _trajectories(recorder, values, order, step)
            for number, start in enumerate(range(0, len(chosen), micro)):
                _micro_batch(recorder, values, chosen[start : start + micro], number, pad, step)
            _parameter(recorder, values["parameter"], rank, shards, step)
    return rldbg.open(root)


def _trajectories(recorder, values, order, step):
    masks = [np.arange(len(values["tokens"][n])) >= values["prompts"][n] for n in order]
    recorder.record(
        "trajectory",
        step=step,
        samples=[values["ids"][n] for n in order],
        tokens=[values["tokens"][n] for n in order],
        loss_mask=[mask.astype(np.int64) for mask in masks],
        reward=values["reward"][order],
        extra_fields=[{"score": float(values["reward"][n]), "task_id": f"t{n}"} for n in order],
    )


def _micro_batch(recorder, values, chosen, number, pad, step):
    prompt = max(int(values["prompts"][n]) for n in chosen)
    response = max(int(values["lengths"][n]) for n in chosen)
    ids = np.full((len(chosen), prompt + response), pad, np.int64)
    mask = np.zeros((len(chosen), response), np.int64)
    log_probs = np.full((len(chosen), response), -0.5, np.float32)
    for row, n in enumerate(chosen):
        tokens, before, length = values["tokens"][n], int(values["prompts"][n]), int(values["lengths"][n])
        ids[row, prompt - before : prompt + length] = tokens
        mask[row, :length] = 1
        log_probs[row, :length] = values["log_probs"][n]
    where = {"step": step, "micro": number, "samples": [values["ids"][n] for n in chosen]}
    recorder.record("forward_data", **where, log_probs=log_probs, entropy=-log_probs, response_mask=mask, input_ids=ids)
    attention = np.concatenate([ids[:, :prompt] != pad, mask != 0], axis=1).astype(np.int64)
    positions = np.maximum(np.cumsum(attention, axis=1) - 1, 0)
    recorder.record("batch_inputs", **where, input_ids=ids, attention_mask=attention, position_ids=positions)
    loss = float(sum(values["losses"][n] for n in chosen))
    info = {"denominator": 12.0, "aggregation": "token_mean"}
    metrics = {"loss": loss, "tokens": float(mask.sum()), "ratio/max": float(-log_probs.min())}
    recorder.record("loss", **where, loss=loss, pg_loss=loss / 2, metrics=metrics, extra_info=info)


def _parameter(recorder, value, rank, shards, step):
    facts = {"dtype": "float32", "mean": 0.0, "std": 0.0}
    if shards is not None:
        whole, value = value, np.array_split(value, shards)[rank]
        facts |= {"placements": ["Shard(dim=0)"], "global_shape": np.asarray(whole.shape)}
    norm = float(np.linalg.norm(value))
    recorder.record("param", step=step, param_name="w", param=value, shape=list(value.shape), norm=norm, **facts)
