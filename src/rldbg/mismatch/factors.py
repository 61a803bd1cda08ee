"""The changes that `--probe` makes to the trainer's model, one at a time, and what each leaves of a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rldbg.mismatch.coarse_numbers import FORMS, coarse_softmax, quantised
from rldbg.mismatch.scoring_model import (
    ScoringModel,
    filtered_log_probs,
    left_padding,
    packed,
    restarted_positions,
    top_p_counts,
    without_first_token,
)
from rldbg.recording import Recording
from rldbg.trainer import Capsule

_OLDER_VERSIONS = 3
_TOP_P = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
_TOP_K = (1, 2, 3, 4, 5, 8, 10, 16, 20, 32, 40, 50, 64, 100)
_DTYPES = ("bfloat16", "float16")
_STORED = ("float8_e4m3fn", "bfloat16")
_SAME_FACTOR = 1e-3
_ADAPTER_FACTORS = (0.25, 0.75, 1.25, 1.5, 3.0, 4.0)
_MODULES_TRIED = 64
_FEWEST_ALIKE = 32


@dataclass(frozen=True, slots=True)
class Factor:
    """One experiment: what was changed, and the mean |gap| to the recorded log probs that is left.

    Rounding does not repeat in another kernel: `likeness` is the correlation of the gap with what a change does.
    """

    id: str
    change: str
    left: float
    parameters: dict[str, Any] = field(default_factory=dict)
    likeness: float = 0.0


def experiments(
    recording: Recording, model: ScoringModel, step: int, target: np.ndarray, temperature: float
) -> tuple[Factor, ...]:
    """All changes, the one that leaves least of the gap to the target first."""
    tried = [
        *_of_sampling(model, model.logits(), target, temperature),
        *_of_inputs(model, target, temperature),
        *_of_weights(recording, model, step, target, temperature),
        *_of_adapter(model, target, temperature),
        *_of_precision(model, target, temperature),
    ]
    return tuple(sorted(tried, key=lambda item: item.left))


def _of_sampling(model: ScoringModel, logits: np.ndarray, target: np.ndarray, temperature: float) -> Iterator[Factor]:
    """Other temperatures, and filters that renormalise."""
    best, left = _best_factor(lambda factor: mean_gap(target - model.log_probs(logits, temperature * factor)))
    text = f"temperature {temperature * best:.4g} instead of {temperature:g}"
    yield Factor("temperature", text, left, {"temperature": temperature * best})
    if temperature != 1:
        left = mean_gap(target - model.log_probs(logits, 1.0))
        yield Factor("temperature", "raw log probs, before the temperature", left, {"temperature": 1.0})
    scaled = logits / temperature
    for count in (count for count in _TOP_K if count < logits.shape[-1]):
        kept = np.full(len(target), count)
        left = mean_gap(target - filtered_log_probs(scaled, model.targets, kept))
        yield Factor("sampling-filter", f"top-k {count}, renormalised", left, {"top_k": count})
    for share in _TOP_P:
        left = mean_gap(target - filtered_log_probs(scaled, model.targets, top_p_counts(scaled, share)))
        yield Factor("sampling-filter", f"top-p {share:g}, renormalised", left, {"top_p": share})


def _best_factor(left: Callable[[float], float]) -> tuple[float, float]:
    """The temperature, in units of the present one and apart from it, that leaves least; found on ever finer grids."""
    centre, width = 0.0, float(np.log(4))
    found: dict[float, float] = {}
    for _ in range(4):
        tried = [float(value) for value in np.linspace(centre - width, centre + width, 33) if abs(value) > _SAME_FACTOR]
        found |= {value: left(float(np.exp(value))) for value in tried}
        centre, width = min(found, key=lambda value: found[value]), width / 16
    return float(np.exp(centre)), found[centre]


def _of_inputs(model: ScoringModel, target: np.ndarray, temperature: float) -> Iterator[Factor]:
    first = min(int(row.positions.min()) for row in model.rows)
    for id, text, change in (
        (
            "padding-attended",
            "two columns of padding before the prompt, attended to",
            left_padding(model.pad_id, attended=True),
        ),
        (
            "padding-side",
            "two columns of padding before the prompt, hidden",
            left_padding(model.pad_id, attended=False),
        ),
        ("positions", "position ids of the response start again at 0", restarted_positions(first)),
        ("tokens-not-attended", "the first token is missing", without_first_token),
    ):
        yield Factor(id, text, mean_gap(target - model.log_probs(model.logits(change), temperature)))
    for text, count in (("the sample", 1), ("all samples", None)):
        if any(len(row.before) >= (2 if count is None else 1) for row in model.rows):
            for ids, restart in (("position ids start again", True), ("position ids continue", False)):
                left = mean_gap(target - model.log_probs(model.logits(packed(count, restart=restart)), temperature))
                yield Factor("packing", f"attends to {text} packed before it; {ids}", left, {"restarted": restart})


def _of_weights(
    recording: Recording, model: ScoringModel, step: int, target: np.ndarray, temperature: float
) -> Iterator[Factor]:
    """Weights of earlier steps, all of them or one module's."""
    earlier = [known for known in recording.steps("capsule") if known < step]
    for version in sorted({*earlier[-_OLDER_VERSIONS:], *earlier[:1]}, reverse=True):
        parameters = Capsule(recording, version).parameters()
        with model.with_parameters(parameters):
            left = mean_gap(target - model.log_probs(model.logits(), temperature))
        yield Factor("weights", f"all weights of version {version}", left, {"version": version})
        for part in dict.fromkeys(map(_module_of, parameters)):
            some = {name: value for name, value in parameters.items() if _module_of(name) == part}
            with model.with_parameters(some):
                left = mean_gap(target - model.log_probs(model.logits(), temperature))
            yield Factor("weights", f"{part} of version {version}", left, {"version": version, "module": part})


