"""Dumps as the other frameworks write them, small and seeded, made with torch.save, json and pyarrow."""

import io
import json
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import torch


def nexrl(root: Path, *, steps=(0,), ranks=2, micros=2, rows=2, dtype=torch.float32, form="pt", ids=True) -> None:
    """All nine kinds of NexRL, with `rows` samples a micro-batch."""
    generator = torch.Generator().manual_seed(0)
    for step in steps:
        name = f"step_{step:06d}"
        trajectories = [_trajectory(row, ids) for row in range(ranks * micros * rows)]
        batch = {"step": step, "num_trajectories": len(trajectories), "trajectories": trajectories}
        _nexrl_file(root, "trajectory", name, batch, form)
        _nexrl_file(root, "prepared_trajectories", name, batch | {"advantages": [0.5] * len(trajectories)}, form)
        logprobs = -torch.rand(len(trajectories), 6, generator=generator).to(dtype)
        old = {"step": step, "old_log_probs": logprobs, "shape": list(logprobs.shape)}
        _nexrl_file(root, "old_log_probs", name, old, form)
        _nexrl_file(root, "datums", name, {"step": step, "num_datums": 1, "datums": [_datum()]}, form)
        metrics = {"step": step, "metrics": {"loss": 0.5, "kl": float("nan")}}
        _nexrl_file(root, "training_metrics", name, metrics, form)
        for rank in range(ranks):
            weight = torch.ones(2, 3, dtype=torch.bfloat16)
            parameter = {"step": step, "rank": rank, "param_name": "w", "param": weight, "shape": [2, 3]}
            parameter |= {"dtype": "torch.bfloat16", "norm": 2.4, "mean": 1.0, "std": 0.0}
            _nexrl_file(root, "param", f"{name}_rank{rank}", parameter, form)
            for micro in range(micros):
                place = {"step": step, "rank": rank, "micro_idx": micro}
                values = -torch.rand(rows, 6, generator=generator).to(dtype)
                forward = place | {"log_probs": values, "entropy": -values, "log_probs_shape": [rows, 6]}
                forward |= {"response_mask": torch.ones(rows, 6, dtype=torch.int64), "entropy_shape": [rows, 6]}
                _nexrl_file(root, "forward_data", f"{name}_rank{rank}_micro{micro}", forward, form)
                loss = place | {"loss": 0.1, "pg_loss": 0.1, "entropy_loss": 0.0, "extra_info": {"epoch": 0}}
                _nexrl_file(root, "loss", f"{name}_rank{rank}_micro{micro}", loss, form)


def _trajectory(row: int, ids: bool) -> dict:
    result = {"tokens": [1, 2, 3, 10 + row], "loss_mask": [0, 0, 1, 1], "reward": float(row % 2), "is_val": False}
    if ids:
        result["extra_fields"] = {"group_id": f"g{row // 2}", "run_id": row % 2, "score": 1.0}
    return result


def _datum() -> dict:
    inputs = {"target_tokens": [2, 3, 10], "logprobs": [0.0, -0.2, -0.3], "advantages": [0.0, 1.0, 1.0]}
    return {"input_tokens": [1, 2, 3], "loss_fn_inputs": inputs | {"loss_mask": [0.0, 1.0, 1.0]}}


def _nexrl_file(root: Path, kind: str, name: str, data: dict, form: str) -> None:
    folder = root / kind
    folder.mkdir(parents=True, exist_ok=True)
    if form == "pt":
        torch.save(data, folder / f"{name}.pt")
    else:
        (folder / f"{name}.jsonl").write_text(json.dumps(data, default=lambda tensor: tensor.tolist()) + "\n")


def slime_sample(index: int, **changes) -> dict:
    """One Sample.to_dict() of slime: two prompt tokens, three response tokens."""
    sample = {
        "group_index": index // 2,
        "index": index,
        "prompt": "2+2=?",
        "tokens": [100, 101, 200 + index, 201, 202],
        "response": " 4",
        "response_length": 3,
        "label": "4",
        "reward": float(index % 2),
        "loss_mask": [1, 1, 1],
        "weight_versions": ["7"],
        "rollout_log_probs": [-0.1, -0.2, -0.3],
        "status": "completed",
        "metadata": {},
    }
    return sample | changes


