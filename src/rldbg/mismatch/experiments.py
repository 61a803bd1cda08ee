"""`probe`: experiments on a few recorded samples. The trainer's model scores them with one factor changed at a time;
the change that brings its log probs to the recorded ones is the cause."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.analysis import NOISE
from rldbg.core import IncompleteDataError, SampleId, UsageError
from rldbg.inference import score_embedded, score_over_http
from rldbg.mismatch.factors import Factor, experiments, mean_gap
from rldbg.mismatch.scoring_model import ScoredRow, ScoringModel
from rldbg.mismatch.token_table import TokenTable, table_of_run
from rldbg.recording import Recording
from rldbg.trainer import Capsule, capsule_model, recipe_from_data
from rldbg.weights import is_adapter, read_adapter

# A change is the cause if it leaves at most this part of the gap and no other change leaves less than four times that.
_CLOSED = 0.1
_MARGIN = 4.0
# Rounding that does not repeat exactly is recognised by correlation.
_ALIKE = 0.5
_ALIKE_MARGIN = 0.1


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
            f"{recording.title} has no capsule, so there is no model to run experiments with",
            "record with debug.capsule: true, or give the trainer's model with --model",
        )
    table = table_of_run(recording, [step] if step is not None else None if checkpoint else capsules)
    chosen = step if step is not None else _step_with_largest_gap(table)
    places = _chosen_places(table, chosen, samples)
    before = _packed_before(table, chosen)
    known = [(table.places[n].tokens, table.position[table.rows(n)]) for n in places]
    rows = [ScoredRow(own.tokens, positions, before.get(own.sample, ())) for own, positions in known]
    if checkpoint is None:
        model, temperature = _of_capsule(recording, chosen, rows)
    else:
        model, temperature = _of_checkpoint(checkpoint, rows), table.places[places[0]].temperature or 1.0
    picked = np.concatenate([np.arange(len(table))[table.rows(n)] for n in places])
    names = tuple(str(table.places[n].tokens.sample) for n in places)
    logits = model.logits()
    plain = model.log_probs(logits, temperature)
    gaps = {"rollout": mean_gap(table.rollout[picked] - plain), "trainer": mean_gap(table.trainer[picked] - plain)}
    side = "rollout" if gaps["rollout"] >= gaps["trainer"] else "trainer"
    target = (table.rollout if side == "rollout" else table.trainer)[picked]
    factors = experiments(recording, model, chosen, target, temperature)
    cause = _cause(factors, gaps[side])
    asked = _asked(engine, model, logits, temperature, table.rollout[picked]) if engine else None
    if asked is not None and asked.model_gap > NOISE:
        at = 1.0 if asked.raw else temperature
        of_engine = experiments(recording, model, chosen, asked.together, at)
        asked = replace(asked, cause=_cause(of_engine, asked.model_gap))
    return ProbeReport(chosen, names, len(picked), side, gaps["rollout"], gaps["trainer"], factors, cause, asked)


def _of_capsule(recording: Recording, step: int, rows: list[ScoredRow]) -> tuple[ScoringModel, float]:
    """The model that the step started from, and the temperature of its rollouts."""
    capsule = Capsule(recording, step)
    recipe = recipe_from_data(capsule.recipe, source=f"capsule of step {step}")
    return ScoringModel(capsule_model(capsule, recipe), rows, pad_id=capsule.pad_id), recipe.inference.temperature


def _of_checkpoint(folder: Path, rows: list[ScoredRow]) -> ScoringModel:
    """A Hugging Face folder, whose weights must be those of the step; or that of a LoRA adapter, which is merged."""
    from transformers import AutoModelForCausalLM

    adapter = read_adapter(folder) if is_adapter(folder) else None
    folder = adapter.base if adapter else folder
    if not (folder / "config.json").is_file():
        raise UsageError(f"no model at {folder}: config.json is missing", "--model takes a Hugging Face folder")
    model = AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True, use_safetensors=True).eval()
    return ScoringModel(model, rows, pad_id=int(model.config.get_text_config().pad_token_id or 0), adapter=adapter)


def _packed_before(table: TokenTable, step: int) -> dict[SampleId, tuple[np.ndarray, ...]]:
    """By sample, the tokens of the samples before it in the trainer's micro-batch."""
    side = table.sides[step]
    found: dict[SampleId, tuple[np.ndarray, ...]] = {}
    for kind in ("batch_inputs", "old_log_probs", "forward_data"):
        for record in side.side.records(kind, step):
            earlier: tuple[np.ndarray, ...] = ()
            for sample in record.samples:
                found.setdefault(sample, earlier)
                earlier += (side.samples[sample].tokens,) if sample in side.samples else ()
    return found


def _cause(factors: tuple[Factor, ...], gap: float) -> Factor | None:
    best = factors[0]
    rivals = [item for item in factors[1:] if item.id != best.id]
    told_apart = all(item.left > _MARGIN * best.left + NOISE for item in rivals)
    if gap <= NOISE:
        return None
    if best.left <= max(_CLOSED * gap, NOISE):
        return best if told_apart else None
    alike = max(factors, key=lambda item: item.likeness)
    others = [item.likeness for item in factors if item.id != alike.id]
    return alike if alike.likeness >= _ALIKE and alike.likeness > max(others) + _ALIKE_MARGIN else None


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
    raw = temperature != 1 and mean_gap(together - scores(1.0, together=True)) <= mean_gap(together - alone) + NOISE
    own = model.log_probs(logits, 1.0 if raw else temperature)
    rollout_gap = None if raw else mean_gap(together - rollout)
    return EngineScores(engine, together, mean_gap(together - own), rollout_gap, mean_gap(together - alone), raw)


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