def _of_adapter(model: ScoringModel, target: np.ndarray, temperature: float) -> Iterator[Factor]:
    """The LoRA adapter left out, scaled differently, or left out in some modules."""
    if model.adapter is None:
        return
    base, parts = model.base_parameters, model.adapter.parts

    def left(changed: Mapping[str, Any]) -> float:
        with model.with_parameters(changed):
            return mean_gap(target - model.log_probs(model.logits(), temperature))

    yield Factor("lora", "without the LoRA adapter: it was not delivered, or not merged", left(base), {"factor": 0.0})
    first = next(iter(parts.values()))
    reasons = {
        2.0: "merged twice, or twice the alpha",
        0.5: "half of the alpha",
        1 / first.scale: "alpha / rank left out",
        first.alpha / first.scale: "alpha not divided by the rank",
        first.rank**0.5: "alpha divided by the root of the rank",
        first.rank**-0.5: "alpha divided by the rank, not by its root",
    }
    for factor in _ADAPTER_FACTORS + tuple(reasons):
        if abs(factor - 1) > _SAME_FACTOR:
            why = f" ({reasons[factor]})" if factor in reasons else ""
            changed = left(model.adapter.merged(base, factor))
            yield Factor("lora", f"the LoRA adapter times {factor:.4g}{why}", changed, {"factor": factor})
    groups: dict[str, list[str]] = {}
    for name in parts:
        module = name.removesuffix(".weight")
        for group in (
            _module_of(name),
            module.rpartition(".")[2],
            *((module,) if len(parts) <= _MODULES_TRIED else ()),
        ):
            groups.setdefault(group, []).append(name)
    for group, names in groups.items():
        if len(names) < len(parts):
            some = left({name: base[name] for name in names if name in base})
            yield Factor("lora", f"without the LoRA adapter of {group}", some, {"without": group})


def _of_precision(model: ScoringModel, target: np.ndarray, temperature: float) -> Iterator[Factor]:
    plain = model.log_probs(model.logits(), temperature)

    def factor(id: str, change: str, changed: np.ndarray, **parameters: str) -> Factor:
        likeness = _likeness(target - plain, changed - plain)
        return Factor(id, change, mean_gap(target - changed), dict(parameters), likeness)

    scaled = model.logits() / temperature
    for dtype in _DTYPES:
        coarse = model.in_dtype(dtype).logits()
        yield factor("precision", f"the model in {dtype}", model.log_probs(coarse, temperature), dtype=dtype)
        for change, logits, all_of_it in (
            (f"softmax in {dtype}", scaled, True),
            (f"logits in {dtype}, softmax in float32", scaled, False),
        ):
            changed = coarse_softmax(logits, model.targets, dtype, all_of_it=all_of_it)
            yield factor("softmax", change, changed, dtype=dtype)
        changed = coarse_softmax(coarse / temperature, model.targets, dtype, all_of_it=True)
        yield factor("precision", f"model and softmax in {dtype}", changed, dtype=dtype, softmax=dtype)
    for dtype in _STORED:
        with model.with_parameters(model.rounded_parameters(dtype)):
            changed = model.log_probs(model.logits(), temperature)
        yield factor("precision", f"weights stored in {dtype}, computed as before", changed, stored=dtype)
    for form in FORMS:
        with quantised(model.model, form):
            changed = model.log_probs(model.logits(), temperature)
        yield factor("quantised", f"linear layers in {form}", changed, form=form)


def _likeness(gap: np.ndarray, effect: np.ndarray) -> float:
    """The correlation of a gap with what a change does, if both are of about one size; else 0."""
    finite = np.isfinite(gap) & np.isfinite(effect)
    sizes = [float(np.sqrt(np.mean(values[finite] ** 2))) if finite.any() else 0.0 for values in (gap, effect)]
    if finite.sum() < _FEWEST_ALIKE or not min(sizes) > max(sizes) / 2:
        return 0.0
    return float(np.mean(gap[finite] * effect[finite])) / (sizes[0] * sizes[1])


def _module_of(parameter: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` belongs to `model.layers.3`; others to the module that holds them."""
    parts = parameter.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    return ".".join(parts[: number + 1] if number is not None else parts[:-1])


def mean_gap(gap: np.ndarray) -> float:
    finite = gap[np.isfinite(gap)]
    return float(np.abs(finite).mean()) if finite.size else float("inf")