def slime_rollout(root: Path, step: int, samples: list[dict], evaluation: bool = False) -> Path:
    path = root / "rollout_data" / f"{'eval_' if evaluation else ''}{step}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"rollout_id": step, "samples": samples}, path)
    return path


def slime_train(root: Path, step: int, count: int, dtype=torch.float32, **columns) -> Path:
    """A version 2 train file, its samples spread over two data-parallel ranks."""
    samples = []
    for index in range(count):
        response = -torch.arange(1, 4, dtype=torch.float32).to(dtype) / 10
        sample = {"data_parallel_rank": index % 2, "sample_index": index, "rollout_position": index}
        sample |= {"tokens": torch.tensor([100, 101, 200 + index, 201, 202]), "total_lengths": 5}
        sample |= {"response_lengths": 3, "rewards": 0.5, "loss_masks": torch.ones(3, dtype=torch.int32)}
        sample |= {"rollout_log_probs": response, "log_probs": response - 1, "advantages": torch.ones(3)}
        samples.append(sample | {name: torch.full((3,), value) for name, value in columns.items()})
    path = root / "train_data" / f"{step}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    shards = [{"rank": rank, "data_parallel_rank": rank, "micro_batch_indices": [[0]]} for rank in range(2)]
    torch.save({"format_version": 2, "rollout_id": step, "rank": 0, "samples": samples, "dp_shards": shards}, path)
    return path


def miles_train(root: Path, step: int, rank: int, indices: list[int]) -> Path:
    """One rank's columns, as the fork writes them."""
    path = root / "train_data" / f"{step}_{rank}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    count = len(indices)
    columns = {
        "tokens": [torch.tensor([100, 101, 200 + index, 201, 202]) for index in indices],
        "loss_masks": [torch.ones(3, dtype=torch.int32)] * count,
        "total_lengths": [5] * count,
        "response_lengths": [3] * count,
        "rewards": [0.5] * count,
        "log_probs": [torch.full((3,), -1.0)] * count,
        "sample_indices": indices,
        "global_batch_sizes": [8],
    }
    torch.save(
        {"rollout_id": step, "rank": rank, "rollout_data": columns, "cp_rank": 0, "cp_size": 1, "qkv_format": "thd"},
        path,
    )
    return path


