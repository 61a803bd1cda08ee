"""What the other metrics of the first step with NaN say: whether the policy was broken before, and what grew first."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import median
from typing import NamedTuple

from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.evidence import Hit
from rldbg.doctor.logs.sources import LogSource

ENTRY = "nan-gradients"
_METRIC = re.compile(
    r"(?P<name>[A-Za-z_][\w./@-]{1,60})['\"]?[:=] ?(?:tensor\()?"
    r"(?P<value>[+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf))(?![\w.])",
    re.IGNORECASE,
)
_STEP = re.compile(r"(?i)\b(?:global[ _]?)?(?:step|iteration|iter|update)s?['\"]?[ :=/#]{1,4}(?P<at>\d{1,9})")
_OF_REWARD = re.compile(
    r"(?i)(?P<stem>(?:^|\w*/)(?:scores?|rewards?|acc(?:uracy)?))/(?P<kind>mean|max|min|std)$|^(?P<std>reward_std)$"
)
_OF_LENGTH = re.compile(r"(?i)(?:response|completion|output)s?[_/]?len(?:gth)?s?[/_](?:mean|max|min)(?:_length)?$")
_CLIPPED = re.compile(r"(?i)(?:response|completion)\w*/clip(?:ped)?_?ratio$|clipped_ratio$|truncat\w*_(?:ratio|rate)$")
_GROWS = re.compile(
    r"(?i)(?:^|[/_])(?:ppo_kl|approx_kl|kl|kl_loss|ratio(?:_max)?|is_ratio\w*|grad_norm|entropy)(?:/(?:mean|max))?$"
)
_LAST_STEPS = 50
_GREW = 10.0
_FEW = 2
_SHOWN = 2
_ORIGINS = (
    "Usual origins in RL, to confirm one by one: tokens in the loss that the policy did not sample (answers of tools, "
    "tokens that the rollout or a chat template adds: set their loss mask to 0); a ratio or KL that explodes because "
    "trainer and engine compute other log-probs (rldbg compare of both, one step, learning rate 0); a learning rate or "
    "a missing clip of gradients; samples in which everything is masked"
)


class _Step(NamedTuple):
    number: int
    values: Mapping[str, float]


def told_of_metrics(hit: Hit, told: str, sources: Sequence[LogSource]) -> CauseWords:
    """What was told of the metrics that are not finite, with what the others of that step and of those before say."""
    own = _values(hit.text)
    signs = list(_signs(own))
    before = list(_before(hit, sources))
    parts = []
    if signs:
        earlier = (
            "the policy was likely broken before this step"
            if _is_broken(signs)
            else "nothing tells good from bad answers"
        )
        parts.append(f"in that step {' and '.join(words for words, _broken in signs)}: {earlier}")
    if not before:
        parts.append("the log shows no step before it, so where it began is in an earlier part")
    parts += islice(_growth(before), _SHOWN)
    first = (
        (
            "Look at earlier steps than this one, for the first in which rewards, lengths, KL or grad_norm change, and "
            "resume from a checkpoint of before that",
        )
        if signs or not before
        else ()
    )
    return CauseWords("; ".join([told, *parts]), fix=(*first, _ORIGINS))


def _values(text: str) -> dict[str, float]:
    return {found["name"]: float(found["value"]) for found in _METRIC.finditer(text)}


def _signs(values: Mapping[str, float]) -> Iterator[tuple[str, bool]]:
    """What is the same for all samples of the step, and whether that is a sign of a broken policy."""
    rewards: dict[str, set[float]] = {}
    for name, value in values.items():
        if found := _OF_REWARD.search(name):
            if found["std"] or found["kind"] == "std":
                rewards.setdefault(f"{name} (the deviation)", set()).update((0.0,) if value == 0 else (0.0, 1.0))
            elif value == value:
                rewards.setdefault(found["stem"], set()).add(value)
    same = next(((stem, each) for stem, each in rewards.items() if len(each) == 1 and _has_range(stem, values)), None)
    if same is not None:
        what = f"all are {next(iter(same[1])):g}" if "deviation" not in same[0] else "all are the same"
        yield f"rewards do not differ ({same[0]}: {what})", False
    clipped = next((name for name, value in values.items() if _CLIPPED.search(name) and value == 1.0), "")
    lengths = {value for name, value in values.items() if _OF_LENGTH.search(name)}
    if clipped:
        yield f"every response ends at the length limit ({clipped} is 1)", True
    elif len(lengths) == 1 and sum(bool(_OF_LENGTH.search(name)) for name in values) > 1:
        yield f"every response has the same length ({next(iter(lengths)):g})", True


def _has_range(stem: str, values: Mapping[str, float]) -> bool:
    """Whether the smallest and the largest reward are among the metrics: a mean alone says nothing."""
    if "deviation" in stem:
        return True
    kinds = {found["kind"] for name in values if (found := _OF_REWARD.search(name)) and found["stem"] == stem}
    return {"max", "min"} <= kinds


def _is_broken(signs: Sequence[tuple[str, bool]]) -> bool:
    return any(broken for _words, broken in signs)


def _before(hit: Hit, sources: Sequence[LogSource]) -> Iterator[_Step]:
    """The steps above a line, the nearest first."""
    source = next((each for each in sources if each.name == hit.place.file), None)
    rows = rows_of(source)[: max(0, hit.place.line - 1)] if source is not None else []
    found = 0
    for raw in reversed(rows):
        text = clean(raw).text
        step = _STEP.search(text)
        values = _values(text) if step else {}
        if step and len(values) >= _FEW:
            yield _Step(int(step["at"]), values)
            found += 1
            if found >= _LAST_STEPS:
                return


def _growth(before: Sequence[_Step]) -> Iterator[str]:
    """Which of the metrics that explode was many times larger in the last finite step than before."""
    if len(before) <= _FEW:
        return
    last, *earlier = before
    for name, value in last.values.items():
        known = [abs(step.values[name]) for step in earlier if name in step.values]
        usual = median(known) if known and _GROWS.search(name) else 0.0
        if usual > 0 and abs(value) >= _GREW * usual:
            yield f"{name} was {value:g} in step {last.number}, and {usual:g} before"
