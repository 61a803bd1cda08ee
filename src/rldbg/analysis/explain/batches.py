"""Hypotheses about how samples are batched: padding, positions, masks, samples omitted or used twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from rldbg.analysis.explain.contexts import NOISE
from rldbg.analysis.explain.evidence import Evidence, Explanation, largest
from rldbg.analysis.explain.inputs import faults_of
from rldbg.analysis.explain.passes import SideStep, UpdateInStep
from rldbg.core import SampleId

_COLUMNS = ("input_ids", "attention_mask", "position_ids", "response_mask", "effective_valid")
BatchInputs = dict[SampleId, dict[str, np.ndarray]]


def _inputs(side: SideStep, kind: str, update: UpdateInStep | None) -> BatchInputs:
    """The rows of a kind by sample, at one optimizer step or at the first pass over each sample."""
    found: BatchInputs = {}
    for item in side.micros if update is None else side.in_update(update):
        record = item.records.get(kind)
        if record is not None:
            columns = {name: list(record.rows(name)) for name in record.fields if name in _COLUMNS}
            for row, sample in enumerate(record.samples):
                found.setdefault(sample, {name: np.asarray(rows[row]) for name, rows in columns.items()})
    return found


def _row_pairs(
    evidence: Evidence, kind: str
) -> list[tuple[SampleId, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]]:
    a, b = _inputs(evidence.a, kind, None), _inputs(evidence.b, kind, None)
    return [
        (one.sample, (a[one.sample], b[other.sample]))
        for one, other in evidence.samples
        if one.sample in a and other.sample in b and np.array_equal(one.tokens, other.tokens)
    ]


def attention(evidence: Evidence) -> Iterator[Explanation]:
    """One side's attention mask covers more than its samples' tokens, or less."""
    counts = [_attention_faults(evidence.a, evidence.b), _attention_faults(evidence.b, evidence.a)]
    for (label, _), mine, other in zip(evidence.sides, counts, reversed(counts), strict=True):
        for name, text in (
            ("padding-attended", "attention mask also covers padding"),
            ("tokens-not-attended", "attention mask does not cover all tokens of the sample"),
        ):
            rows = mine[name]
            if rows and not other[name]:
                odd = _differing(evidence) - rows
                facts = {"side": label, "rows": len(rows)}
                # A row that differs although its mask is right has another cause.
                said = f"{label}'s {text}, in {len(rows)} rows"
                yield Explanation(name, said, float(len(odd)), 0.0, facts, 1 - len(odd) / max(len(rows | odd), 1))


def _differing(evidence: Evidence) -> set[SampleId]:
    """A's samples whose log probs differ before the first update of the step: the old ones, else the first pass's."""
    for quantity in ("old_log_probs", "log_probs"):
        first = [side.samples if quantity == "old_log_probs" else side.samples_at((0, 0)) for _, side in evidence.sides]
        rows = [
            (one.sample, first[0][one.sample].trained(quantity), first[1][other.sample].trained(quantity))
            for one, other in evidence.samples
        ]
        known = [(sample, a[0], b[0]) for sample, a, b in rows if a is not None and b is not None]
        if known:
            return {sample for sample, a, b in known if len(a) == len(b) and largest(a - b) > NOISE}
    return set()


def _attention_faults(side: SideStep, other: SideStep) -> dict[str, set[SampleId]]:
    """The rows that let the model see padding, or fewer tokens than their sample has, by the ids it is given."""
    found: dict[str, set[SampleId]] = {"padding-attended": set(), "tokens-not-attended": set()}
    by_ids = faults_of(side, other)
    for sample, row in _inputs(side, "batch_inputs", None).items():
        if "attention_mask" in row and sample in side.samples and by_ids.get(sample) is None:
            more = int(np.count_nonzero(row["attention_mask"])) - len(side.samples[sample].tokens)
            if more:
                found["padding-attended" if more > 0 else "tokens-not-attended"].add(sample)
    return found


def padding_side(evidence: Evidence) -> Iterator[Explanation]:
    """The same tokens, with padding in different places, where that explains which tokens differ.

    Padding at either end changes nothing by itself. Padding between prompt and response is what the first response
    token is predicted from; any padding moves positions that are counted by columns.
    """
    moved: set[SampleId] = set()
    wheres = ["", ""]
    for sample, pair in _row_pairs(evidence, "batch_inputs"):
        if not all("attention_mask" in row for row in pair) or pair[0]["input_ids"].shape != pair[1]["input_ids"].shape:
            return
        kept = [row["input_ids"][row["attention_mask"] != 0] for row in pair]
        if np.array_equal(kept[0], kept[1]) and not np.array_equal(
            pair[0]["attention_mask"], pair[1]["attention_mask"]
        ):
            moved.add(sample)
            wheres = [_where(row["attention_mask"]) for row in pair]
    if not moved:
        return
    between = sum("between" in where for where in wheres) == 1
    first_only = {"at the first token of an answer", "in turn 1"}
    parts = [evidence.confined(name, NOISE) for name in ("old_log_probs", "log_probs")]
    at_first = between and any(part is not None and part[0].text in first_only for part in parts)
    differing = _differing(evidence)
    rows_decide = differing <= moved and len(moved) < len(evidence.samples)
    if at_first or (rows_decide and differing):
        text = f"padding is {wheres[0]} in A and {wheres[1]} in B, in {len(moved)} rows"
        yield Explanation("padding-side", text, parameters={"a": wheres[0], "b": wheres[1], "rows": len(moved)})


def _where(attended: np.ndarray) -> str:
    held = np.flatnonzero(attended)
    if not held.size:
        return "everywhere"
    inside = (attended[held[0] : held[-1] + 1] == 0).any()
    parts = [
        name
        for name, there in (
            ("before the tokens", held[0] > 0),
            ("between them", inside),
            ("after them", held[-1] < len(attended) - 1),
        )
        if there
    ]
    return " and ".join(parts) or "nowhere"


def positions(evidence: Evidence) -> Iterator[Explanation]:
    """One side's position ids do not count its tokens one by one from 0."""
    # Rows that attend to more or less than their tokens have a fault of their own.
    pairs = [
        pair
        for sample, pair in _row_pairs(evidence, "batch_inputs")
        if all(
            {"position_ids", "attention_mask"} <= row.keys()
            and np.count_nonzero(row["attention_mask"]) == len(evidence.a.samples[sample].tokens)
            for row in pair
        )
    ]
    faults: tuple[tuple[str, Callable[[np.ndarray], bool]], ...] = (
        ("do not increase by one per token", lambda ids: bool((np.diff(ids) != 1).any())),
        ("do not start at 0", lambda ids: bool(ids.size and ids[0] != 0)),
    )
    for what, rule in faults:
        broken = [sum(rule(pair[n]["position_ids"][pair[n]["attention_mask"] != 0]) for pair in pairs) for n in (0, 1)]
        for (label, _), mine, other in zip(evidence.sides, broken, reversed(broken), strict=True):
            if mine and not other:
                text = f"{label}'s position ids {what}, in {mine} rows"
                yield Explanation("positions", text, parameters={"side": label, "rows": mine})
                return


