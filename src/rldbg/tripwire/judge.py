"""Rules and expressions over the measures of one step after the other. No files, no clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from rldbg.tripwire.detector import Detector, Unusual
from rldbg.tripwire.events import number
from rldbg.tripwire.expressions import CannotEvaluate, WatchExpression, identifiers
from rldbg.tripwire.measures import StepMeasures
from rldbg.tripwire.rules import WatchRule

_OWN = WatchRule("expression", "", "either", "your expression became true")
_USUAL_OF = 8


class Alarm(NamedTuple):
    """A rule that fired: where in the step, and what it saw."""

    rule: WatchRule
    where: str
    what: str
    is_logged: bool = False
    """Whether the step holds nothing about the measure but a value that was logged."""


class Judge:
    """Remembers the measures of earlier steps; knows nothing about where they come from."""

    def __init__(self, rules: Sequence[WatchRule], when: Sequence[WatchExpression] = ()) -> None:
        self._detectors = [Detector(rule) for rule in rules]
        self._expressions = when
        self._true: set[str] = set()
        self.not_evaluated: dict[str, tuple[int, str]] = {}
        """Expressions whose arithmetic failed: at which step first, and why."""
        self._history: dict[str, deque[float]] = {}

    def step(self, number_of_step: int, measured: StepMeasures) -> list[Alarm]:
        """What is unusual in this step, given all before it."""
        where = f"step {number_of_step}"
        found = [*self._by_rules(where, measured), *self._by_expressions(number_of_step, measured.values)]
        for name, value in measured.values.items():
            self._history.setdefault(name, deque(maxlen=_USUAL_OF)).append(value)
        return found

    def names_without_value(self) -> Iterator[tuple[str, str, list[str]]]:
        """Expressions that cannot have been true so far: the text, the name that no step had, and those there are."""
        known = identifiers(dict.fromkeys(self._history, 0.0))
        for expression in self._expressions:
            for name in expression.names:
                if name not in known:
                    yield expression.text, name, sorted(known)

    def _by_rules(self, step: str, measured: StepMeasures) -> Iterator[Alarm]:
        for detector in self._detectors:
            rule = detector.rule
            value = measured.values.get(rule.measure)
            unusual = None if value is None else detector.look(value)
            if unusual is not None:
                place = measured.places.get(rule.measure)
                where = f"{step}, {place}" if place else step
                yield Alarm(rule, where, _said(rule, unusual), is_logged=rule.measure in measured.logged)

    def _by_expressions(self, step: int, values: Mapping[str, float]) -> Iterator[Alarm]:
        """An expression fires when it becomes true."""
        usual = {name: median(history) for name, history in self._history.items()}
        for expression in self._expressions:
            was_true = expression.text in self._true
            if not self._holds(step, expression, values, usual):
                self._true.discard(expression.text)
            elif not was_true:
                self._true.add(expression.text)
                known = identifiers(values)
                shown = ", ".join(f"{name} {number(known[name])}" for name in expression.names)
                yield Alarm(
                    replace(_OWN, measure=expression.text),
                    f"step {step}",
                    f"{expression.text} is true" + (f" ({shown})" if shown else ""),
                )

    def _holds(
        self, step: int, expression: WatchExpression, values: Mapping[str, float], usual: Mapping[str, float]
    ) -> bool:
        try:
            return expression.holds(values, usual)
        except CannotEvaluate as error:
            known = identifiers(values)
            shown = ", ".join(f"{name} {number(known[name])}" for name in expression.names)
            self.not_evaluated.setdefault(expression.text, (step, f"{error}; {shown}"))
            return False


def _said(rule: WatchRule, unusual: Unusual) -> str:
    before = "at best" if rule.moves == "declines" else "usually"
    text = f"{rule.measure} is {number(unusual.value)}, {before} {number(unusual.usual)}"
    if rule.moves == "not-finite":
        return text
    if math.isinf(unusual.sigmas):
        return f"{text} (it hardly ever changed before)"
    return f"{text} ({unusual.sigmas:.3g} times the usual noise away)"
