"""How a value of the user's program is shown: short, safe, and with statistics for tensors.

Used inside the user's process, by crash files, and sent as source text into workers that have no agent; it therefore
imports the standard library only, and nothing of this package. Looking at a value never changes it, never raises, and
never waits for work queued on a GPU stream.
"""

import contextlib
import json
import linecache
import math
import reprlib
import sys
from itertools import islice
from typing import Any

TEXT_LIMIT = 2_000
ANSWER_LIMIT = 60_000
_STATISTICS_LIMIT = 50_000_000
_MEMBERS = 200
_CELLS = 48
_SAMPLES = 64


class JsonText:
    """The result of an evaluation, whose repr is JSON: what every debugger in between passes on untouched."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body

    def __repr__(self) -> str:
        return json.dumps(self.body)


def answer(value: Any, limit: int = ANSWER_LIMIT) -> JsonText:
    """`value` as text, and as JSON data where it is plain and small enough to compare between ranks."""
    body = describe(value, limit)
    while len(repr(JsonText(body))) > ANSWER_LIMIT:
        # Quotes, backslashes and other alphabets take up to six times their room in JSON.
        limit //= 2
        body = describe(value, limit)
    if type(value) in (bool, int, float, str, type(None)) and len(body["text"]) < 1_000:
        body["data"] = value if not isinstance(value, float) or math.isfinite(value) else None
    return JsonText(body)


def answers(values: dict[str, Any]) -> JsonText:
    """Several named values at once: one message instead of one each."""
    limit = min(max(ANSWER_LIMIT // max(len(values), 1), 200), TEXT_LIMIT)
    while True:
        found = JsonText({"values": {name: describe(value, limit) for name, value in values.items()}})
        if len(repr(found)) <= ANSWER_LIMIT or limit <= 50:
            return found
        limit //= 2


def source(file: str, first: int, last: int) -> JsonText:
    """Lines of a file as this process sees it, as many as fit; `total` tells whether there are more."""
    lines = linecache.getlines(file)
    found: list[str] = []
    size = 0
    for line in lines[max(first - 1, 0) : last]:
        size += len(json.dumps(line)) + 2
        if size > ANSWER_LIMIT - 100:
            break
        found.append(line.rstrip("\n"))
    return JsonText({"lines": found, "total": len(lines)})


def place(function: Any) -> JsonText:
    """Where a function begins to do something: what a breakpoint at its name means."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    function = getattr(function, "func", function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        raise TypeError(f"{type_name(function)} is not a Python function")
    lines = [line for _, _, line in code.co_lines() if line]
    head = max(lines[0], code.co_firstlineno)
    return JsonText({"file": code.co_filename, "line": next((line for line in lines if line > head), head)})


