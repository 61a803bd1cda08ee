"""A reader written from docs/recording.md alone, with torch and nothing of rldbg: the document must suffice for it."""

import json
import math
import struct
from base64 import b64decode
from pathlib import Path

import torch

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "C64": "complex64"}
DTYPES |= {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
DTYPES |= {f"{sign}{bits}": f"{word}{bits}" for sign, word in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)}
LISTED = {"trajectory": "trajectories", "prepared_trajectories": "trajectories", "datums": "datums"}
BESIDE = ("advantages", "extra_info")
PER_STEP = ("old_log_probs", "training_metrics")
SHAPES = {"old_log_probs": ("shape",), "forward_data": ("log_probs_shape", "entropy_shape")}
ABSENT = object()


def read(root: Path) -> dict[tuple, dict]:
    """Key to {samples, fields} of every record."""
    readers = {".safetensors": _safetensors, ".pt": _pt, ".jsonl": _jsonl}
    return {record["key"]: record for file in sorted(root.glob("*/step_*")) for record in readers[file.suffix](file)}


def _bytes(raw: bytes, dtype: str) -> torch.Tensor:
    kind = getattr(torch, dtype)
    return torch.frombuffer(bytearray(raw), dtype=kind) if raw else torch.empty(0, dtype=kind)


def _tagged(value):
    if isinstance(value, list):
        return [_tagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag, content = next(iter(value.items())) if len(value) == 1 else ("", None)
    decoders = {
        "$float": float,
        "$int": int,
        "$bytes": b64decode,
        "$complex": lambda pair: complex(*map(_tagged, pair)),
        "$array": lambda about: _bytes(b64decode(about["data"]), about["dtype"]).reshape(about["shape"]),
        "$ragged": lambda pair: _cut(*map(_tagged, pair)),
        "$map": lambda pairs: {_tagged(key): _tagged(item) for key, item in pairs},
        "$repr": str,
        "$absent": lambda _: ABSENT,
    }
    if tag.startswith("$"):
        return decoders[tag](content)
    return {key: _tagged(item) for key, item in value.items()}


def _cut(values: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
    return list(values.split(lengths.tolist()))


def _safetensors(file: Path) -> list[dict]:
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    about = json.loads(header.pop("__metadata__")["rldbg"])
    body = data[8 + size :]
    tensors = {
        name: _bytes(body[slice(*entry["data_offsets"])], DTYPES[entry["dtype"]]) for name, entry in header.items()
    }
    columns = {name: _column(field, name, tensors) for name, field in about["fields"].items()}
    rows = iter(about["samples"])
    place = ("kind", "step", "rank")
    return [
        {
            "key": (*(about[name] for name in place), micro, about["epoch"], about["mini_batch"]),
            "samples": [tuple(next(rows)) for _ in range(about["rows"][number])] if about["samples"] else [],
            "fields": {name: parts[number] for name, parts in columns.items() if parts[number] is not ABSENT},
        }
        for number, micro in enumerate(about["micros"])
    ]


def _column(field: dict, name: str, tensors: dict[str, torch.Tensor]) -> list:
    """One value a micro-batch."""
    if field["layout"] == "data":
        return [_tagged(value) for value in field["values"]]
    flat = tensors[name].view(torch.complex128) if field.get("dtype") == "complex128" else tensors[name]
    if field["layout"] == "dense":
        sizes = [0 if shape is None else math.prod(shape) for shape in field["shapes"]]
        parts = flat.split(sizes)
        return [
            ABSENT if shape is None else part.reshape(shape) for shape, part in zip(field["shapes"], parts, strict=True)
        ]
    rows = iter(_cut(flat, tensors[f"{name}.lengths"]))
    return [ABSENT if count is None else [next(rows) for _ in range(count)] for count in field["rows"]]


def _pt(file: Path) -> list[dict]:
    return [_record(torch.load(file, weights_only=True))]


def _jsonl(file: Path) -> list[dict]:
    data = json.loads(file.read_text())
    for place, positions in data["_rldbg"].get("nan", {}).items():
        holder, last = _place(data, place)
        leaves = _leaves(holder[last]) if isinstance(holder[last], list) else [(holder, last)]
        for position in positions:
            container, index = leaves[position]
            container[index] = math.nan
    return [_record(data)]


def _place(root, place: str):
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in place.split("/")]
    for part in parents:
        root = root[int(part) if isinstance(root, list) else part]
    return root, int(last) if isinstance(root, list) else last


def _leaves(values: list) -> list[tuple[list, int]]:
    pairs = [[(values, index)] if not isinstance(item, list) else _leaves(item) for index, item in enumerate(values)]
    return [pair for part in pairs for pair in part]


def _record(data: dict) -> dict:
    own = data["_rldbg"]
    kind = own["key"][0]
    if kind in LISTED:
        rows = [row | row.get("loss_fn_inputs", {}) for row in data[LISTED[kind]]]
        fields = {name: [row[name] for row in rows] for name in own["columns"]}
        fields |= {name: data[name] for name in BESIDE if name in data}
        if own.get("ids") == "added":
            for row in fields["extra_fields"]:
                del row["group_id"], row["run_id"]
    else:
        place = {"step"} if kind in PER_STEP else {"step", "rank"} | (set() if "param_name" in data else {"micro_idx"})
        fields = {name: data[name] for name in data.keys() - place - {"_rldbg", *SHAPES.get(kind, ())}}
    fields |= own["fields"]
    for name, shape in own["shapes"].items():
        fields[name] = _tensor(fields[name], own["dtypes"][name], shape)
    for name, lengths in own["lengths"].items():
        rows = zip(fields[name], lengths, strict=True)
        fields[name] = [_tensor(row[:length], own["dtypes"][name], [length]) for row, length in rows]
    for place, about in own.get("typed", {}).items():
        holder, last = _place(fields, place)
        holder[last] = _typed(holder[last], about)
    return {"key": tuple(own["key"]), "samples": [tuple(sample) for sample in own["samples"]], "fields": fields}


def _typed(value, about: dict):
    if "value" in about:
        return _tagged(about["value"])
    if "shape" in about:
        return _tensor(value, about["dtype"], about["shape"])
    return [_tensor(row, about["dtype"], [len(row)]) for row in value]


def _tensor(value, dtype: str, shape: list[int]) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.reshape(shape)
    kind = getattr(torch, dtype)
    if kind.is_complex:
        return torch.view_as_complex(torch.tensor(value, dtype=torch.float64).reshape(-1, 2)).to(kind).reshape(shape)
    exact = torch.float64 if kind.is_floating_point else torch.int64
    return torch.tensor(value, dtype=exact).to(kind).reshape(shape)
