"""`rldbg train`: run the embedded trainer on a recipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import console, print_note, show
from rldbg.cli.record_option import RecordingCommand, record_option


@verb("train", cls=RecordingCommand, context_settings={"ignore_unknown_options": True})
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1)
@click.option("--steps", type=click.IntRange(min=1), help="Number of steps, instead of the recipe's.")
@click.option("--run", "run_folder", type=click.Path(path_type=Path), help="Run folder.  [default: a new one]")
@record_option
@click.option("--in-process", is_flag=True, help="Train in this process: no Ray, no workers.")
@click.option(
    "--resume", type=click.Path(path_type=Path), help="Resume from a checkpoint, or from the newest one of a run."
)
@click.option("--allow-partial", is_flag=True, help="In a replay, skip samples that were not recorded.")
def command(
    recipe: Path,
    overrides: tuple[str, ...],
    steps: int | None,
    run_folder: Path | None,
    record: str | None,
    in_process: bool,
    resume: Path | None,
    allow_partial: bool,
    as_json: bool,
) -> int:
    """Train on RECIPE, with Hydra-style OVERRIDES: key=value, +key=value, ++key=value, ~key.

    RECIPE is a YAML file, or the name of a packaged recipe: `arithmetic` teaches a tiny model one-digit
    arithmetic on two CPU cores in about a minute.

    \b
    rldbg train arithmetic --in-process --record                     without Ray
    rldbg train arithmetic --steps 10 algorithm.entropy_coeff=0.01   one key
    """
    from rldbg.cli.profile import asked_by_variables, profile_this_command
    from rldbg.core import Run
    from rldbg.recording import record_overrides
    from rldbg.trainer import Reporting, check_model, read_recipe, train

    if asked_by_variables():
        return profile_this_command(run_folder)

    chosen = [f"++steps={steps}"] if steps is not None else []
    chosen += ["++cluster.in_process=true"] if in_process else []
    # What --record enables, an override can disable again.
    recorded = record_overrides(record) if record is not None else []
    loaded = read_recipe(recipe, [*recorded, *overrides, *chosen], allow_partial=allow_partial)
    check_model(loaded.recipe.model)  # before there is a folder of a run that cannot begin
    run = Run.create(name=loaded.recipe.name, path=run_folder)
    print_note(f"run folder: {run.path}")
    with _live_line(loaded.recipe.steps) as on_step:
        result = train(loaded, run, resume=resume, reporting=Reporting(on_step, print_note))
    lines = [f"{result.steps} steps: success_rate {result.metrics.get('success_rate', float('nan')):.3f}"]
    lines.append(f"run: {result.run}")
    if result.recording:
        lines.append(f"recording: {result.recording}   (rldbg show {result.run})")
    show(result.to_dict(), as_json, lambda: lines)
    return 0


@contextmanager
def _live_line(steps: int) -> Iterator[Callable[[int, dict[str, float]], None]]:
    """A line that is updated on a terminal; elsewhere eight lines per run."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield (
            lambda step, metrics: (
                print_note(_line(step, steps, metrics)) if (step + 1) % max(steps // 8, 1) == 0 else None
            )
        )
        return
    with screen.status("starting ...") as status:
        yield lambda step, metrics: status.update(_line(step, steps, metrics))


def _line(step: int, steps: int, metrics: dict[str, float]) -> str:
    return (
        f"step {step + 1}/{steps}  success {metrics['success_rate']:.3f}  reward {metrics['reward/mean']:.3f}  "
        f"loss {metrics['loss']:+.4f}  entropy {metrics['entropy']:.3f}  {metrics['time/step']:.2f} s"
    )
