"""`bisect_runs`: one recorded sample through two models, each of a capsule or a folder; or through one, and a dump."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rldbg.bisection.comparing import BisectReport, bisect_captures
from rldbg.bisection.dumps import is_dump, read_dump
from rldbg.bisection.module_outputs import Capture, capture_pass
from rldbg.bisection.operations import first_operation
from rldbg.core import IncompleteDataError, UsageError
from rldbg.recording import Recording
from rldbg.recording import open as open_recording
from rldbg.replay import Trajectory, trajectories_of
from rldbg.trainer import Capsule, capsule_model, changed_recipe, choose_device
from rldbg.weights import is_adapter, read_adapter


def bisect_runs(
    a: str,
    b: str,
    *,
    step: int,
    sample: str | None = None,
    tokens_of: str | None = None,
    changes_a: Sequence[str] = (),
    changes_b: Sequence[str] = (),
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> BisectReport:
    """Both sides see the tokens of `tokens_of`, or of the first side that is a recording.

    `changes` are of one side: recipe overrides of a capsule, as `model.dtype=bfloat16`; of a folder what transformers
    loads it with, as `dtype=bfloat16`.
    """
    place = choose_device(device)
    trajectory = _sample(open_recording(tokens_of or _first_recording(a, b)), step, sample)
    inputs = _inputs(trajectory, place)
    model = _model(a, step, changes_a).to(place)
    first = capture_pass(model, inputs, _loss(trajectory, place), title=a)
    exact = capture_pass(deepcopy(model).double(), inputs, _loss(trajectory, place), title="exact")
    # A copy in double precision is twice the model: it must be gone before B is loaded.
    exact.parameters.clear()
    if is_dump(Path(b)):
        return bisect_captures(first, _same_tokens(read_dump(Path(b)), trajectory), exact)
    model_b = _model(b, step, changes_b).to(place)
    report = bisect_captures(first, capture_pass(model_b, inputs, _loss(trajectory, place), title=b), exact)
    if report.forward is None or report.parameters:
        return report
    place_b = report.forward.other.rpartition(".")[0] if report.forward.given else report.forward.other
    inside = first_operation(model, model_b, report.forward.place, place_b, inputs)
    return replace(report, operation=inside)


def _is_model(path: str) -> bool:
    return (Path(path) / "config.json").is_file() or is_adapter(Path(path))


def _first_recording(a: str, b: str) -> str:
    found = next((path for path in (a, b) if not _is_model(path) and not is_dump(Path(path))), None)
    if found is None:
        raise UsageError("neither side is a recording", "give the recording that has the sample with --tokens-of RUN")
    return found


def _model(path: str, step: int, changes: Sequence[str]) -> Any:
    if _is_model(path):
        return _of_folder(Path(path), changes)
    capsule = Capsule(_with_capsule(open_recording(path), step), step)
    return capsule_model(capsule, changed_recipe(capsule.recipe, changes))


def _of_folder(folder: Path, changes: Sequence[str]) -> Any:
    import yaml
    from transformers import AutoModelForCausalLM

    wrong = next((change for change in changes if "=" not in change), None)
    if wrong is not None:
        raise UsageError(f"invalid change: {wrong!r}", "give key=value, for example dtype=bfloat16")
    settings = {key: yaml.safe_load(value) for key, _, value in (change.partition("=") for change in changes)}
    adapter = read_adapter(folder) if is_adapter(folder) else None
    model = AutoModelForCausalLM.from_pretrained(
        str(adapter.base if adapter else folder), local_files_only=True, use_safetensors=True, **settings
    ).eval()
    if adapter is not None:
        known = dict(model.named_parameters())
        for name, value in adapter.merged({name: value.detach() for name, value in known.items()}).items():
            known[name].data.copy_(value)
    return model


def _with_capsule(recording: Recording, step: int) -> Recording:
    if step not in recording.steps("capsule"):
        raise IncompleteDataError(
            f"{recording.title} has no capsule of step {step}, so there is no model to run",
            "record with debug.capsule: true, or give the step's model folder as this side, and the recording with "
            "--tokens-of RUN",
        )
    return recording


def _sample(recording: Recording, step: int, wanted: str | None) -> Trajectory:
    kinds = ("capsule", "trajectory", "prepared_trajectories")
    kind = next((kind for kind in kinds if step in recording.steps(kind)), None)
    if kind is None:
        raise IncompleteDataError(f"{recording.title} has no samples of step {step}", "rldbg show lists its steps")
    known = [item for record in recording.records(kind, step) for item in trajectories_of(record)]
    trained = [item for item in known if np.any(item.loss_mask[1:])]
    found = next((item for item in trained if wanted in (None, str(item.sample))), None)
    if found is None:
        some = ", ".join(str(item.sample) for item in trained[:4])
        raise IncompleteDataError(f"step {step} has no sample {wanted}", f"it has {some} ...")
    return found


def _inputs(trajectory: Trajectory, device: Any) -> dict[str, Any]:
    import torch

    ids = torch.from_numpy(np.array(trajectory.tokens, dtype=np.int64))[None].to(device)
    positions = torch.arange(ids.shape[1], device=device)[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": positions, "use_cache": False}


def _loss(trajectory: Trajectory, device: Any) -> Any:
    """The mean log prob of the trained tokens, with the sign of a loss: the same on both sides."""
    import torch

    tokens = torch.from_numpy(np.array(trajectory.tokens, dtype=np.int64)).to(device)
    trained = torch.from_numpy(np.flatnonzero(trajectory.loss_mask)).to(device)
    trained = trained[trained > 0]

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
