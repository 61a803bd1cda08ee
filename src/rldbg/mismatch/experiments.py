"""`probe`: experiments on a few recorded samples. The trainer's model scores them with one factor changed at a time;
the change that brings its log probs to the recorded ones is the cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.analysis import NOISE
from rldbg.core import IncompleteDataError, UsageError
from rldbg.inference import score_embedded, score_over_http
from rldbg.mismatch.scoring_model import (
    Row,
    ScoringModel,
    filtered_log_probs,
    left_padding,
    restarted_positions,
    top_p_counts,
    without_first_token,
)
from rldbg.mismatch.token_table import TokenTable, table_of_run
from rldbg.recording import Recording
from rldbg.trainer import Capsule, capsule_model, recipe_from_data

_OLDER_VERSIONS = 3
_TOP_P = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
_TOP_K = (1, 2, 3, 4, 5, 8, 10, 16, 20, 32, 40, 50, 64, 100)
_DTYPES = ("bfloat16", "float16")
_STORED = ("float8_e4m3fn", "bfloat16")
# A change is the cause if it leaves at most this part of the gap and no other change leaves less than four times that.
_CLOSED = 0.1
_MARGIN = 4.0
_SAME_FACTOR = 1e-3


@dataclass(frozen=True, slots=True)
class Factor:
    """One experiment: what was changed, and the mean |gap| to the recorded log probs that is left."""

    id: str
    change: str
    left: float
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineScores:
    """What an engine gives the tokens now: how far that is from the trainer's model at the same temperature, from the
    recorded rollout, and how far apart scores of all samples together and one by one are. `raw` says that it ignores
    the temperature, so that the rollout is not comparable; `cause` is the change of the model that gives its scores."""

    address: str
    together: np.ndarray
    model_gap: float
    rollout_gap: float | None
    batch_variance: float
    raw: bool
    cause: Factor | None = None

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "together"}


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """`side` is whose recorded log probs the trainer's model does not reproduce; the experiments are tried on these."""

    step: int
    samples: tuple[str, ...]
    tokens: int
    side: str
    rollout_gap: float
    trainer_gap: float
    factors: tuple[Factor, ...]
    cause: Factor | None
    engine: EngineScores | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(replace(self, engine=None)) | {"engine": self.engine.to_dict() if self.engine else None}


def probe(
    recording: Recording,
    *,
    step: int | None = None,
    samples: int = 8,
    engine: str | None = None,
    checkpoint: Path | None = None,
) -> ProbeReport:
    """Experiments on the samples of a step with the largest gap, in the model of the step's capsule or a checkpoint.

    `engine` is the address of an engine to score the samples as well; `embedded` is rldbg's own on the same weights.
    """
    capsules = sorted(set(recording.steps("capsule")))
    if not capsules and checkpoint is None:
        raise IncompleteDataError(
            f"{recording.title} has no capsule, so there is no model to make experiments with",
            "record with debug.capsule: true, or give the trainer's model with --model",
        )
    table = table_of_run(recording, [step] if step is not None else None if checkpoint else capsules)
    chosen = step if step is not None else _step_with_largest_gap(table)
    places = _chosen_places(table, chosen, samples)
    rows = [Row(table.places[n].tokens.tokens, table.position[table.rows(n)]) for n in places]
    if checkpoint is None:
        model, temperature = _of_capsule(recording, chosen, rows)
    else:
        model, temperature = _of_checkpoint(checkpoint, rows), table.places[places[0]].temperature or 1.0
    picked = np.concatenate([np.arange(len(table))[table.rows(n)] for n in places])
    names = tuple(str(table.places[n].tokens.sample) for n in places)
    logits = model.logits()
    plain = model.log_probs(logits, temperature)
    gaps = {"rollout": _mean(table.rollout[picked] - plain), "trainer": _mean(table.trainer[picked] - plain)}
    side = "rollout" if gaps["rollout"] >= gaps["trainer"] else "trainer"
    target = (table.rollout if side == "rollout" else table.trainer)[picked]
    factors = _experiments(recording, model, logits, chosen, target, temperature)
    cause = _cause(factors, gaps[side])
    asked = _asked(engine, model, logits, temperature, table.rollout[picked]) if engine else None
    if asked is not None and asked.model_gap > NOISE:
        at = 1.0 if asked.raw else temperature
        of_engine = _experiments(recording, model, logits, chosen, asked.together, at)
        asked = replace(asked, cause=_cause(of_engine, asked.model_gap))
    return ProbeReport(chosen, names, len(picked), side, gaps["rollout"], gaps["trainer"], factors, cause, asked)


def _experiments(
    recording: Recording, model: ScoringModel, logits: np.ndarray, step: int, target: np.ndarray, temperature: float
) -> tuple[Factor, ...]:
    """All changes, the one that leaves least of the gap to the target first."""
    tried = [
        *_of_sampling(model, logits, target, temperature),
        *_of_inputs(model, target, temperature),
        *_of_weights(recording, model, step, target, temperature),
        *_of_precision(model, target, temperature),
    ]
    return tuple(sorted(tried, key=lambda item: item.left))


def _of_capsule(recording: Recording, step: int, rows: list[Row]) -> tuple[ScoringModel, float]:
    """The model that the step started from, and the temperature of its rollouts."""
    capsule = Capsule(recording, step)
    recipe = recipe_from_data(capsule.recipe, source=f"capsule of step {step}")
    return ScoringModel(capsule_model(capsule, recipe), rows, pad_id=capsule.pad_id), recipe.inference.temperature


