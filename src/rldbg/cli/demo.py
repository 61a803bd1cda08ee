"""`rldbg demo`: the tour. It runs the commands that it prints."""

import secrets
import time
from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_line
from rldbg.core import ExitCode
from rldbg.demo import ANSWER, REPORT, STOPS, TourStage, hide_bug


@verb("demo")
@click.option("--run", "run_folder", type=click.Path(path_type=Path), help="Folder for the runs.  [default: a new one]")
@click.option("--only", type=click.Choice([stop.name for stop in STOPS]), help="Run only this part of the tour.")
@click.option("--bug", metavar="NAME", help="Plant a bug from `rldbg zoo list`, or a `random` one, for you to find.")
def command(run_folder: Path | None, only: str | None, bug: str | None, as_json: bool) -> int:
    """Take the tour: record, find a bug, rerun a step, stop ranks, explain a hang and a crash, look at a report.

    Each command is printed and can be repeated. Ends with the address of the report.

    \b
    rldbg demo                the whole tour, about three minutes
    rldbg demo --bug random   find a bug on your own
    """
    from rldbg.core import Run
    from rldbg.trainer.zoo import BUGS, find_bug

    choice = secrets.choice([each.name for each in BUGS if not each.overrides]) if bug == "random" else bug
    hidden = find_bug(choice) if choice else None
    run, started = Run.create(name="demo", path=run_folder), time.monotonic()
    stage = TourStage(run.path.absolute(), say=(lambda _: None) if as_json else print_line, quiet=as_json)
    stage.say(f"The runs of this tour are in {run.path}; each command can be repeated there.")
    if hidden is not None:
        hide_bug(stage, hidden.name, hidden.story)
        stage.say(
            f"`second` has a bug. Look for it: cd {run.path}; rldbg check second; rldbg compare first second\n"
            f"Then compare with the answer: cat {ANSWER}"
        )
    for stop in () if hidden is not None else STOPS:
        if only in (None, stop.name):
            stage.stop = stop.name
            stage.say(f"\n── {stop.title}\n{stop.why}")
            stop.play(stage)
    seconds = time.monotonic() - started
    page = run.path.absolute() / REPORT / "index.html"
    address = page.as_uri() if page.is_file() else None
    if as_json:
        commands = [each._asdict() for each in stage.visited]
        print_json({"run": str(run.path), "seconds": seconds, "commands": commands, "report": address})
        return ExitCode.OK
    print_line(f"\nThe tour took {seconds:.0f} s. Look at the runs in a browser: cd {run.path}; rldbg ui . --open")
    if address:
        print_line(f"The report of the run with the bug: {address}")
    return ExitCode.OK
