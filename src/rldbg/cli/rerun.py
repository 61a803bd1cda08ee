"""`rldbg rerun`: executes a recorded training step again, or a user's loss on a saved batch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rldbg.cli.application import verb
from rldbg.cli.output import show
from rldbg.core import ExitCode, UsageError

# `--noise` without a number; the noise of --loss otherwise.
_OF_STEP = "0"
_LOSS_NOISE = 0.3


@verb("rerun")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=0), help="Step to run again; with --loss, the first by default.")
@click.option(
    "--rank", type=click.IntRange(min=0), help="Run this rank only; the sum over ranks is taken from the recording."
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the recipe; with --loss, an argument of the loss (config.clip_ratio=0.1). Repeatable.",
)
@click.option("--pdb", "debugger", is_flag=True, help="Open pdb at the start of the step or of the loss.")
@click.option("--loss", metavar="module:function", help="Run this loss on a saved batch instead of a whole step.")
@click.option(
    "--model",
    metavar="PATH|tiny",
    help="--loss: compute log probs with this model, and gradients of its parameters. For a framework's step: the "
    "checkpoint saved after the previous step.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="--loss: device to run on.",
)
@click.option(
    "--reference",
    type=click.Choice(["grpo", "dapo", "ppo"]),
    help="--loss: exit with code 1 unless the loss equals this reference.",
)
@click.option(
    "--clip-low", type=click.FloatRange(min=0), help="--loss: clip range of the references.  [default: as published]"
)
@click.option(
    "--clip-high", type=click.FloatRange(min=0), help="--loss: clip range of the references.  [default: as published]"
)
@click.option(
    "--micro-batch",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="--loss: rows per forward pass of the model.",
)
@click.option(
    "--reduce",
    type=click.Choice(["mean", "sum"]),
    default="mean",
    show_default=True,
    help="--loss: how to reduce losses and gradients over ranks.",
)
@click.option(
    "--noise",
    type=click.FloatRange(min=0),
    is_flag=False,
    flag_value=_OF_STEP,
    help="Measure rounding: run the step in ways that must not matter, for compare. "
    "With --loss and a number: standard deviation of the noise at the second point.  [default: 0.3]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="--loss: seed of the noise.")
@click.option(
    "--random-advantages",
    type=click.IntRange(min=0),
    metavar="SEED",
    help="--loss: use random advantages with this seed.",
)
def command(
    run: Path,
    step: int | None,
    rank: int | None,
    changes: tuple[str, ...],
    debugger: bool,
    loss: str | None,
    noise: float | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Run one recorded policy step of RUN again, in one process, on CPU, without Ray or inference.

    A step with a capsule (debug.capsule=true) is executed whole; without one, the stages that the recording allows.
    With --loss, RUN is a saved batch: the loss runs on it with autograd and is compared with GRPO, DAPO and PPO.

    \b
    rldbg rerun RUN --step 5                                      the same?
    rldbg rerun RUN --step 5 --set algorithm.entropy_coeff=0.01   what if?
    rldbg rerun RUN --step 5 --loss my_loss:compute               your loss
    """
    if loss is not None:
        options["noise"] = _LOSS_NOISE if noise is None else noise
        if rank is not None:
            raise UsageError("--rank is for whole steps, not for --loss", "leave it out")
        options["arguments"] = dict(_argument(change) for change in changes)
        return _rerun_loss(run, step, loss, debugger, options, as_json)
    if step is None:
        raise UsageError("--step is missing", "give --step N, or --loss module:function for a saved batch")
    if noise is not None:
        return _measure_noise(run, step, as_json)
    from rldbg.launch import framework_of

    if framework_of(run):
        if rank is not None or changes:
            raise UsageError("--rank and --set are for steps of rldbg's own trainer", "change the command instead")
        return _rerun_framework(run, step, debugger, options["model"], as_json)
    if options["model"]:
        from rldbg.recording import open as open_recording

        open_recording(run)  # Raises a clear error for a missing folder.
        raise UsageError(
            "--model is for --loss and for steps of a framework",
            "leave it out: a step of rldbg's own trainer has its model in the capsule",
        )
    from rldbg.reports.rerun import conclusion, to_terminal
    from rldbg.trainer.rerun import StageVerdict, rerun

    report = rerun(run, step, rank=rank, changes=changes, debugger=debugger)
    show(report.to_dict(), as_json, lambda: [to_terminal(report), conclusion(report)])
    if all(stage.verdict in (StageVerdict.NOT_EXECUTED, StageVerdict.NOT_COMPARED) for stage in report.stages):
        return ExitCode.INCOMPLETE
    return ExitCode.OK if report.reproduced or changes else ExitCode.FINDING


def _argument(change: str) -> tuple[str, Any]:
    import yaml

    name, separator, value = change.partition("=")
    if not separator or not name:
        raise UsageError(f"invalid argument: {change!r}", "write --set NAME=VALUE")
    return name, yaml.safe_load(value)


def _measure_noise(run: Path, step: int, as_json: bool) -> int:
    from rldbg.recording import open as open_recording
    from rldbg.trainer.rerun import measure_noise

    folders = measure_noise(open_recording(run), step)
    lines = [f"recorded {folder}" for folder in folders] + [f"rldbg compare {run} OTHER takes them as noise"]
    show({"recordings": [str(folder) for folder in folders]}, as_json, lambda: lines)
    return ExitCode.OK


def _rerun_framework(run: Path, step: int, debugger: bool, checkpoint: str | None, as_json: bool) -> int:
    """The framework's own trainer runs the step, and what it records is compared with the recording."""
    from rldbg.analysis import compare
    from rldbg.launch import rerun_step
    from rldbg.recording import OTHER_MODEL
    from rldbg.recording import open as open_recording
    from rldbg.reports.comparison import to_terminal

    again = rerun_step(run, step, debugger=debugger, checkpoint=Path(checkpoint) if checkpoint else None)
    a, b = open_recording(run), open_recording(again.folder)
    # The policy's update is made again, and not that of a critic.
    result = compare(a, b, steps=[step], kinds=again.kinds, first_update=True, num_micros=OTHER_MODEL)
    show(result.to_dict() | {"source": again.source}, as_json, lambda: [again.source, *to_terminal([result])])
    return ExitCode.FINDING if result.verdict == "different" else ExitCode.OK


def _rerun_loss(
    run: Path, step: int | None, loss: str, debugger: bool, options: Mapping[str, Any], as_json: bool
) -> int:
    from rldbg.replay.loss import LossRequest, rerun_loss
    from rldbg.reports.loss import to_lines

    report, rank = rerun_loss(LossRequest(run, loss, step=step, pdb=debugger, **options), load_model=_load_model)
    if rank == 0:
        show(report.to_dict(), as_json, lambda: to_lines(report))
    return ExitCode.OK if report.ok else ExitCode.FINDING


def _load_model(name: str, device: Any) -> Any:
    """The model in evaluation mode: dropout would make every loss a different one."""
    if name == "tiny":
        from rldbg.trainer import Recipe, build_model, load_tokenizer

        recipe = Recipe()
        vocabulary = load_tokenizer("tiny").vocabulary_size
        return build_model(recipe.model, vocabulary_size=vocabulary, seed=recipe.seed).to(device)
    if not (Path(name) / "config.json").is_file():
        raise UsageError(
            f"no model at {name!r}: config.json is missing", "give --model a folder with a Hugging Face model"
        )
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(name, local_files_only=True).eval().to(device)
