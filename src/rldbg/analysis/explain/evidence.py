"""What hypotheses may use: recorded numbers of one step, aligned. Never the configuration or the name of a bug."""

from __future__ import annotations

import copy
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.explain.subsets import Gap, TokenSubset, confined_to
from rldbg.analysis.samples import StepSamples, pair_samples
from rldbg.analysis.side import Side
from rldbg.analysis.tokens import SampleTokens
from rldbg.recording import RecordKey

SamplePair = tuple[SampleTokens, SampleTokens]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A hypothesis applied: the numbers of one side, those that the other recorded, and what it makes of the first."""

    given: np.ndarray
    recorded: np.ndarray
    made: np.ndarray
    # What the first two are, where they are not the same quantity of the two sides.
    names: tuple[str, str] | None = None

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[float | None]]) -> Recomputed | None:
        """From (given, recorded, made) of each place; None where a number is missing."""
        if not rows or any(value is None for row in rows for value in row):
            return None
        return cls(*np.asarray(rows, dtype=np.float64).T)

    def to_dict(self, most: int) -> dict[str, Any]:
        """At most that many numbers, those that differ most, in their order."""
        apart = np.abs(np.nan_to_num(self.recorded - self.given, nan=np.inf))
        chosen = np.sort(np.argsort(-apart, kind="stable")[:most])
        columns = {"given": self.given, "recorded": self.recorded, "made": self.made}
        return {
            "count": len(apart),
            "names": self.names,
            "places": chosen.tolist(),
            **{name: values[chosen].tolist() for name, values in columns.items()},
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """A hypothesis with its parameters applied to a difference: `residual` is what is left of it.

    `noise` is what rounding alone may leave: up to that the hypothesis fits and accounts for the difference; beyond it
    the hypothesis is at best close. `share` is how much of the difference it accounts for.
    """

    id: str
    explains: str
    residual: float = 0.0
    noise: float = 0.0
    parameters: dict[str, Any] = field(default_factory=dict)
    share: float = 1.0
    # Explanations that share this word are parts of one statement, not rivals.
    together: str = ""
    # None where it says something of tokens, masks or ids, of which nothing can be recomputed.
    recomputed: Recomputed | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "explains", _of_one(self.explains))

    @property
    def fits(self) -> bool:
        """Numbers that are not finite fit nothing."""
        return math.isfinite(self.residual) and math.isfinite(self.noise) and self.residual <= self.noise

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "explains": self.explains,
            "residual": self.residual,
            "noise": self.noise,
            "parameters": self.parameters,
            "share": self.share,
        }


_VERBS = {"": "", " have": " has", " are": " is", " differ": " differs", " were": " was"}
_ONE = re.compile(r"(?<![\d.,+-])1 (sample|row|token|step|turn|parameter)s\b( have| are| differ| were)?(?! of)")


def _of_one(text: str) -> str:
    """Counts of 1 in the singular."""
    return _ONE.sub(lambda found: f"1 {found[1]}{_VERBS[found[2] or '']}", text)


class Evidence:
    """Both sides at the optimizer step at which they first differ. Everything is read on first use."""

    def __init__(self, a: Side, b: Side, step: int, epoch: int = 0, mini_batch: int = 0) -> None:
        self.step = step
        self.update = (epoch, mini_batch)
        self.a, self.b = SideStep(a, step), SideStep(b, step)
        self._tokens: dict[str, tuple[np.ndarray, np.ndarray] | None] = {}
        self._confined: dict[str, tuple[TokenSubset, Evidence] | None] = {}

    @property
    def sides(self) -> tuple[tuple[str, SideStep], tuple[str, SideStep]]:
        return ("A", self.a), ("B", self.b)

    @property
    def both(self) -> tuple[SideStep, SideStep]:
        return self.a, self.b

    @property
    def directions(self) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
        """Either side may be the wrong one: its label, the place of the right one and its own in a pair."""
        return ("B", 0, 1), ("A", 1, 0)

    @cached_property
    def _partners(self) -> list[tuple[Any, Any]]:
        known = StepSamples.read(self.a.side, self.step), StepSamples.read(self.b.side, self.step)
        pairs = pair_samples(self.a.samples, self.b.samples, *known)
        return list(pairs.to_b.items())

    @cached_property
    def samples(self) -> list[SamplePair]:
        """Every sample both sides have, with its tokens and what the first pass over it says."""
        return [(self.a.samples[one], self.b.samples[other]) for one, other in self._partners]

    @cached_property
    def changed(self) -> list[SamplePair]:
        """Those of them whose tokens differ."""
        return [pair for pair, is_same in zip(self.samples, self._same_tokens, strict=True) if not is_same]

    @cached_property
    def unchanged(self) -> list[SamplePair]:
        """Those of them whose tokens are the same on both sides."""
        return [pair for pair, is_same in zip(self.samples, self._same_tokens, strict=True) if is_same]

    @cached_property
    def _same_tokens(self) -> list[bool]:
        """Of each pair of samples; which tokens a sample has does not depend on the optimizer step."""
        return [np.array_equal(a.tokens, b.tokens) for a, b in self.samples]

    @cached_property
    def now(self) -> list[SamplePair]:
        """The same at this optimizer step; per-token quantities only of the samples it trains on."""
        a, b = self.a.samples_at(self.update), self.b.samples_at(self.update)
        return [(a[one], b[other]) for one, other in self._partners]

    @cached_property
    def with_equal_tokens(self) -> list[SamplePair]:
        """The samples now trained on whose tokens are the same on both sides."""
        return [pair for pair, is_same in zip(self.now, self._same_tokens, strict=True) if is_same]

    def confined(self, name: str, noise: float) -> tuple[TokenSubset, Evidence] | None:
        """The part of all tokens that a quantity's difference is confined to, and the evidence of that part alone."""
        if name not in self._confined:
            part = confined_to(self._gaps(name, noise))
            self._confined[name] = None if part is None else (part, self._within(part, name))
        return self._confined[name]

    def _gaps(self, name: str, noise: float) -> Iterator[Gap]:
        found = list(self._gaps_of(self.with_equal_tokens, name, noise))
        if name == "advantages":
            # They do not change from pass to pass: where they differ from the first one on, all samples count.
            every = list(self._gaps_of(self.unchanged, name, noise))
            found = every if any(gap.apart.any() for gap in every) else found
        yield from found

    def _gaps_of(self, pairs: list[SamplePair], name: str, noise: float) -> Iterator[Gap]:
        for one, other in pairs:
            a, b = one.trained(name), other.trained(name)
            if a is not None and b is not None and len(a[0]) == len(b[0]):
                apart = ~(np.abs(a[0].astype(np.float64) - b[0]) <= noise)
                # Samples without an advantage stay so whatever is done to advantages: they tell no part from another.
                if name != "advantages" or np.any(a[0]) or np.any(b[0]):
                    yield Gap(one, a[1], apart, self._home(one, name))

    def _home(self, sample: SampleTokens, name: str) -> RecordKey:
        """The pass over a sample, which says its rank; else the record of the quantity."""
        return self.a.homes.get(sample.sample) or sample.quantities[name].source

    def _within(self, part: TokenSubset, name: str) -> Evidence:
        def narrowed(pairs: list[SamplePair]) -> list[SamplePair]:
            return [
                (part.within(one, self._home(one, name)), part.within(other, self._home(one, name)))
                for one, other in pairs
                if name in one.quantities
            ]

        view = copy.copy(self)
        view._tokens, view._confined = {}, dict.fromkeys(self._confined)
        for known in ("samples", "now", "with_equal_tokens"):
            view.__dict__[known] = narrowed(getattr(self, known))
        for of_all in ("changed", "unchanged", "_same_tokens"):
            view.__dict__.pop(of_all, None)
        return view

    def of_passes(self, what: str, numbers: set[int]) -> Evidence:
        """The same with the passes of some ranks, or micro-batches, only."""
        view = copy.copy(self)
        view.a, view.b = self.a.of_passes(what, numbers), self.b.of_passes(what, numbers)
        return view

    def until(self, update: tuple[int, int]) -> Evidence:
        """The same with the passes up to an optimizer step only."""
        view = copy.copy(self)
        view.a, view.b = self.a.until(update), self.b.until(update)
        return view

    def tokens(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """One quantity of both sides over all trained tokens of samples with equal tokens; None when not recorded."""
        if name not in self._tokens:
            rows = list(self.rows(name))
            columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
            self._tokens[name] = (columns[0], columns[1]) if columns else None
        return self._tokens[name]

    def losses(self) -> list[dict[tuple[int, int], float | None]]:
        """The losses of each side at this optimizer step, by rank and micro-batch."""
        return [
            {(item.rank, item.micro): item.number("loss", "loss") for item in side.in_update(self.update)}
            for side in self.both
        ]

    def shared_losses(self) -> tuple[np.ndarray, np.ndarray]:
        """Those of the passes for which both sides have one."""
        a, b = self.losses()
        shared = [key for key, value in a.items() if value is not None and b.get(key) is not None]
        return np.asarray([a[key] for key in shared], np.float64), np.asarray([b[key] for key in shared], np.float64)

    def rows(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """One quantity sample by sample, at the trained tokens of samples whose tokens are equal."""
        if not any(name in one.quantities for one, _ in self.now):
            return
        for one, other in self.with_equal_tokens:
            found_a, found_b = one.trained(name), other.trained(name)
            if found_a is not None and found_b is not None and len(found_a[0]) == len(found_b[0]):
                yield found_a[0].astype(np.float64), found_b[0].astype(np.float64)


Hypothesis = Callable[[Evidence], Iterator[Explanation]]


def tried(hypothesis: Hypothesis, evidence: Evidence) -> list[Explanation]:
    """The results of a hypothesis; one that fails on the shapes of a recording gives none, and this is logged once per
    recording."""
    try:
        return list(hypothesis(evidence))
    except (ValueError, IndexError, KeyError, ArithmeticError) as error:
        if evidence.a.side.first_time(f"{hypothesis.__module__}.{hypothesis.__qualname__}"):
            _log.warning("a hypothesis could not be tried: %s: %s", hypothesis.__qualname__, error)
        return []


def applied(
    id: str,
    text: str,
    given: np.ndarray,
    recorded: np.ndarray,
    made: np.ndarray,
    noise: float,
    parameters: dict[str, Any],
    share: float = 1.0,
) -> Explanation:
    """A hypothesis that makes of what one side has what the other recorded; `share` counts where it fits."""
    before, after = recorded - given, recorded - made
    residual = largest(after)
    if residual > noise:
        whole = float(np.linalg.norm(before)) if np.isfinite(before).all() else 0.0
        rest = float(np.linalg.norm(after)) if np.isfinite(after).all() else float("inf")
        share = max(0.0, 1 - rest / whole) if whole > 0 else 0.0
    return Explanation(id, text, residual, noise, parameters, share, recomputed=Recomputed(given, recorded, made))


def for_samples(
    id: str, text: str, matching: int, differing: int, parameters: dict[str, Any], made: Recomputed | None = None
) -> Explanation:
    """A rule that holds for `matching` of the samples that differ; it fits when it holds for all of them."""
    missed = float(differing - matching)
    return Explanation(id, text, missed, 0.0, parameters, matching / differing if differing else 0.0, recomputed=made)


def largest(values: np.ndarray) -> float:
    """The largest magnitude, 0 for nothing; NaN counts as infinite."""
    if values.size == 0:
        return 0.0
    size = np.abs(values)
    return float("inf") if np.isnan(size).any() else float(size.max())


def small(values: np.ndarray, bound: float) -> bool:
    """Whether no magnitude is above a bound, which must be a number: nothing is small compared with infinity."""
    return math.isfinite(bound) and largest(values) <= bound


def fit_factor(x: np.ndarray, y: np.ndarray) -> float:
    """The k that brings k * x closest to y."""
    norm = float(x @ x)
    return float(x @ y) / norm if norm > 0 else 0.0


def round_to(values: np.ndarray, mantissa_bits: int) -> np.ndarray:
    """The nearest numbers with that many bits of mantissa."""
    fraction, exponent = np.frexp(values)
    nearest: np.ndarray = np.ldexp(np.round(fraction * 2.0**mantissa_bits) / 2.0**mantissa_bits, exponent)
    return nearest


def agree(a: np.ndarray | None, b: np.ndarray | None, noise: float) -> bool:
    """Whether both arrays exist, have the same shape, and differ nowhere by more than noise."""
    return a is not None and b is not None and a.shape == b.shape and largest(a - b) <= noise


def either(texts: Iterable[str]) -> str:
    """The first of several rules that give the same numbers, with another one of them."""
    first, *others = dict.fromkeys(texts)
    return f"{first} (or {others[0]}, which gives the same here)" if others else first
