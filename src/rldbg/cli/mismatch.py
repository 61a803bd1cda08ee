"""`rldbg mismatch`: why rollout and trainer give different log probs to the same tokens."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import show
from rldbg.cli.progress import progress
from rldbg.core import ExitCode, UsageError


@verb("mismatch")
@click.argument("run")
@click.argument("rollout", required=False)
@click.option("--step", "steps", multiple=True, type=int, help="Look only at this step. Repeatable.")
@click.option("--probe", "with_probe", is_flag=True, help="Run experiments: re-score samples, one factor at a time.")
@click.option("--samples", type=click.IntRange(1), default=8, show_default=True, help="Samples for --probe to score.")
@click.option("--engine", help="Engine for --probe to query: its address, or `embedded` for one on the same weights.")
@click.option(
    "--model", type=click.Path(path_type=Path), help="Model folder for --probe.  [default: the capsule of the step]"
)
@click.option("--layout", help="Layout of the recordings.  [default: detected]")
def command(
    run: str,
    rollout: str | None,
    steps: tuple[int, ...],
    with_probe: bool,
    samples: int,
    engine: str | None,
    model: Path | None,
    layout: str | None,
    as_json: bool,
) -> int:
    """Explain the gap between rollout and trainer log probs of RUN: shares per cause, and the tokens that show them.

    With a second recording, RUN's trainer is compared with the rollout of that one. Exit code 1 when they differ by
    more than rounding; 4 when they agree where both could be read, and some could not.

    \b
    rldbg mismatch RUN                     every step
    rldbg mismatch RUN --step 12 --probe   test the causes on the model
    """
    if (engine or model) and not with_probe:
        raise UsageError("--engine and --model are for experiments", "add --probe")
    if with_probe and rollout:
        raise UsageError("--probe takes one recording", "rldbg mismatch RUN --probe")
    if with_probe and len(steps) > 1:
        raise UsageError("--probe takes one step", "give --step once")
    from rldbg.mismatch import explain_mismatch, probe
    from rldbg.recording import open as open_recording
    from rldbg.reports.mismatch import to_terminal

    recording = open_recording(run, layout=layout)
    other = open_recording(rollout, layout=layout) if rollout else None
    probed = None
    with progress("comparing", "records read", as_json=as_json) as advance:
        for opened in (recording, other):
            if opened is not None:
                opened.on_read = advance
        report = explain_mismatch(recording, other, steps=steps or None)
        if with_probe:
            chosen = steps[0] if steps else None
            probed = probe(recording, step=chosen, samples=samples, engine=engine, checkpoint=model)
    document = {**report.to_dict(), **({"probe": probed.to_dict()} if probed else {})}
    show(document, as_json, lambda: to_terminal(report, probed))
    if not report.agrees:
        return ExitCode.FINDING
    return ExitCode.INCOMPLETE if report.findings else ExitCode.OK
