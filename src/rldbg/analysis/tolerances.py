"""How much two values may differ before they count as different, by dtype and quantity.

An element differs when |a - b| > atol + rtol * max(|a|, |b|). docs/tolerances.md derives the numbers. Integers, masks,
tokens and text are compared exactly. `scale` tolerances add `scale` times the largest magnitude of the tensor, for sums
whose rounding error grows with their terms (gradients).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rldbg.core import UsageError

# Unit roundoff of each dtype: half the distance between 1 and the next number.
_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-4,
    "float8_e5m2fnuz": 2.0**-3,
    "float8_e8m0fnu": 2.0**-1,
}
# Dtypes of a larger unit roundoff than this are coarser than float32.
COARSE = 2.0**-20


def roundoff_of(dtype: str) -> float:
    """The unit roundoff of a dtype; 0 for what is compared exactly."""
    return _ROUNDOFF.get(dtype, 0.0)


@dataclass(frozen=True, slots=True)
class Tolerance:
    atol: float
    rtol: float
    scale: float = 0.0


EXACT = Tolerance(0.0, 0.0)
_ANYTHING = Tolerance(float("inf"), 0.0)


@dataclass(frozen=True, slots=True)
class _Class:
    """A class of quantities, as multiples of the dtype's unit roundoff."""

    absolute: float
    relative: float
    scale: float = 0.0

    def tolerance(self, roundoff: float) -> Tolerance:
        """Coarse dtypes only store what was computed finer: a few roundoffs, not the error of a computation in them."""
        if roundoff > COARSE:
            return Tolerance(
                min(self.absolute, 4) * roundoff, min(self.relative, 4) * roundoff, min(self.scale, 4) * roundoff
            )
        return self.computed(roundoff)

    def computed(self, roundoff: float) -> Tolerance:
        """The error of a computation whose operations, or whose inputs, are off by this much."""
        return Tolerance(self.absolute * roundoff, self.relative * roundoff, self.scale * roundoff)


# Log probs come out of a softmax over logits of magnitude ~10 after ~100 rounded operations: about 200 roundoffs of
# absolute error; entropy sums a vocabulary of them. Ratios are exp of differences. Losses are means over tokens.
_LOG_PROB = _Class(absolute=200, relative=20)
_RATIO = _Class(absolute=400, relative=40)
_REWARD = _Class(absolute=16, relative=16)
_ADVANTAGE = _Class(absolute=64, relative=64)
# A critic's advantages add up the errors of its values over a horizon of some twenty tokens, a reward that a KL is in
# those of log probs.
_SUM_OF_TOKENS = _Class(absolute=20 * _LOG_PROB.absolute, relative=400)
_LOSS = _Class(absolute=100, relative=100)
_GRADIENT = _Class(absolute=1, relative=1000, scale=400)
_PARAMETER = _Class(absolute=16, relative=100)
_OTHER = _Class(absolute=200, relative=200, scale=20)
# A learning rate is the result of a schedule, not of sums over tokens: small ones differ as large ones do.
_LEARNING_RATE = _Class(absolute=0, relative=16)
_IS_LEARNING_RATE = re.compile(r"(^|[./_-])(lr|learning_rate)$", re.IGNORECASE)

# Log probs that may differ by 1, probabilities by a factor of e: the two runs have forgotten what they had in common.
_NOTHING_KNOWN = 1.0

# Not computed by a forward pass: a perturbed parameter does not change it.
_NOT_OF_THE_MODEL = (_REWARD, _ADVANTAGE, _PARAMETER, _LEARNING_RATE)
# Ratios of probabilities, and means that one large ratio may dominate (a token that the reference finds likely).
_OF_RATIOS = (_RATIO, _LOSS)
# An optimizer step: (step, epoch, mini-batch).
Update = tuple[int, int, int]

