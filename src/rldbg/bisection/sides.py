"""`bisect_runs`: one recorded sample through the models of two capsules, or of one and a dump."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.bisection.comparing import BisectReport, bisect_captures
from rldbg.bisection.dumps import is_dump, read_dump
from rldbg.bisection.module_outputs import Capture, capture_pass
from rldbg.bisection.operations import first_operation
from rldbg.core import IncompleteDataError
from rldbg.recording import open as open_recording
from rldbg.replay import Trajectory
from rldbg.trainer import Capsule, capsule_model, changed_recipe


def bisect_runs(
    a: str,
    b: str,
    *,
    step: int,
    sample: str | None = None,
    changes_a: Sequence[str] = (),
    changes_b: Sequence[str] = (),
) -> BisectReport:
    """Both sides see A's tokens. `changes` are recipe overrides of one side, as `model.dtype=bfloat16`."""
    capsule = Capsule(open_recording(a), step)
    trajectory = _sample(capsule, sample)
    model = capsule_model(capsule, changed_recipe(capsule.recipe, changes_a))
    inputs = _inputs(trajectory)
    first = capture_pass(model, inputs, _loss(trajectory), title=a)
    exact = capture_pass(deepcopy(model).double(), inputs, _loss(trajectory), title="exact")
    if is_dump(Path(b)):
        return bisect_captures(first, _same_tokens(read_dump(Path(b)), trajectory), exact)
    other = Capsule(open_recording(b), step)
    model_b = capsule_model(other, changed_recipe(other.recipe, changes_b))
    report = bisect_captures(first, capture_pass(model_b, inputs, _loss(trajectory), title=b), exact)
    if report.forward is None or report.parameters:
        return report
    place_b = report.forward.other.rpartition(".")[0] if report.forward.given else report.forward.other
    inside = first_operation(model, model_b, report.forward.place, place_b, inputs)
    return replace(report, operation=inside)


def _sample(capsule: Capsule, wanted: str | None) -> Trajectory:
    known = [item for rank in capsule.ranks for item in capsule.rank(rank).trajectories]
    found = next((item for item in known if wanted in (None, str(item.sample))), None)
    if found is None:
        some = ", ".join(str(item.sample) for item in known[:4])
        raise IncompleteDataError(f"step {capsule.step} has no sample {wanted}", f"it has {some} ...")
    return found


def _inputs(trajectory: Trajectory) -> dict[str, Any]:
    import torch

    ids = torch.from_numpy(np.array(trajectory.tokens, dtype=np.int64))[None]
    positions = torch.arange(ids.shape[1])[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": positions, "use_cache": False}


def _loss(trajectory: Trajectory) -> Any:
    """The mean log prob of the trained tokens, with the sign of a loss: the same on both sides."""
    import torch

    tokens = torch.from_numpy(np.array(trajectory.tokens, dtype=np.int64))
    trained = torch.from_numpy(np.flatnonzero(trajectory.loss_mask))

    def loss(logits: Any) -> Any:
        wide = logits[0] if logits.dtype == torch.float64 else logits[0].float()
        log_probs = torch.log_softmax(wide[trained - 1], -1)
        return -log_probs.gather(-1, tokens[trained][:, None]).mean()

    return loss


def _same_tokens(dump: Capture, trajectory: Trajectory) -> Capture:
    """An engine's outputs have no batch axis and may lack the last token; what has other sizes is left out."""
    length = len(trajectory.tokens)
    dump.forward = [item for item in dump.forward if length in item.shape]
    if not dump.forward:
        raise IncompleteDataError(
            f"{dump.title} has no output for {length} tokens", "dump a pass over the same sample without padding"
        )
    return dump
