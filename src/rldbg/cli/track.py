"""`rldbg track`: log what is found in each step to experiment trackers and Prometheus."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_line, print_note, to_json
from rldbg.cli.progress import progress
from rldbg.core import ExitCode, IncompleteDataError, UsageError

if TYPE_CHECKING:
    from rldbg.tracking import RecordedSteps
    from rldbg.trainer import Tracker

_TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
_LOOK_EVERY_S = 2.0


@verb("track")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--to", "trackers", multiple=True, type=click.Choice(_TRACKERS), help="Log to this tracker. Repeatable.")
@click.option("--prometheus", "port", type=click.IntRange(0, 65535), help="Serve /metrics on this port; 0: a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address for --prometheus.")
@click.option("--follow", is_flag=True, help="Continue until the run has ended or Ctrl-C is pressed.")
@click.option("--project", default="rldbg", show_default=True, help="Project or experiment in the tracker.")
@click.option("--name", help="Name of the run in the tracker.  [default: the folder's name]")
@click.option("--layout", help="Layout of the recording.  [default: detected]")
@click.option("--grafana", is_flag=True, help="Print a Grafana dashboard for --prometheus, then exit.")
def command(
    path: Path | None,
    trackers: tuple[str, ...],
    port: int | None,
    host: str,
    follow: bool,
    project: str,
    name: str | None,
    layout: str | None,
    grafana: bool,
    as_json: bool,
) -> int:
    """Log what is found in each step of RUN: check results, metrics, the gap of rollout and trainer by cause, noise.

    \b
    rldbg track RUN --to tensorboard              into RUN/logs/tensorboard
    rldbg track RUN --to wandb --follow           while it trains
    rldbg track RUN --prometheus 9464 --follow    newest step at :9464/metrics
    """
    from rldbg.tracking import RecordedSteps, grafana_dashboard

    if grafana:
        print_line(to_json(grafana_dashboard()))
        return ExitCode.OK
    if path is None:
        raise UsageError("track needs a run", "rldbg track RUN --to tensorboard, or rldbg track --grafana")
    if not trackers and port is None:
        raise UsageError("no tracker given", "add --to tensorboard, or --prometheus 9464")
    if port is not None and not follow:
        raise UsageError("--prometheus is for a running job", "add --follow")
    if not follow and not path.exists():
        raise UsageError(f"{path}: no such folder", "give a run or a recording; --follow waits until it exists")
    board = _Board(name or path.resolve().name, path)
    # Some trackers print; stdout is for the result.
    with redirect_stdout(sys.stderr), ExitStack() as stack:
        logs = [stack.enter_context(_opened(tracker, path, project, board.run)) for tracker in trackers]
        if port is not None:
            print_note(f"metrics: {stack.enter_context(_served(board, host, port))}")
        steps = RecordedSteps(path, layout=layout)
        with progress("logging", "steps", as_json=as_json) as advance:
            done = _log(steps, logs, board, follow, advance=advance)
    if not done:
        raise IncompleteDataError(f"{path} has no recorded step", "record it: rldbg run --record")
    where = ", ".join([*trackers, *(["prometheus"] if port is not None else [])])
    document = {"steps": done, "last_step": board.step, "numbers": board.numbers, "trackers": list(trackers)}
    print_json(document) if as_json else print_line(f"{done} steps logged to {where}")
    return ExitCode.OK


class _Board:
    """The newest step, for Prometheus; the states of processes are asked at each scrape."""

    def __init__(self, run: str, folder: Path) -> None:
        self.run = run
        self.step: int | None = None
        self.numbers: dict[str, float] = {}
        self._folder = folder

    def text(self) -> str:
        from rldbg.tracking import exposition

        return exposition(self.run, self.step, self.numbers, self._states())

    def _states(self) -> dict[str, int]:
        from collections import Counter

        from rldbg.core import RldbgError
        from rldbg.live import BrokerClient, is_alive

        if not is_alive(self._folder):
            return {}
        try:
            with BrokerClient(self._folder) as client:
                return dict(Counter(process["state"] for process in client.request("ps")["processes"]))
        except RldbgError:  # it ended meanwhile
            return {}


def _log(
    steps: "RecordedSteps",
    logs: "list[Tracker]",
    board: _Board,
    follow: bool,
    wait: Callable[[float], None] = time.sleep,
    advance: Callable[[], None] = lambda: None,
) -> int:
    from rldbg.tracking import StepMeasurements

    done = 0
    while True:
        ended = not follow or steps.ended
        if follow and (note := steps.new_note()):
            print_note(f"rldbg track: {note}")
        measurements: StepMeasurements | None = None
        for recording, step in steps.new(ended=ended):
            measurements = measurements or StepMeasurements(recording)
            board.numbers = measurements.of(step)
            board.step = step
            done += 1
            advance()
            for log in logs:
                log.log(step, board.numbers)
        if ended:
            return done
        wait(_LOOK_EVERY_S)


@contextmanager
def _opened(tracker: str, folder: Path, project: str, name: str) -> "Iterator[Tracker]":
    from rldbg.core import Run
    from rldbg.trainer import open_tracker

    config: dict[str, Any] = Run(folder).read().get("config") or {} if folder.is_dir() else {}
    opened = open_tracker(tracker, folder, project=project, name=name, config=config)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def _served(board: _Board, host: str, port: int) -> Iterator[str]:
    from rldbg.tracking import PrometheusEndpoint

    endpoint = PrometheusEndpoint(board.text, host=host, port=port)
    try:
        yield endpoint.url
    finally:
        endpoint.close()