# What rewards and advantages are that follow from what a model computed.
OF_MODEL = "a sum over a sample's tokens"
_CLASSES: dict[str, _Class] = {
    OF_MODEL: _SUM_OF_TOKENS,
    "returns": _SUM_OF_TOKENS,
    "reward": _REWARD,
    "advantages": _ADVANTAGE,
    "log_probs": _LOG_PROB,
    "logprobs": _LOG_PROB,
    "old_log_probs": _LOG_PROB,
    "ref_log_probs": _LOG_PROB,
    "entropy": _Class(absolute=400, relative=40),
    "prob_ratio": _RATIO,
    "elementwise_loss": _RATIO,
    "loss": _LOSS,
    "pg_loss": _LOSS,
    "entropy_loss": _LOSS,
    "kl_loss": _LOSS,
    "gradient": _GRADIENT,
    "param": _PARAMETER,
}


def is_learning_rate(name: str) -> bool:
    return bool(_IS_LEARNING_RATE.search(name))


def _class_of(field: str) -> _Class:
    return _CLASSES.get(field, _LEARNING_RATE if is_learning_rate(field) else _OTHER)


def log_prob_error(roundoff: float) -> float:
    """By how much a log prob may be off that is computed with this unit roundoff."""
    return _LOG_PROB.absolute * roundoff


def knows_nothing(roundoff: float) -> bool:
    """Whether two passes with this unit roundoff have nothing in common that could be compared."""
    return log_prob_error(roundoff) >= _NOTHING_KNOWN


def passed_on(field: str, roundoff: float) -> Tolerance:
    """What inputs that are off by a relative `roundoff` add to the tolerance of a field."""
    kind_of_value = _class_of(field)
    if kind_of_value in _NOT_OF_THE_MODEL:
        return EXACT
    if knows_nothing(roundoff):
        return _ANYTHING
    computed = kind_of_value.computed(roundoff)
    if kind_of_value in _OF_RATIOS:
        # exp(x): its relative error is the absolute error of x.
        return replace(computed, rtol=max(computed.rtol, _LOG_PROB.computed(roundoff).atol))
    return computed