def members(value: Any) -> JsonText:
    """What a value is made of: {"value", "members": [{"name", "access", "type", "text", ...}], "total"}.

    `access` appended to the value's expression gives the member. A tensor has a picture of its numbers instead.
    """
    pairs, total = _pairs(value)
    found = [{"name": name, "access": access, **describe(member, 200)} for name, access, member in pairs]
    body: dict[str, Any] = {"value": describe(value), "members": found, "total": total}
    if "tensor" in body["value"]:
        body["picture"] = _picture(value)
    while len(repr(JsonText(body))) > ANSWER_LIMIT:
        del found[len(found) // 2 :]
    return JsonText(body)


def recorded() -> JsonText:
    """The record with samples that this process made last: {"kind", "step", "micro", "samples"}; empty without one."""
    header = getattr(sys, "_rldbg_last_record", None)
    if header is None:
        return JsonText({})
    key, samples = header.key, [str(sample) for sample in header.samples[:_SAMPLES]]
    return JsonText({"kind": key.kind, "step": key.step, "micro": key.micro, "samples": samples})


def _pairs(value: Any) -> tuple[list[tuple[str, str, Any]], int]:
    if isinstance(value, dict):
        plain = [(key, member) for key, member in islice(value.items(), _MEMBERS) if type(key) in (str, int)]
        return [(str(key), f"[{key!r}]", member) for key, member in plain], len(value)
    if isinstance(value, list | tuple):
        return [(str(n), f"[{n}]", member) for n, member in enumerate(value[:_MEMBERS])], len(value)
    own = getattr(value, "__dict__", None)
    if not isinstance(own, dict) or tensor_summary(value) is not None or isinstance(value, type(sys) | type):
        return [], 0
    named = [(name, member) for name, member in list(own.items())[:_MEMBERS] if name.isidentifier()]
    return [(name, f".{name}", member) for name, member in named], len(own)


def _picture(value: Any) -> dict[str, Any] | None:
    """A histogram, and rows of the numbers as a table of at most so many cells, of those evenly spaced."""
    local = getattr(value, "_local_tensor", value)
    try:
        with _own_stream(local):
            return _table(local.detach() if hasattr(local, "detach") else local)
    except Exception:  # noqa: BLE001 - a tensor that cannot be read now is shown without a picture
        return None


def _table(flat: Any) -> dict[str, Any] | None:
    if not 0 < math.prod(flat.shape) <= _STATISTICS_LIMIT or getattr(flat, "is_meta", False):
        return None
    table = flat.reshape(-1, flat.shape[-1]) if len(flat.shape) > 1 else flat.reshape(1, -1)
    down, right = (-(-size // _CELLS) for size in table.shape)
    cells = [[_cell(number) for number in row] for row in table[::down, ::right].tolist()]
    numbers = [number for row in cells for number in row if number is not None]
    return {"rows": cells, "each": [down, right], "histogram": _histogram(numbers)}


def _cell(number: Any) -> float | None:
    return float(number) if math.isfinite(number) else None


def _histogram(numbers: list[float], bins: int = 32) -> dict[str, list[float]] | None:
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    width = (high - low) / bins or 1.0
    counts = [0] * bins
    for number in numbers:
        counts[min(int((number - low) / width), bins - 1)] += 1
    return {"edges": [low + place * width for place in range(bins + 1)], "counts": [float(each) for each in counts]}


def describe(value: Any, limit: int = TEXT_LIMIT) -> dict[str, Any]:
    """Type, text and, for tensors and arrays, a summary."""
    found: dict[str, Any] = {"type": type_name(value)}
    # What the user's __repr__, __len__ or dtype does is the user's code: it may raise anything.
    try:
        summary = tensor_summary(value)
        if summary is not None:
            found["tensor"] = summary
            found["text"] = tensor_text(summary, value)
        else:
            found["text"] = cut(_repr(value, limit), limit)
    except Exception as error:  # noqa: BLE001 - a failing __repr__ must not hide the rest
        found["text"] = f"<{found['type']}: its repr raised {type(error).__name__}>"
    return found


def type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} ... {len(text) - limit} characters cut ... {text[-limit // 2 :]}"


class _Short(reprlib.Repr):
    """Python's bounded repr with larger limits, and summaries for tensors inside containers."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.maxlevel = 5
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxdeque = self.maxarray = max(20, limit // 40)
        self.maxstring = self.maxother = self.maxlong = limit

    def repr1(self, x: Any, level: int) -> str:
        summary = tensor_summary(x)
        if summary is not None:
            return tensor_text(summary, x)
        return super().repr1(x, level)

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        # In the order of the user's program; the standard library would sort.
        if level <= 0:
            return "{...}" if x else "{}"
        pairs = [f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in islice(x.items(), self.maxdict)]
        return "{" + ", ".join(pairs + ["..."] * (len(x) > self.maxdict)) + "}"

    def repr_instance(self, x: Any, level: int) -> str:
        text = repr(x)
        return cut(text, self.maxother)


def _repr(value: Any, limit: int) -> str:
    if isinstance(value, str) and len(value) > limit:
        return repr(cut(value, limit))
    return _Short(limit).repr(value)


def tensor_summary(value: Any) -> dict[str, Any] | None:
    """Shape, dtype, device, min, max, mean, NaN and Inf counts of a tensor or array; None for anything else."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return _torch_summary(torch, value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        summary = {"shape": list(value.shape), "dtype": str(value.dtype), "device": ""}
        if value.dtype.kind in "biuf" and 0 < value.size <= _STATISTICS_LIMIT:
            summary.update(_numpy_numbers(numpy, value))
        return summary
    return None


def _numpy_numbers(numpy: Any, value: Any) -> dict[str, Any]:
    if value.dtype.kind != "f":
        return {"min": value.min().item(), "max": value.max().item(), "mean": float(value.mean())}
    finite = value[numpy.isfinite(value)]
    numbers: dict[str, Any] = {"nan": int(numpy.isnan(value).sum()), "inf": int(numpy.isinf(value).sum())}
    if finite.size:
        numbers |= {
            "min": float(finite.min()),
            "max": float(finite.max()),
            "mean": float(finite.mean(dtype=numpy.float64)),
        }
    return numbers


def _torch_summary(torch: Any, value: Any) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "shape": list(value.shape),
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": str(value.device),
    }
    if value.requires_grad:
        summary["requires_grad"] = True
    # A DTensor's numbers need a collective, a meta tensor has none: both are shown without.
    local = getattr(value, "_local_tensor", None)
    if local is not None:
        summary["local_shape"] = list(local.shape)
    elif value.device.type != "meta" and not value.is_sparse and 0 < value.numel() <= _STATISTICS_LIMIT:
        summary.update(_torch_numbers(torch, value.detach()))
    return summary


def _torch_numbers(torch: Any, value: Any) -> dict[str, Any]:
    if value.dtype.is_complex:
        return {}
    with _own_stream(value):
        return _torch_statistics(torch, value)


def _own_stream(value: Any) -> Any:
    """A separate CUDA stream does not wait for a kernel or collective that hangs on the user's stream."""
    if not getattr(value, "is_cuda", False):
        return contextlib.nullcontext()
    torch = sys.modules["torch"]
    return torch.cuda.stream(torch.cuda.Stream(value.device))


def _torch_statistics(torch: Any, value: Any) -> dict[str, Any]:
    with torch.no_grad():
        if not value.dtype.is_floating_point:
            return {"min": value.min().item(), "max": value.max().item(), "mean": value.double().mean().item()}
        wide = value.float() if value.dtype != torch.float64 else value
        finite = wide[torch.isfinite(wide)]
        numbers: dict[str, Any] = {"nan": int(torch.isnan(wide).sum()), "inf": int(torch.isinf(wide).sum())}
        if finite.numel():
            numbers |= {"min": finite.min().item(), "max": finite.max().item(), "mean": finite.double().mean().item()}
        return numbers


def tensor_text(summary: dict[str, Any], value: Any = None) -> str:
    """`tensor[2, 3] float32 cpu min=0 max=1 mean=0.5 NaN=2`; small tensors also show their values."""
    kind = "array" if summary.get("device") == "" else "tensor"
    parts = [f"{kind}{summary['shape']}", summary["dtype"], summary["device"]]
    count = math.prod(summary["shape"])
    has_values = value is not None and "min" in summary and count <= 16
    if not (has_values and count == 1):
        parts += [f"{name}={_number(summary[name])}" for name in ("min", "max", "mean") if name in summary]
    parts += [f"{label}={summary[name]}" for name, label in (("nan", "NaN"), ("inf", "Inf")) if summary.get(name)]
    if summary.get("requires_grad"):
        parts.append("requires_grad")
    if has_values:
        parts.append(str(value.tolist()))
    return " ".join(part for part in parts if part)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
