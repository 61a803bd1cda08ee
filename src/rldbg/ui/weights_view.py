"""The JSON behind the weights of a run: which replica holds what, by version and layer, and the first wrong tensor."""

import re
from collections import Counter
from typing import Any

from rldbg.core import IncompleteDataError
from rldbg.recording import Recording
from rldbg.weights import WeightFault, faults_by_replica, grouped_faults, snapshots_of

_LAYER = re.compile(r"(?:^|\.)(layers?|h|blocks?)\.(\d+)\.")
_SHOWN = 200


def weights_view(recording: Recording) -> dict[str, Any]:
    """One cell per version and replica: tensors held, how many are wrong, and in which layers."""
    snapshots = list(snapshots_of(recording))
    if not snapshots:
        raise IncompleteDataError(
            f"{recording.title} has no record of what was sent to the engine or what it holds",
            "record the kind `weights`: rldbg run --record weights -- COMMAND",
        )
    cells: list[dict[str, Any]] = []
    faults: list[WeightFault] = []
    for held, wrong in faults_by_replica(snapshots):
        faults += grouped_faults(wrong)
        layers = Counter(layer_of(fault.name) for fault in wrong)
        cells.append(
            {
                "version": held.version,
                "replica": held.replica,
                "tensors": len(held.by_name()),
                "wrong": len(wrong),
                "layers": dict(layers),
            }
        )
    names = dict.fromkeys(layer_of(item.name) for snapshot in snapshots for item in snapshot.tensors)
    return {
        "sent": [
            {"version": item.version, "tensors": len(item.by_name())} for item in snapshots if item.side == "sent"
        ],
        "cells": cells,
        "layers": list(names),
        "faults": [
            {"where": fault.where, "how": fault.how, "text": fault.text, "tensors": fault.tensors}
            for fault in faults[:_SHOWN]
        ],
        "left_out": max(len(faults) - _SHOWN, 0),
    }


def layer_of(name: str) -> str:
    """`layer 7` for a tensor in a layer; else the tensor's name without its last part."""
    found = _LAYER.search(name)
    return f"layer {found[2]}" if found else name.rpartition(".")[0] or name