def response_masks(evidence: Evidence) -> Iterator[Explanation]:
    """One side trains on different tokens from those in the masks of its own trajectories."""
    faults = [_mask_faults(side) for _, side in evidence.sides]
    for (label, _), mine, other in zip(evidence.sides, faults, reversed(faults), strict=True):
        if mine["padding-in-mask"] and mine["all"] == mine["faulty"] and not other["faulty"]:
            facts = {"side": label, "samples": mine["faulty"]}
            said = f"{label} trains on every column of the response, padding included, in {mine['faulty']} samples"
            yield Explanation("padding-in-mask", said, parameters=facts, together="response-mask")
            continue
        for name, text in sorted(_MASK_TEXTS.items(), key=lambda item: -mine[item[0]]):
            if mine[name] and not other[name]:
                facts = {"side": label, "samples": mine[name]}
                said = f"{label} {text}, in {mine[name]} samples"
                yield Explanation(name, said, parameters=facts, together="response-mask")


_MASK_TEXTS = {
    "padding-in-mask": "trains on padding after the response",
    "samples-masked-out": "leaves whole samples out of the loss",
    "untrained-in-mask": "trains on tokens that the mask of its trajectories excludes",
    "mask-lost": "does not train on tokens that the mask of its trajectories includes",
}


def _mask_faults(side: SideStep) -> Counter[str]:
    """How many samples have a mask that differs from their trajectory's, by kind of difference."""
    counted: Counter[str] = Counter()
    # What the loss uses decides, where it was recorded.
    rows, used_by_loss = (_inputs(side, kind, None) for kind in ("forward_data", "is_loss_debug"))
    for sample in side.samples.values() if rows or used_by_loss else ():
        mask = used_by_loss.get(sample.sample, {}).get("effective_valid")
        mask = rows.get(sample.sample, {}).get("response_mask") if mask is None else mask
        if mask is None:
            continue
        own = sample.loss_mask[sample.prompt_length :] != 0
        width = max(len(mask), len(own))
        used, meant = np.pad(mask != 0, (0, width - len(mask))), np.pad(own, (0, width - len(own)))
        extra, lost = used & ~meant, meant & ~used
        counted["faulty"] += bool((extra | lost).any())
        counted["all"] += bool(extra.any() and used.all())
        counted["padding-in-mask"] += bool(extra[len(own) :].any())
        counted["untrained-in-mask"] += bool(extra[: len(own)].any())
        counted["samples-masked-out"] += bool(lost.any() and not used.any())
        counted["mask-lost"] += bool(lost.any() and used.any())
    return counted


