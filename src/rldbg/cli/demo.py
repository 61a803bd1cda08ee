"""`rldbg demo`: the tour. It runs the commands it prints, in order, on one Ray session."""

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_line, print_note
from rldbg.core import ExitCode, RldbgError

_KINDS = ("trajectory", "old_log_probs", "forward_data", "is_loss_debug", "loss", "param", "gradient")
_RECORD = (
    "++debug.enable_data_dump=true",
    "++debug.capsule=true",
    "++debug.capsule_every_n_steps=5",
    *(f"++debug.dump_options.{kind}=true" for kind in _KINDS),
)


class Stop(NamedTuple):
    """One stop of the tour: why, and the command line after `rldbg`."""

    title: str
    arguments: tuple[str, ...]
    trains: bool = False


class Visited(NamedTuple):
    title: str
    command: str
    exit_code: int
    seconds: float


def _tour(run: Path, recipe: str, steps: int) -> Iterator[Stop]:
    """The stops in order; each is made when its turn comes, so that later ones can read what earlier ones wrote."""
    first, again = str(run / "first"), str(run / "replayed")
    replay = (f"++rollout_worker.trajectory_load_path={first}", "++rollout_worker.type=mock")
    train = ("train", recipe, "--steps", str(steps), "--run")
    yield Stop("Train a tiny model and record every step", (*train, first, *_RECORD), trains=True)
    yield Stop("Show the contents and health of the recording", ("show", first))
    yield Stop("Show one sample, token by token", ("show", first, "--step", "5", "--sample", _some_sample(first, 5)))
    yield Stop("Find missing, truncated and corrupt files", ("verify", first))
    yield Stop("Check invariants", ("check", first))
    yield Stop(
        "Train again from the recorded trajectories, without inference",
        (*train, again, *_RECORD, *replay, "++rollout_worker.need_llm_inference=false"),
        trains=True,
    )
    yield Stop("Compare the replay with the original, token by token", ("compare", first, again))
    yield Stop("Run one recorded step again, in one process, without Ray", ("rerun", first, "--step", "5"))
    yield Stop(
        "Run that step with another entropy coefficient",
        ("rerun", first, "--step", "5", "--set", "algorithm.entropy_coeff=0.01"),
    )


def _some_sample(recording: str, step: int) -> str:
    from rldbg.recording import open as open_recording

    return str(open_recording(recording).samples(step)[0])


@verb("demo")
@click.option("--run", "run_folder", type=click.Path(path_type=Path), help="Folder for the runs.  [default: a new one]")
@click.option("--steps", type=click.IntRange(6, 40), default=16, show_default=True, help="Steps per training.")
@click.option("--recipe", default="arithmetic", show_default=True, help="Recipe to train on.")
def command(run_folder: Path | None, steps: int, recipe: str, as_json: bool) -> int:
    """Take the tour: train, record, verify, check, replay, compare, rerun. Prints the command of each stop."""
    from rldbg.core import Run
    from rldbg.trainer import Cluster, ClusterSettings

    run = Run.create(name="demo", path=run_folder)
    if not as_json:
        print_note("The tour runs nine commands in one to two minutes. Starting a Ray session for them ...")
    visited = []
    started = time.monotonic()
    with Cluster(ClusterSettings(), name="demo") as cluster:
        address = cluster.facts["address"]
        for stop in _tour(run.path, recipe, steps):
            visited.append(_visit(stop, address, quiet=as_json))
    seconds = time.monotonic() - started
    if as_json:
        print_json({"run": str(run.path), "seconds": seconds, "stops": [stop._asdict() for stop in visited]})
    else:
        print_line(f"\nThe tour took {seconds:.0f} s. Its runs are in {run.path}: try the commands above on them.")
    return ExitCode.OK


def _visit(stop: Stop, address: str, *, quiet: bool) -> Visited:
    """Runs a stop's command as printed, except that trainings share the tour's Ray session."""
    shown = shlex.join(("rldbg", *stop.arguments))
    if not quiet:
        print_line(f"\n── {stop.title}\n$ {shown}")
        sys.stdout.flush()
    shared = (f"++cluster.address={address}",) if stop.trains else ()
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "rldbg", *stop.arguments, *shared],
        stdout=subprocess.DEVNULL if quiet else None,
        stderr=subprocess.PIPE if quiet else None,
        text=True,
    )
    expected = (ExitCode.OK, ExitCode.FINDING) if "--set" in stop.arguments else (ExitCode.OK,)
    if done.returncode not in expected:
        print_note(done.stderr or "")
        raise RldbgError(f"the tour failed at `{shown}` with exit code {done.returncode}", "run that command by itself")
    return Visited(stop.title, shown, done.returncode, time.monotonic() - started)
