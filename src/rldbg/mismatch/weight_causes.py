"""Causes in the engine's weights: those it started with, those of an older version, those one replica never got."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from rldbg.analysis import NOISE, route_agreement
from rldbg.mismatch.claims import Claim, Unexplained, whole
from rldbg.mismatch.token_table import TokenTable

_FEWEST = 8


def wrong_tensors(state: Unexplained) -> Iterator[Claim]:
    """Fingerprints say that a replica holds other weights than it was sent; its tokens of that version show it."""
    table = state.table
    for step, side in table.sides.items():
        faults = (side.side.weight_faults or {}).get(step, [])
        for replica in dict.fromkeys(fault.replica for fault in faults):
            here = [place.step == step and place.replica in (None, str(replica)) for place in table.places]
            chosen = state.open & table.of_samples(here)
            mine = [fault for fault in faults if fault.replica == replica]
            if (chosen & (state.size > NOISE)).any():
                more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
                text = f"{mine[0].where} {mine[0].text}{more}"
                yield whole(f"held-{mine[0].how}", text, chosen, replica=replica, version=step)


def not_synced(state: Unexplained) -> Iterator[Claim]:
    """The rollout's log probs are those of the reference, which is the model that training started from."""
    table = state.table
    reference = table.values("ref_log_probs")
    # Before the first update the trainer's are the reference's as well, as precisely as they are stored (bfloat16).
    moved = np.abs(table.trainer - reference) > NOISE + 2.0**-8 * np.abs(reference)
    told = state.apart & np.isfinite(reference) & moved
    equal = told & (np.abs(table.rollout - reference) <= NOISE)
    # Per replica or version at most some tokens are affected; of a sample, all must be.
    for_sample = _whole_samples(state, equal, told)
    if for_sample.sum() < _FEWEST:
        return
    text = f"{for_sample.sum()} tokens have the reference model's log probs"
    if _trains_adapters(table):
        yield whole("lora-not-delivered", f"{text}: the LoRA adapter is not in the engine, or not merged", for_sample)
    else:
        yield whole("weights-not-synced", f"{text}: the engine has its starting weights", for_sample)


def _trains_adapters(table: TokenTable) -> bool:
    """Whether what is trained has the names of adapters; they stand alone, so that a few tell."""
    for step, side in table.sides.items():
        for kind in ("gradient", "param"):
            some = islice(side.side.records(kind, step), _FEWEST)
            if any("lora_" in str(record.fields.get("param_name", "")) for record in some):
                return True
    return False


def older_version(state: Unexplained) -> Iterator[Claim]:
    """Tokens of older weights differ more than tokens of the current ones; the surplus is the lag's."""
    table = state.table
    late, fresh = state.open & (table.lag > 0), state.open & (table.lag == 0)
    if not (late & (state.size > NOISE)).any():
        return
    floor = float(state.size[fresh].mean()) if fresh.any() else 0.0
    mean = float(state.size[late].mean())
    if mean <= 2 * floor:
        return
    rows = np.flatnonzero(late)
    lags = np.unique(table.lag[late])
    behind = f"{lags[0]}" if len(lags) == 1 else f"{lags[0]} to {lags[-1]}"
    beside = f"; tokens of current weights differ by {floor:.3g}" if fresh.any() else ""
    text = (
        f"{late.sum()} tokens were made with weights {behind} versions old and differ by {mean:.3g} on average{beside}"
    )
    yield Claim("policy-version", text, rows, np.full(len(rows), floor), {"lags": lags.tolist()})


def other_experts(state: Unexplained) -> Iterator[Claim]:
    """Tokens after one that went through other experts in the engine differ more than the rest; the excess is
    attributed to it."""
    table = state.table
    behind = np.zeros(len(table), dtype=bool)
    for step, side in table.sides.items():
        found = route_agreement(side.side, step)
        for number, place in enumerate(table.places):
            apart = found.apart.get(place.tokens.sample) if found is not None and place.step == step else None
            if apart is not None and apart.size:
                behind[table.rows(number)] = table.position[table.rows(number)] > apart[0]
    chosen, others = state.open & behind, state.open & ~behind
    if not (chosen & (state.size > NOISE)).any():
        return
    floor = float(state.size[others].mean()) if others.any() else 0.0
    mean = float(state.size[chosen].mean())
    if mean > 2 * floor:
        text = f"{chosen.sum()} tokens follow one that other experts computed in the engine; they differ by {mean:.3g}"
        rows = np.flatnonzero(chosen)
        yield Claim("routing-differs", f"{text}, others by {floor:.2g}", rows, np.full(len(rows), floor))


def one_replica(state: Unexplained) -> Iterator[Claim]:
    """All of the gap comes from some replicas, while others with the same settings agree with the trainer."""
    table = state.table
    names = table.of_samples([place.replica or "" for place in table.places])
    means = {name: float(state.size[state.open & (names == name)].mean()) for name in set(names[state.open].tolist())}
    if len(means) < 2 or "" in means:
        return
    floor = min(means.values())
    bad = sorted(name for name, mean in means.items() if mean > max(10 * floor, 10 * NOISE))
    if bad:
        rows = np.flatnonzero(state.open & np.isin(names, bad))
        if len(np.unique(table.place[rows])) >= 2:
            best = min(means, key=lambda name: means[name])
            text = (
                f"replica {', '.join(bad)} differs from the trainer by {means[bad[0]]:.3g} on average, replica {best} "
                f"by {floor:.2g}: it holds other weights or has other settings"
            )
            yield Claim("one-replica", text, rows, np.full(len(rows), floor), {"replicas": bad})


def _whole_samples(state: Unexplained, fits: np.ndarray, told: np.ndarray) -> np.ndarray:
    count = len(state.table.places)
    fitting = np.bincount(state.table.place[fits], minlength=count)
    all_of = np.bincount(state.table.place[told], minlength=count)
    chosen: np.ndarray = fits & ((fitting == all_of) & (all_of > 0))[state.table.place]
    return chosen


RULES = (wrong_tensors, other_experts, not_synced, older_version, one_replica)
