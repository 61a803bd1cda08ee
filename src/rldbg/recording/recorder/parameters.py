"""Which parameters of a model are recorded, and the facts recorded with each.

Statistics and hashes are computed by the writer threads from the copy, not on the training thread or the device.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from rldbg.recording.kinds import Scope
from rldbg.recording.recorder.preparation import Prepared
from rldbg.recording.recorder.record_header import RecordHeader
from rldbg.recording.recorder.settings import ParameterMode, RecorderSettings
from rldbg.recording.recorder.tensors import dtype_name, is_plain, name_of, plain_tensor, torch_module
from rldbg.recording.recorder.warn_once import WarnOnce
from rldbg.recording.records import EncodedArray, RecordKey

# Bytes of a model that are handed over as one batch; the buffer must hold it in one piece.
_TOGETHER_BYTES = 8 * 2**20
# Prefixes that wrappers add to parameter names.
_WRAPPERS = re.compile(r"_fsdp_wrapped_module\.|_orig_mod\.|_checkpoint_wrapped_module\.|^module\.")
# The placement of a parameter that FSDP1 has cut: a rank's part says neither where it begins nor where it ends.
FLAT_SHARD = "FlatShard()"
_CHUNK = 2**17
_FEW = 2**13
# The share of the sum of squares that must remain after the subtraction for its digits to be right.
_CANCELLED = 1e-6
_FSDP1 = "FullyShardedDataParallel"


class _Selected(NamedTuple):
    """A parameter by the name its user knows, and its value or gradient."""

    name: str
    tensor: Any


class _Described(NamedTuple):
    """This rank's values of a parameter, and what its record says beside them: made into facts by a writer thread."""

    name: str
    local: Any
    cut: "_Cut | None"
    """How the parameter is spread over ranks, if it is."""

    def facts(self) -> "_Facts":
        return _Facts(self.name, self.local.shape, self.local.dtype, self.cut)


class _Cut(NamedTuple):
    """A shard says which part it is, and of what: ranks with equal coordinates on the axes that cut are replicas."""

    placements: Sequence[Any]
    mesh: Any = None
    global_shape: Sequence[int] = ()

    def to_dict(self) -> dict[str, Any]:
        placements = [item if isinstance(item, str) else repr(item) for item in self.placements]
        if self.mesh is None:
            return {"placements": placements}
        coordinate = self.mesh.get_coordinate()
        return {
            "global_shape": list(self.global_shape),
            "placements": placements,
            "mesh_shape": list(self.mesh.shape),
            "mesh_coordinate": None if coordinate is None else list(coordinate),
        }


_FLAT = _Cut((FLAT_SHARD,))


class _Facts(NamedTuple):
    name: str
    shape: Sequence[int]
    dtype: Any
    cut: _Cut | None

    def to_dict(self) -> dict[str, Any]:
        of_cut = {} if self.cut is None else self.cut.to_dict()
        return {"param_name": self.name, **of_cut, "shape": list(self.shape), "dtype": f"torch.{name_of(self.dtype)}"}