def miles_slices(root: Path, step: int, size: int, responses: list[torch.Tensor], prompt: int, padded: int = 0) -> None:
    """One file a context-parallel rank, each with its two chunks of every sample's log probs."""
    for rank in range(size):
        mine = []
        for whole in responses:
            total = prompt + len(whole)
            chunk = -(-(padded or total) // (2 * size))
            positions = torch.arange(prompt - 1, total - 1)  # where the values were computed
            chunks = [positions // chunk == number for number in (rank, 2 * size - 1 - rank)]
            mine.append(torch.cat([whole[held] for held in chunks]))
        lengths = [len(whole) for whole in responses]
        columns = {
            "tokens": [torch.arange(prompt + length) for length in lengths],
            "loss_masks": [torch.ones(length, dtype=torch.int32) for length in lengths],
            "total_lengths": [prompt + length for length in lengths],
            "response_lengths": lengths,
            "rewards": [0.5] * len(lengths),
            "log_probs": mine,
            "advantages": [values * 2 for values in mine],
            "sample_indices": list(range(len(lengths))),
        }
        if padded:
            columns["max_seq_lens"] = [padded] * len(lengths)
        content = {"rollout_id": step, "rank": rank, "rollout_data": columns, "cp_rank": rank, "cp_size": size}
        path = root / "train_data" / f"{step}_{rank}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content | {"qkv_format": "bshd" if padded else "thd"}, path)


def sglang(root: Path, *, steps=1, ranks=2, layers=2, dtype=torch.float32) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for step in range(steps):
        for rank in range(ranks):
            for layer in range(layers):
                tags = {"step": step, "rank": rank, "dump_index": layer + 1, "name": "hidden", "layer_id": layer}
                info = {"tp_rank": rank, "tp_size": ranks, "pp_rank": 0}
                value = torch.full((2, 3), float(layer)).to(dtype)
                name = "___".join(f"{key}={item}" for key, item in tags.items())
                torch.save({"value": value, "meta": tags | {"sglang_parallel_info": info}}, root / f"{name}.pt")


def prime_episode(group: str, score: float, *, trainable=True, advantages=True) -> dict:
    """Two turns, and a second answer to the first prompt: two paths, as prime-rl 559b447 writes them."""
    credit = {"advantages": [0.5, 0.5]} if advantages else {}
    nodes = [
        {"message": {"role": "user"}, "token_ids": [3, 4], "mask": [False, False]},
        {"parent": 0, "token_ids": [5, 6, 7], "mask": [False, True, True], "logprobs": [-0.1, -0.2]} | credit,
        {"parent": 1, "message": {"role": "tool"}, "token_ids": [8], "mask": [False]},
        {"parent": 0, "token_ids": [5, 9], "mask": [False, True], "logprobs": [-0.3]},
    ]
    trace = {"id": "t", "agent": {"trainable": trainable}, "nodes": nodes, "ok": True}
    trace["rewards"] = {"right": {"score": score, "weight": 2.0}, "style": None}
    return {"id": "e", "env": {"id": "sums"}, "group": {"id": group}, "traces": [trace]}


def debug_mode(root: Path) -> None:
    """As DebugMode of torch 2.13 writes one linear layer, with hashes."""
    lines = ["    [nn.Mod] Linear", "      aten::t(t: f32[3, 4])  ->  t: f32[4, 3]  # {'hash': 3.5}"]
    lines += ["      aten::addmm(t: f32[3], t: f32[2, 4], t: f32[4, 3])  ->  t: f32[2, 3]  # {'hash': 2.25}"]
    root.mkdir()
    (root / "debug_mode_step0_rank0.txt").write_text("\n".join(lines))


def msprobe(root: Path, *, steps=1, ranks=1, tensors=True) -> None:
    """As level `mix` of msprobe 26.2.0 writes one linear layer."""
    for step in range(steps):
        for rank in range(ranks):
            folder = root / f"step{step}" / f"rank{rank}"
            (folder / "dump_tensor_data").mkdir(parents=True)

            def tensor(name, value, folder=folder):
                about = {"type": "torch.Tensor", "dtype": str(value.dtype), "shape": list(value.shape)}
                about |= {"Max": float(value.max()), "Min": float(value.min()), "Mean": float(value.mean())}
                about["Norm"] = float(value.norm())
                if tensors:
                    torch.save(value, folder / "dump_tensor_data" / f"{name}.pt")
                    about["data_name"] = f"{name}.pt"
                return about

            call, weight = "Module.layers.0.fc.Linear", torch.full((2, 3), step + 1.0)
            data = {
                f"{call}.forward.0": {
                    "input_args": [tensor(f"{call}.forward.0.input.0", torch.ones(1, 3)), {"type": "int", "value": 3}],
                    "input_kwargs": {"mask": tensor(f"{call}.forward.0.input.mask", torch.ones(1, 3))},
                    "output": [tensor(f"{call}.forward.0.output.0", torch.full((1, 2), rank + 3.0))],
                    "parameters": {"weight": tensor(f"{call}.forward.0.parameters.weight", weight)},
                },
                f"{call}.backward.0": {
                    "input": [tensor(f"{call}.backward.0.input.0", torch.ones(1, 2))],
                    "output": [None],
                },
                f"{call}.parameters_grad.0": {"weight": [tensor(f"{call}.parameters_grad.0.weight", weight)]},
            }
            whole = {"task": "tensor", "level": "mix", "framework": "pytorch", "data": data}
            (folder / "dump.json").write_text(json.dumps(whole))
            (folder / "stack.json").write_text("{}")
            (folder / "construct.json").write_text("{}")


def verl_batch(root: Path, step: int, *, mask: list[list[int]] | None = None, method: str = "tensor") -> Path:
    """<step>/gen_batch.dp: a pickled DataProto whose batch is left-padded prompts and right-padded responses."""
    tensors = {
        "input_ids": torch.tensor([[0, 5, 6, 7, 8, 0], [3, 4, 5, 9, 9, 9]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]),
        "prompts": torch.tensor([[0, 5, 6], [3, 4, 5]]),
        "responses": torch.tensor([[7, 8, 0], [9, 9, 9]]),
        "response_mask": torch.tensor(mask or [[1, 1, 0], [1, 1, 1]]),
        "rollout_log_probs": torch.tensor([[-0.1, -0.2, 0.0], [-0.3, -0.4, -0.5]]),
        "rm_scores": torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.25]]),
    }
    objects = {"uid": np.array(["u0", "u0"], dtype=object), "data_source": np.array(["gsm8k"] * 2, dtype=object)}
    path = root / "exp_proj" / "GBS1_N2_in3_out3" / str(step) / "gen_batch.dp"
    path.parent.mkdir(parents=True)
    path.with_name("meta.json").write_text(json.dumps({"global_steps": step}))
    if method == "numpy":
        items = {
            name: (
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
                tensor.numpy().view(np.uint8).reshape(-1),
            )
            for name, tensor in tensors.items()
        }
        batch: object = ((2,), None, items)
    else:
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        batch = buffer.getvalue()
    path.write_bytes(_pickled_as("verl.protocol", "DataProto", (batch, objects, {"temperature": 1.0})))
    return path