def sample_counts(evidence: Evidence) -> Iterator[Explanation]:
    """Samples that one side trains on twice, or not at all."""
    counts = []
    for _, side in evidence.sides:
        counter: Counter[SampleId] = Counter()
        for item in side.in_update(evidence.update):
            record = item.records.get("forward_data") or item.records.get("loss")
            counter.update(record.samples if record is not None else ())
        counts.append(counter)
    if not counts[0] or not counts[1]:
        return
    partner = {one.sample: other.sample for one, other in evidence.samples}
    in_a = Counter({partner.get(sample, sample): count for sample, count in counts[0].items()})
    for label, mine, other in (("B", counts[1], in_a), ("A", in_a, counts[1])):
        twice = [sample for sample, count in mine.items() if count > max(other[sample], 1)]
        never = [sample for sample in other if sample not in mine]
        facts = {"side": label, "repeated": len(twice), "missing": len(never)}
        if twice and (max(mine.values()) > 1 >= max(other.values())):
            text = f"{label} trains on {len(twice)} samples more than once per epoch, for example {twice[0]}"
            yield Explanation(
                "samples-repeated", text + (f", and never on {len(never)}" if never else ""), parameters=facts
            )
        elif never and not [sample for sample in mine if sample not in other]:
            text = f"{label} never trains on {len(never)} samples, for example {never[0]}"
            yield Explanation("samples-dropped", text, parameters=facts)


def passes_per_step(evidence: Evidence) -> Iterator[Explanation]:
    """The sides pass over the samples of a step, or divide them into optimizer steps, a different number of times."""
    updates = [{item.update for item in side.micros} for _, side in evidence.sides]
    epochs, steps = ([len({update[place] for update in each}) for each in updates] for place in (0, 1))
    for counts, words in ((epochs, "passes over the samples of a step"), (steps, "optimizer steps per pass")):
        fewer = evidence.sides[int(counts[1] < counts[0])][1]
        # A recording that ends within a step has not made all of it.
        if (
            counts[0] != counts[1]
            and 0 not in counts
            and any(step > evidence.step for step in fewer.side.steps("loss"))
        ):
            text = f"A makes {counts[0]} {words}, B {counts[1]}"
            yield Explanation("passes-per-step", text, parameters={"a": counts[0], "b": counts[1]})
            return


_SHARED = (attention, padding_side, positions)
HYPOTHESES = {
    "old_log_probs": _SHARED,
    "forward": (passes_per_step, sample_counts, response_masks, *_SHARED),
    "advantage": (sample_counts, response_masks),
    "loss": (passes_per_step, sample_counts),
    "gradient": (passes_per_step, sample_counts),
}