def prepare(
    key: RecordKey, model: Any, settings: RecorderSettings, warn_once: WarnOnce, optimizer: Any = None
) -> list[Prepared]:
    """Every parameter that matches, ready to be handed over; says what is in the way when there is none.

    The field that holds the values has the name of the kind: `param`, `gradient` or `optimizer_state`.
    """
    modules, named = modules_and_parameters(model)
    wrappers = [module for module in modules if type(module).__name__ == _FSDP1]
    if any(getattr(module, "_use_orig_params", True) is False for module in wrappers):
        hint = "set use_orig_params=True to record them by name"
        warn_once("use_orig_params", f"FSDP has flattened the parameters: {hint}")
        return []
    if optimizer is not None:
        named = _states(named, optimizer)
    chosen = _select(named, settings.parameter_patterns, gradient=key.kind == "gradient")
    if not chosen:
        known = ", ".join(_plain_name(name) for name, _ in itertools.islice(model.named_parameters(), 5))
        patterns = ", ".join(settings.parameter_patterns)
        what = "parameter" if key.kind == "param" else "parameter with a gradient"
        warn_once(f"no {key.kind}", f"no {what} matches {patterns}; the model has {known} ...")
    if settings.gather_shards:
        chosen = _gather(chosen)
    is_flat = any(getattr(module.sharding_strategy, "name", "") != "NO_SHARD" for module in wrappers)
    described = [_describe(item, is_flat) for item in chosen]
    together = _TOGETHER_BYTES if settings.format == "safetensors" else 0
    prepared, first = [], key.micro
    for family in _families(described, together):
        header = RecordHeader(
            key=key._replace(micro=first),
            scope=Scope.RANK,
            rows=0,
            alone=settings.format != "safetensors",
            last=first + len(family) == key.micro + len(described),
            records=len(family),
            unfold=partial(_unfold, key.kind, settings.parameter_mode, [item.facts() for item in family]),
        )
        prepared.append(Prepared(header, {str(number): item.local for number, item in enumerate(family)}))
        first += len(family)
    return prepared


def _families(described: list[_Described], most_bytes: int) -> Iterator[list[_Described]]:
    """Neighbours of one dtype that together have few bytes; what may fail to be copied comes alone."""
    family: list[_Described] = []
    size = 0
    for item in described:
        nbytes = item.local.nbytes if item.local.is_cpu or item.local.is_cuda else most_bytes
        if family and (size + nbytes > most_bytes or item.local.dtype != family[0].local.dtype):
            yield family
            family, size = [], 0
        family.append(item)
        size += nbytes
    if family:
        yield family


def _select(named: Iterable[tuple[str, Any]], patterns: Sequence[str], *, gradient: bool) -> list[_Selected]:
    """The matching parameters, with a gradient if gradients are requested. Grouped by dtype, because a field of a file
    has one dtype."""
    name_if_chosen = _chooser(tuple(patterns))
    chosen = []
    for raw_name, parameter in named:
        name = name_if_chosen(raw_name)
        tensor = _gradient(parameter) if gradient else parameter
        if tensor is not None and name is not None:
            chosen.append(_Selected(name, tensor))
    if len({item.tensor.dtype for item in chosen}) > 1:
        chosen.sort(key=lambda item: dtype_name(item.tensor))
    return chosen


@lru_cache(maxsize=16)  # the names of a model are the same in each step
def _chooser(patterns: tuple[str, ...]) -> Callable[[str], str | None]:
    """The plain name of a parameter that matches; None for another."""
    searches = [re.compile(pattern).search for pattern in patterns]

    @lru_cache(maxsize=2**16)
    def name_if_chosen(raw_name: str) -> str | None:
        name = _plain_name(raw_name)
        return name if any(search(name) or search(raw_name) for search in searches) else None

    return name_if_chosen


def _gradient(parameter: Any) -> Any:
    """A parameter's gradient; Megatron accumulates it in `main_grad`."""
    return parameter.grad if parameter.grad is not None else getattr(parameter, "main_grad", None)


def _plain_name(name: str) -> str:
    return _WRAPPERS.sub("", name)


def _states(named: Iterable[tuple[str, Any]], optimizer: Any) -> Iterator[tuple[str, Any]]:
    """What an optimizer keeps of each parameter: tensors, and counts that some keep as numbers."""
    torch = torch_module()
    for name, parameter in named:
        for key, value in optimizer.state.get(parameter, {}).items():
            if torch is not None and isinstance(value, int | float):
                yield f"{name}:{key}", torch.tensor(float(value))
            elif hasattr(value, "dtype"):
                yield f"{name}:{key}", value


def _is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor") and hasattr(tensor, "device_mesh")