class Tolerances:
    """The tolerance of every field: derived, unless given by a flag or a file."""

    def __init__(
        self,
        *,
        atol: float | None = None,
        rtol: float | None = None,
        by_field: Mapping[str, Tolerance] | None = None,
    ) -> None:
        self._atol, self._rtol = atol, rtol
        self._by_field = dict(by_field or {})
        self._perturbed: list[tuple[Update, float]] = []
        self._always = self._roundoff = self._engine = 0.0
        self._shown: Mapping[Update, float] = {}
        self._of_losses = math.inf

    @property
    def propagates(self) -> bool:
        """Whether upstream differences count: not where the user gave one tolerance for everything."""
        return self._atol is None and self._rtol is None

    def after(
        self, perturbed: Mapping[Update, float], *, always: float = 0.0, shown: Mapping[Update, float] | None = None
    ) -> Tolerances:
        """The same, given how far the parameters differ after each optimizer step and how coarsely passes round.

        `shown` is the roundoff that each pass's own log probs show: ratios and losses follow from these.
        """
        copy = self._copy()
        copy._perturbed, copy._always, copy._shown = sorted(perturbed.items()), always, shown or {}
        return copy

    def at(self, step: int, epoch: int, mini_batch: int) -> Tolerances:
        """For what one optimizer step computes: from the parameters that the one before left."""
        found = 0.0
        for update, roundoff in self._perturbed:
            if update >= (step, epoch, mini_batch):
                break
            found = roundoff
        found += self._always
        of_losses = self._shown.get((step, epoch, mini_batch), math.inf)
        if found == self._roundoff and of_losses == self._of_losses:
            return self
        copy = self._copy()
        copy._roundoff, copy._of_losses = found, of_losses
        return copy

    def of_engines(self, noise: float) -> Tolerances:
        """The same where the engines of both sides compute more coarsely than their trainers, by this much."""
        copy = self._copy()
        copy._engine = noise
        return copy

    def forgotten(self) -> Tolerances:
        """The same for what follows from other samples: nothing that is summed over them can be judged."""
        copy = self._copy()
        copy._roundoff = math.inf
        copy._perturbed, copy._always = [], math.inf
        return copy

    def at_most(self, rounding: float) -> Tolerances:
        """The same where what this pass rounds is known to matter no more than this."""
        copy = self._copy()
        copy._roundoff = self.drift + min(self._roundoff - self.drift, rounding)
        return copy

    @property
    def widens(self) -> bool:
        """Whether anything upstream allows more than what fields are allowed on their own."""
        return bool(self._always) or any(roundoff for _, roundoff in self._perturbed)

    @property
    def drift(self) -> float:
        """The part of what is allowed that comes from parameters which differ."""
        return max(0.0, self._roundoff - self._always)

    @property
    def knows_nothing(self) -> bool:
        """Whether the runs are so far apart that what their models compute cannot be judged."""
        return knows_nothing(self._roundoff)

    def _copy(self) -> Tolerances:
        copy = Tolerances(atol=self._atol, rtol=self._rtol, by_field=self._by_field)
        copy._perturbed, copy._always, copy._roundoff = self._perturbed, self._always, self._roundoff
        copy._engine, copy._shown, copy._of_losses = self._engine, self._shown, self._of_losses
        return copy

    def of(self, kind: str, field: str, dtype_a: str, dtype_b: str, quantity: str = "") -> Tolerance:
        """For one field of two recordings, or what it holds; the coarser of the two dtypes decides."""
        for name in (f"{kind}.{field}", field):
            if name in self._by_field:
                return self._by_field[name]
        roundoff = max(roundoff_of(dtype_a), roundoff_of(dtype_b))
        if roundoff == 0.0:
            return EXACT
        # Text formats return doubles for what was single precision; trainers record nothing finer than that.
        roundoff = max(roundoff, _ROUNDOFF["float32"])
        derived = _class_of(quantity or field).tolerance(roundoff)
        if self._roundoff:
            follows = _class_of(quantity or field) in _OF_RATIOS
            extra = passed_on(quantity or field, min(self._roundoff, self._of_losses) if follows else self._roundoff)
            derived = Tolerance(derived.atol + extra.atol, derived.rtol + extra.rtol, derived.scale + extra.scale)
        if self._engine and field == "logprobs":
            derived = replace(derived, atol=derived.atol + self._engine)
        if self._atol is not None:
            derived = replace(derived, atol=self._atol, scale=0.0)
        if self._rtol is not None:
            derived = replace(derived, rtol=self._rtol, scale=0.0)
        return derived

    @classmethod
    def from_file(cls, path: Path, *, atol: float | None = None, rtol: float | None = None) -> Tolerances:
        """A YAML or JSON mapping: `field` or `kind.field` to {atol, rtol}."""
        import yaml

        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise UsageError(f"cannot read the tolerance file {path}: {error}", "see docs/tolerances.md") from error
        if not isinstance(data, dict):
            raise UsageError(f"{path} is not a mapping", "write `log_probs: {atol: 1e-4, rtol: 0}` lines")
        return cls(
            atol=atol, rtol=rtol, by_field={str(name): _entry(path, name, entry) for name, entry in data.items()}
        )


def _entry(path: Path, name: Any, entry: Any) -> Tolerance:
    try:
        unknown = set(entry) - {"atol", "rtol", "scale"}
        values = {key: float(value) for key, value in entry.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: {name} is not {{atol: ..., rtol: ...}}", "give numbers") from error
    if unknown or any(value < 0 for value in values.values()):
        raise UsageError(f"{path}: {name} has an unknown key or a negative number", "keys: atol, rtol, scale")
    return Tolerance(values.get("atol", 0.0), values.get("rtol", 0.0), values.get("scale", 0.0))
