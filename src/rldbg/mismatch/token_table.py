"""Every trained token with the log prob of the rollout and the one of the trainer, over all steps of a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rldbg.analysis import (
    SampleTokens,
    Side,
    SideStep,
    StepSamples,
    Values,
    pair_samples,
    read_tokens,
    trainer_name,
    turn_of,
)
from rldbg.core import IncompleteDataError, SampleId
from rldbg.recording import Recording

ROLLOUT, TRAINER = "rollout_log_probs", "trainer_log_probs"
_SEQUENCES = ("trajectory", "prepared_trajectories")
_REPLICA_NAMES = ("replica", "engine", "server", "engine_rank")


@dataclass(frozen=True, slots=True)
class TokenPlace:
    """A sample at a step; `tokens` holds both log probs, under ROLLOUT and TRAINER."""

    step: int
    tokens: SampleTokens
    version: int | None
    replica: str | None
    temperature: float | None


class TokenTable:
    """One row per trained token, as columns; the rows of a sample follow each other."""

    def __init__(self, places: list[TokenPlace], sides: dict[int, SideStep]) -> None:
        self.places = places
        self.sides = sides
        found = [place.tokens.trained(ROLLOUT, TRAINER) or (np.empty(0),) * 3 for place in places]
        ends = np.cumsum([len(values[2]) for values in found])
        self._rows = [slice(int(end) - len(values[2]), int(end)) for values, end in zip(found, ends, strict=True)]
        rollout, trainer, positions = (np.concatenate(column) for column in zip(*found, strict=True))
        self.rollout, self.trainer = rollout.astype(np.float64), trainer.astype(np.float64)
        self.position = positions.astype(np.int64)
        self.place = np.repeat(np.arange(len(places)), [len(values[2]) for values in found])

    def __len__(self) -> int:
        return len(self.place)

    @cached_property
    def gap(self) -> np.ndarray:
        """Rollout minus trainer; not finite where one of them is not."""
        with np.errstate(invalid="ignore"):
            difference: np.ndarray = self.rollout - self.trainer
        return difference

    @cached_property
    def turn(self) -> np.ndarray:
        return self._by_sample(lambda place, positions: turn_of(place.tokens.loss_mask)[positions])

    @cached_property
    def token(self) -> np.ndarray:
        return self._by_sample(lambda place, positions: place.tokens.tokens[positions])

    @cached_property
    def response_position(self) -> np.ndarray:
        return self._by_sample(lambda place, positions: positions - place.tokens.prompt_length)

    @cached_property
    def version(self) -> np.ndarray:
        """The version of the weights that made each token; -1 where that is not recorded."""
        known = self.values("policy_versions")
        return np.where(np.isnan(known), -1, known).astype(np.int64)

    @cached_property
    def lag(self) -> np.ndarray:
        """How many versions the weights of each token are behind the policy; -1 where that is not recorded."""
        policy = self.of_samples([-1 if place.version is None else place.version for place in self.places])
        return np.where((self.version >= 0) & (policy >= 0), policy - self.version, -1)

    def values(self, name: str) -> np.ndarray:
        """Another recorded quantity of every token, NaN where there is none."""

        def of_sample(place: TokenPlace, positions: np.ndarray) -> np.ndarray:
            held = place.tokens.quantities.get(name)
            if held is None:
                return np.full(len(positions), np.nan)
            offsets = positions - held.start
            known = (offsets >= 0) & (offsets < len(held.values))
            return (
                np.where(known, held.values[np.where(known, offsets, 0)], np.nan)
                if len(held.values)
                else offsets * np.nan
            )

        return self._by_sample(of_sample)

    def of_samples(self, values: Iterable[object]) -> np.ndarray:
        """One value per sample, at each of its tokens."""
        return np.asarray(list(values))[self.place]

    def rows(self, place: int) -> slice:
        return self._rows[place]

    def where(self, row: int) -> str:
        place = self.places[int(self.place[row])]
        return f"step {place.step} sample {place.tokens.sample} token {int(self.position[row])}"

    def _by_sample(self, rule: Callable[[TokenPlace, np.ndarray], np.ndarray]) -> np.ndarray:
        parts = [rule(place, self.position[rows]) for place, rows in zip(self.places, self._rows, strict=True)]
        return np.concatenate(parts)


def table_of_run(recording: Recording, steps: Iterable[int] | None = None) -> TokenTable:
    """Rollout and trainer of one run."""
    side = Side(recording, "A")
    places, sides = [], {}
    for step in _chosen(side.steps(), steps):
        at = SideStep(side, step)
        sides[step] = at
        # Old log probs equal to the rollout's, with nothing beside them, may be a copy or a perfect match.
        name = trainer_name(at) or "old_log_probs"
        samples = at.samples if name == "old_log_probs" else at.samples_at((0, 0))
        places += list(_places(side, step, samples, name))
    return _table(places, sides, recording.title)


def table_of_pair(trainer: Recording, rollout: Recording, steps: Iterable[int] | None = None) -> TokenTable:
    """The trainer of one recording and the rollout of another, on the samples both have with the same tokens."""
    a, b = Side(trainer, "A"), Side(rollout, "B")
    places, sides = [], {}
    for step in _chosen(a.steps() & b.steps(), steps):
        table_a, table_b = read_tokens(a, step), read_tokens(b, step)
        pairs = pair_samples(table_a, table_b, StepSamples(a, step), StepSamples(b, step)).to_b
        joined = {}
        for one, other in pairs.items():
            mine, theirs = table_a[one], table_b[other]
            name = next((name for name in ("old_log_probs", "log_probs", ROLLOUT) if name in mine.quantities), None)
            if name and ROLLOUT in theirs.quantities and np.array_equal(mine.tokens, theirs.tokens):
                joined[other] = replace(theirs, quantities=theirs.quantities | {"old_log_probs": mine.quantities[name]})
        sides[step] = SideStep(a, step)
        places += list(_places(b, step, joined, "old_log_probs"))
    return _table(places, sides, f"{trainer.title} and {rollout.title}")


def _chosen(known: set[int], steps: Iterable[int] | None) -> list[int]:
    return sorted(known if steps is None else known & set(steps))


def _table(places: list[TokenPlace], sides: dict[int, SideStep], title: str) -> TokenTable:
    if not places:
        raise IncompleteDataError(
            f"{title}: no token has a log prob of the rollout and one of the trainer",
            "record trajectory with logprobs, and old_log_probs or forward_data",
        )
    return TokenTable(places, sides)


def _places(side: Side, step: int, samples: dict[SampleId, SampleTokens], name: str) -> Iterator[TokenPlace]:
    facts = {sample: fact for kind in _SEQUENCES for sample, fact in _facts(side, kind, step)}
    for sample, tokens in samples.items():
        held: Values | None = tokens.quantities.get(name)
        if held is None or ROLLOUT not in tokens.quantities:
            continue
        both = replace(tokens, quantities=tokens.quantities | {TRAINER: held})
        version, extra = facts.get(sample, (None, {}))
        replica = next((str(extra[key]) for key in _REPLICA_NAMES if key in extra), None)
        temperature = extra.get("temperature")
        yield TokenPlace(step, both, version, replica, None if temperature is None else float(temperature))


def _facts(side: Side, kind: str, step: int) -> Iterator[tuple[SampleId, tuple[int | None, dict[str, Any]]]]:
    for record in side.records(kind, step):
        extras = record.fields.get("extra_fields") or [{}] * len(record.samples)
        for sample, extra in zip(record.samples, extras, strict=False):
            yield sample, (record.policy_version, extra if isinstance(extra, dict) else {})
