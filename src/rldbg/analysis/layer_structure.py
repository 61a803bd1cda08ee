"""Whether gradients and updates of some layer differ in a way that noise does not: larger or smaller, time after time.

Two clean sides may be exchanged, which negates the logarithm of the ratio of their norms: it is as often above 0 as
below, in each layer and compared with the other layers. What is independent is an update, as long as the parameters
have not drifted apart; those that have lean the same way in each update, in a repetition as well. So only what leans
several times as far as any layer of the repetitions counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from rldbg.analysis.flat_arrays import give_back
from rldbg.analysis.noise.tensors import PARAMETER, TensorHistory, tensor_histories, tensor_pair
from rldbg.analysis.side import Side
from rldbg.analysis.structure import FEWEST, TENSOR_KINDS, Structure, Test, rare_ones, signed_rank
from rldbg.analysis.tolerances import Update

_MARGIN = 4.0
_LAYER = re.compile(r"^.*?\.\d+(?=\.|$)")

_Norms = dict[str, dict[Update, np.ndarray]]


def layer_structures(a: Side, b: Side, repetitions: Sequence[Side], steps: Sequence[int]) -> list[Structure]:
    """The layers in which gradients or updates of B lean, and those of the repetitions do not."""
    found = []
    for kind in TENSOR_KINDS:
        rare = rare_ones(kind, _tests_of_pair(a, b, steps, kind))
        if rare:
            noise = [abs(test[1]) for side in repetitions for test in _tests_of_pair(a, side, steps, kind)]
            found += [item for item in rare if abs(item.effect) > _MARGIN * max(noise, default=0.0)]
    return found


def _tests_of_pair(a: Side, b: Side, steps: Sequence[int], kind: str) -> list[Test]:
    return list(shapes_of_layers(_norms(tensor_histories(a, b, steps), kind)))


def _norms(histories: Iterable[TensorHistory], kind: str) -> _Norms:
    """The squared norms of both sides' gradients, or of what updates moved, by layer and update."""
    squares: _Norms = defaultdict(lambda: defaultdict(lambda: np.zeros(2)))
    for history in histories:
        blocks = history.parameters if kind == PARAMETER else history.gradients
        before: tuple[np.ndarray, np.ndarray] | None = None
        for update in sorted(blocks):
            block = blocks[update]
            values = tensor_pair(block, kind)
            layer = layer_of(str(block.a.fields.get("param_name", block.a.key.micro)))
            give_back([record.fields[kind] for record in (block.a, block.b)])
            if kind == PARAMETER:
                values, before = values if before is None else (values[0] - before[0], values[1] - before[1]), values
                if update == min(blocks):
                    continue
            with np.errstate(all="ignore"):
                squares[layer][update] += [float(np.square(part).sum()) for part in values]
    return squares


def layer_of(name: str) -> str:
    """`model.layers.3` of `model.layers.3.mlp.up_proj.weight`; the module of a parameter outside any layer."""
    found = _LAYER.match(name)
    return found.group() if found else name.rpartition(".")[0] or name


def shapes_of_layers(norms: _Norms) -> Iterator[Test]:
    """All layers together against 0, and each against the middle of the others."""
    leans = {
        layer: {update: lean for update, both in of.items() if (lean := _lean(both)) is not None}
        for layer, of in norms.items()
    }
    by_update: dict[Update, dict[str, float]] = defaultdict(dict)
    for layer, of in leans.items():
        for update, lean in of.items():
            by_update[update][layer] = lean
    together = np.asarray([float(np.median(list(of.values()))) for of in by_update.values()])
    if len(together) >= FEWEST:
        yield "is larger or smaller in all layers", float(np.median(together)), signed_rank(together)
    for layer in leans if len(leans) > 2 else ():
        apart = np.asarray(
            [
                of[layer] - float(np.median([lean for name, lean in of.items() if name != layer]))
                for of in by_update.values()
                if layer in of and len(of) > 2
            ]
        )
        if len(apart) >= FEWEST:
            yield f"is different in {layer}", float(np.median(apart)), signed_rank(apart)


def _lean(squares: np.ndarray) -> float | None:
    """The logarithm of the ratio of two norms; None where there is none."""
    return float(np.log(squares[1] / squares[0]) / 2) if np.isfinite(squares).all() and squares.min() > 0 else None