def _gather(chosen: list[_Selected]) -> list[_Selected]:
    """Whole tensors instead of shards, by a collective; the first process of a tensor's mesh records it."""
    whole = []
    for name, tensor in chosen:
        if not _is_sharded(tensor):
            whole.append(_Selected(name, tensor))
            continue
        full, place = tensor.full_tensor(), tensor.device_mesh.get_coordinate()
        if place is not None and not any(place):
            whole.append(_Selected(name, full))
    return whole


def _describe(item: _Selected, is_flat: bool) -> _Described:
    tensor = item.tensor
    if is_plain(tensor):
        return _Described(item.name, tensor, _FLAT if is_flat else None)
    cut = _FLAT if is_flat else None
    if _is_sharded(tensor):
        cut = _Cut(tensor.placements, tensor.device_mesh, tensor.shape)
    return _Described(item.name, plain_tensor(tensor), cut)


def _unfold(field: str, mode: ParameterMode, facts: Sequence[_Facts], fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The writer thread's part: one record per parameter, with its statistics."""
    pairs = zip(facts, fields.values(), strict=True)
    return [_complete(field, mode, about.to_dict(), value) for about, value in pairs]


def _complete(
    field: str, mode: ParameterMode, facts: dict[str, Any], value: np.ndarray | EncodedArray
) -> dict[str, Any]:
    """In hash mode the record has the hash instead of the values."""
    complete = facts | {field: value} | _statistics(value)
    if mode == "hash":
        bits = value.bits if isinstance(value, EncodedArray) else value
        complete["hash"] = blake2b(bits.reshape(-1).view(np.uint8).data, digest_size=16).hexdigest()
        del complete[field]
    return complete


def _statistics(value: np.ndarray | EncodedArray) -> dict[str, float | None]:
    """norm, mean and unbiased standard deviation in float64; None where there are too few values to have one."""
    count, total, squares = 0, 0.0, 0.0
    for chunk in _chunks(value):
        count += chunk.size
        total += float(np.add.reduce(chunk))  # as sum(), without its preparations
        squares += _sum_of_squares(chunk)
    mean = total / count if count else None
    return {"norm": math.sqrt(squares), "mean": mean, "std": _deviation(value, count, mean, squares)}


def _deviation(value: np.ndarray | EncodedArray, count: int, mean: float | None, squares: float) -> float | None:
    if mean is None or count < 2:
        return None
    deviations = squares - count * mean**2
    # Where the values are nearly equal the difference of two large sums has no digits left.
    if deviations < _CANCELLED * squares:
        deviations = sum(_sum_of_squares(chunk - mean) for chunk in _chunks(value))
    return math.sqrt(deviations / (count - 1))


def _sum_of_squares(chunk: np.ndarray) -> float:
    """Not computed as a dot product for many numbers: BLAS would wake its threads, which busy-wait and slow down
    training."""
    return float(chunk @ chunk if chunk.size <= _FEW else np.einsum("i,i->", chunk, chunk))


def _chunks(value: np.ndarray | EncodedArray) -> Iterator[np.ndarray]:
    bits = (value.bits if isinstance(value, EncodedArray) else value).reshape(-1)
    for start in range(0, bits.size, _CHUNK):
        part = bits[start : start + _CHUNK]
        decoded = EncodedArray(part, value.dtype).decode() if isinstance(value, EncodedArray) else part
        yield np.abs(decoded) if decoded.dtype.kind == "c" else decoded.astype(np.float64)


def modules_and_parameters(model: Any) -> tuple[Iterable[Any], Iterable[tuple[str, Any]]]:
    """What model.modules() and model.named_parameters() give, in their order: nothing comes twice."""
    torch = torch_module()
    if torch is None or getattr(type(model), "named_parameters", None) is not torch.nn.Module.named_parameters:
        return model.modules(), model.named_parameters()  # names of its own
    modules, parameters = [], []
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting:
        prefix, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        modules.append(module)
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                parameters.append((prefix + name, parameter))
        children = module._modules
        if children:
            waiting += [(f"{prefix}{name}.", child) for name, child in reversed(children.items()) if child is not None]
    return modules, parameters
