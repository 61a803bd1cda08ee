"""The stops of the tour, in order; each can be played by itself."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rldbg.core import ExitCode
from rldbg.demo.stage import TourStage, stopped_ranks

REPORT = "report"
ANSWER = "answer.txt"
BUG = "one-rank-shifts-old-log-probs"
_FOUND = (ExitCode.FINDING,)
_STEPS = 6
_LOOP = ("torchrun", "--standalone", "--nproc-per-node", "2", "loop.py")


class TourStop(NamedTuple):
    name: str
    title: str
    why: str
    play: Callable[[TourStage], None]


def _trained(stage: TourStage, name: str, *changes: str, recipe: str = "arithmetic") -> None:
    """Trains and records once; later stops of the tour reuse it."""
    if not (stage.folder / name).exists():
        steps = ("--steps", str(_STEPS), "--in-process", "--record")
        stage.rldbg("train", recipe, *changes, "--run", name, *steps)


def _record(stage: TourStage) -> None:
    _trained(stage, "first")
    stage.rldbg("show", "first")


def _find_bug(stage: TourStage) -> None:
    _trained(stage, "first")
    _trained(stage, "second", f"++zoo.bug={BUG}")
    stage.rldbg("check", "second", expect=_FOUND)
    stage.rldbg("compare", "first", "second", expect=_FOUND)


def _rerun(stage: TourStage) -> None:
    _trained(stage, "first")
    stage.rldbg("rerun", "first", "--step", "5")
    stage.rldbg("rerun", "first", "--step", "5", "--set", "algorithm.entropy_coeff=0.01")


def _break(stage: TourStage) -> None:
    line = _place_program(stage).read_text().partition("dist.all_reduce(loss)")[0].count("\n") + 1
    with stage.background("run", "--break", f"loop.py:{line}", "--", *_LOOP):
        stage.wait_for("ps", until=lambda answer: stopped_ranks(answer) == 2)
        stage.rldbg("ps")
        stage.rldbg("cast", "all", "p step, loss")
        stage.rldbg("break", "--clear", "all")
        stage.rldbg("continue")


def _hang(stage: TourStage) -> None:
    _place_program(stage)
    with stage.background("run", "--", *_LOOP, "hang"):
        stage.wait_for(
            "stacks", "--diagnose", until=lambda answer: "wait_for_judge" in answer and "all_reduce" in answer
        )
        stage.rldbg("stacks", "--diagnose", expect=(ExitCode.OK, *_FOUND))
        (stage.folder / "judge.json").touch()


def _crash(stage: TourStage) -> None:
    _place_program(stage)
    stage.rldbg("run", "--wait", "0", "--", *_LOOP, "crash", expect=_FOUND, verdict="the failure begins")


def _look(stage: TourStage) -> None:
    """The report of the run with the bug; without a web server's packages the command says what to install."""
    _trained(stage, "second", f"++zoo.bug={BUG}")
    shutil.rmtree(stage.folder / REPORT, ignore_errors=True)
    stage.rldbg("ui", "second", "--export", REPORT, expect=(ExitCode.OK, ExitCode.PREREQUISITE))


def _place_program(stage: TourStage) -> Path:
    """Puts the training loop into the folder, without what an earlier stop left there for it."""
    (stage.folder / "judge.json").unlink(missing_ok=True)
    return Path(shutil.copy(Path(__file__).with_name("loop.py"), stage.folder))


def hide_bug(stage: TourStage, name: str, story: str) -> None:
    """Two trainings, the second with a bug that the user looks for: its name is in the file ANSWER only."""
    stage.say("\nTraining twice, recorded; one of the two has a bug ...")
    silent = TourStage(stage.folder, say=lambda _: None, quiet=True)
    # A capsule would hold the recipe, and with it the name.
    _trained(silent, "first", "debug.capsule=false", recipe="zoo")
    _trained(silent, "second", "debug.capsule=false", f"++zoo.bug={name}", recipe="zoo")
    facts = stage.folder / "second" / "run.json"
    document = json.loads(facts.read_text())
    document["config"]["zoo"] = {"bug": None}
    document["command"] = []
    facts.write_text(json.dumps(document))
    (stage.folder / ANSWER).write_text(f"{name}: {story}\n")


STOPS = (
    TourStop(
        "record",
        "Record a training",
        "Every token, mask, log prob, loss and gradient of a step can be inspected later.",
        _record,
    ),
    TourStop(
        "bug",
        "Find a bug in the numbers",
        "The same training, but one rank's old log probs are one token late.",
        _find_bug,
    ),
    TourStop(
        "rerun",
        "Run one step again",
        "A recorded step needs no cluster: it runs again bit for bit, or with a setting changed.",
        _rerun,
    ),
    TourStop("break", "Stop ranks at a line", "Breakpoints reach every rank; one command asks all of them.", _break),
    TourStop("hang", "Explain a hang", "One sentence says who waits for whom, and where.", _hang),
    TourStop(
        "crash",
        "Find the root cause of a crash",
        "One rank fails, the others only lose their connection to it.",
        _crash,
    ),
    TourStop(
        "look",
        "Look at it in a browser",
        "Samples token by token, findings and steps; a report opens from disk and can be shared.",
        _look,
    ),
)