def _of_checkpoint(folder: Path, rows: list[Row]) -> ScoringModel:
    """A Hugging Face folder, whose weights must be those of the step."""
    from transformers import AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise UsageError(f"no model at {folder}: there is no config.json", "--model takes a Hugging Face folder")
    model = AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True, use_safetensors=True).eval()
    return ScoringModel(model, rows, pad_id=int(model.config.get_text_config().pad_token_id or 0))


def _cause(factors: tuple[Factor, ...], gap: float) -> Factor | None:
    best = factors[0]
    rivals = [item for item in factors[1:] if item.id != best.id]
    told_apart = all(item.left > _MARGIN * best.left + NOISE for item in rivals)
    return best if gap > NOISE and best.left <= max(_CLOSED * gap, NOISE) and told_apart else None


def _of_sampling(model: ScoringModel, logits: np.ndarray, target: np.ndarray, temperature: float) -> Iterator[Factor]:
    """Other temperatures, and filters that renormalise."""
    best, left = _best_factor(lambda factor: _mean(target - model.log_probs(logits, temperature * factor)))
    text = f"temperature {temperature * best:.4g} instead of {temperature:g}"
    yield Factor("temperature", text, left, {"temperature": temperature * best})
    if temperature != 1:
        left = _mean(target - model.log_probs(logits, 1.0))
        yield Factor("temperature", "raw log probs, before the temperature", left, {"temperature": 1.0})
    scaled = logits / temperature
    for count in (count for count in _TOP_K if count < logits.shape[-1]):
        kept = np.full(len(target), count)
        left = _mean(target - filtered_log_probs(scaled, model.targets, kept))
        yield Factor("sampling-filter", f"top-k {count}, renormalised", left, {"top_k": count})
    for share in _TOP_P:
        left = _mean(target - filtered_log_probs(scaled, model.targets, top_p_counts(scaled, share)))
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
        yield Factor(id, text, _mean(target - model.log_probs(model.logits(change), temperature)))


def _of_weights(
    recording: Recording, model: ScoringModel, step: int, target: np.ndarray, temperature: float
) -> Iterator[Factor]:
    """Weights of earlier steps, all of them or one module's."""
    earlier = [known for known in recording.steps("capsule") if known < step]
    for version in sorted({*earlier[-_OLDER_VERSIONS:], *earlier[:1]}, reverse=True):
        parameters = Capsule(recording, version).parameters()
        with model.with_parameters(parameters):
            left = _mean(target - model.log_probs(model.logits(), temperature))
        yield Factor("weights", f"all weights of version {version}", left, {"version": version})
        for part in dict.fromkeys(map(_module_of, parameters)):
            some = {name: value for name, value in parameters.items() if _module_of(name) == part}
            with model.with_parameters(some):
                left = _mean(target - model.log_probs(model.logits(), temperature))
            yield Factor("weights", f"{part} of version {version}", left, {"version": version, "module": part})


def _of_precision(model: ScoringModel, target: np.ndarray, temperature: float) -> Iterator[Factor]:
    for dtype in _DTYPES:
        left = _mean(target - model.log_probs(model.in_dtype(dtype).logits(), temperature))
        yield Factor("precision", f"the model in {dtype}", left, {"dtype": dtype})
    for dtype in _STORED:
        with model.with_parameters(model.rounded_parameters(dtype)):
            left = _mean(target - model.log_probs(model.logits(), temperature))
        yield Factor("precision", f"weights stored in {dtype}, computed as before", left, {"stored": dtype})


def _asked(
    engine: str, model: ScoringModel, logits: np.ndarray, temperature: float, rollout: np.ndarray
) -> EngineScores:
    """What the engine says of the same tokens now, and whether that depends on the batch or on the temperature."""
    tokens = [row.tokens.tolist() for row in model.rows]

    def scores(at: float, *, together: bool) -> np.ndarray:
        if engine == "embedded":
            served = model.model.to_transformers() if hasattr(model.model, "to_transformers") else model.model
            rows = score_embedded(served, tokens, temperature=at, together=together)
        else:
            rows = score_over_http(engine, tokens, temperature=at, together=together)
        return np.concatenate([scored[row.positions] for scored, row in zip(rows, model.rows, strict=True)])

    together, alone = scores(temperature, together=True), scores(temperature, together=False)
    raw = temperature != 1 and _mean(together - scores(1.0, together=True)) <= _mean(together - alone) + NOISE
    own = model.log_probs(logits, 1.0 if raw else temperature)
    rollout_gap = None if raw else _mean(together - rollout)
    return EngineScores(engine, together, _mean(together - own), rollout_gap, _mean(together - alone), raw)


def _module_of(parameter: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` belongs to `model.layers.3`; others to the module that holds them."""
    parts = parameter.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    return ".".join(parts[: number + 1] if number is not None else parts[:-1])


def _step_with_largest_gap(table: TokenTable) -> int:
    steps = table.of_samples([place.step for place in table.places])
    size = np.abs(np.where(np.isfinite(table.gap), table.gap, 0.0))
    return int(max(np.unique(steps).tolist(), key=lambda step: float(size[steps == step].mean())))


def _chosen_places(table: TokenTable, step: int, count: int) -> list[int]:
    """The samples of a step with the largest mean gap, without copies of the same tokens."""
    here = [
        number
        for number, place in enumerate(table.places)
        if place.step == step and table.position[table.rows(number)].size
    ]
    size = np.abs(np.where(np.isfinite(table.gap), table.gap, 0.0))
    ordered = sorted(here, key=lambda number: -float(size[table.rows(number)].mean()))
    unique = {table.places[number].tokens.tokens.tobytes(): number for number in reversed(ordered)}
    return [number for number in ordered if number in unique.values()][:count]


def _mean(gap: np.ndarray) -> float:
    finite = gap[np.isfinite(gap)]
    return float(np.abs(finite).mean()) if finite.size else float("inf")