def _pickled_as(module_name: str, class_name: str, state: object) -> bytes:
    """A pickle of an instance of a class that the reader cannot import."""
    module = types.ModuleType(module_name)
    instance_type = type(class_name, (), {"__getstate__": lambda self: state, "__module__": module_name})
    setattr(module, class_name, instance_type)
    parent = module_name.partition(".")[0]
    added = {module_name: module, parent: types.ModuleType(parent)}
    before = {name: sys.modules.get(name) for name in added}
    sys.modules.update(added)
    try:
        return pickle.dumps(instance_type())
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old


def lines(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prime_row(step: int, rank: int, micro: int, place: int, **changes) -> dict:
    row = {"schema_version": 1, "step": step, "rank": rank, "micro_step": micro, "micro_sequence_idx": place}
    row |= {"export_sequence_idx": place, "env_name": "gsm8k", "token_ids": [1, 2, 3, 4]}
    row |= {"position_ids": [0, 1, 2, 3], "loss_mask": [False, False, True, True], "advantages": [1.0] * 4}
    row |= {"inference_logprobs": [0.0, 0.0, -0.1, -0.2], "trainer_logprobs": [0.0, 0.0, -0.1, None]}
    row |= {"entropy": [0.5] * 4, "importance_ratio": [1.0, 1.0, 1.0, 0.5], "is_masked": [False] * 3 + [True]}
    return row | {"mismatch_kl": [None] * 4, "rl_weights": [None] * 4} | changes


def nemo_row(index: int, **changes) -> dict:
    row = {"content": [["2+2?", "4"]], "rewards": [1.0], "input_lengths": [4], "token_ids": [[1, 2, 3 + index, 4, 0]]}
    row |= {"token_loss_mask": [[0, 0, 1, 1, 0]], "sample_loss_mask": [1.0], "advantages": [[0.5] * 5]}
    row |= {"generation_logprobs": [[0, 0, -0.1, -0.2, 0]], "prev_logprobs": [[0, 0, -0.11, -0.2, 0]], "idx": index}
    return row | changes


def prime_batch(sequences: list[int], **last: object) -> list:
    """One micro-batch as prime-rl's orchestrator packs it: fields by place, the optional ones at the end."""
    tokens = list(range(100, 100 + sum(sequences)))
    mask = [place > 0 for length in sequences for place in range(length)]
    logprobs = [-(place + 1) / 8 for place in range(len(tokens))]
    fields = [tokens, mask, [0.5] * len(tokens), logprobs, tokens, sequences, [1.0] * len(tokens)]
    return [*fields, ["math"] * len(sequences), sequences, *last.values()]
