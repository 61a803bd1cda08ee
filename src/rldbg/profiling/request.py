"""What the user asked for, on the command line or by the documented variables, checked and made into a plan."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rldbg.agent.profiling import OPEN_END, OWN_VARIABLES, Plan
from rldbg.core import Environment, UsageError
from rldbg.frameworks import all_hooks

PATTERNS, STEP_RANGE = OWN_VARIABLES
EXTRA_OPTIONS = "NRL_NSYS_EXTRA_OPTIONS"
SYNC = "RAY_LOG_SYNC_FREQUENCY"
STATE_FOLDER = "profiling"
PLAN_FILE = "plan.json"
"""The folder of a run in which its processes write down what became of their profiles."""


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """The options as given; empty means not given."""

    workers: str = ""
    ranks: str = ""
    steps: str = ""
    tool: str = ""
    options: tuple[str, ...] = ()
    delay_s: float = 0.0


def make_plan(request: ProfileRequest, *, folder: Path, run: Path, environment: Environment | None = None) -> Plan:
    """A flag wins over the documented variable; the variables alone mean nsys."""
    environment = environment or Environment()
    named = [request.workers, environment.text(PATTERNS)]
    # The variables belong together: those that name the workers of another tool name its steps, too. Phases need none.
    chosen_by_variable = bool(environment.text(PATTERNS).strip()) and not request.workers
    tool = request.tool or ("nsys" if chosen_by_variable else "torch")
    patterns = read_patterns(request.workers or environment.text(PATTERNS))
    if not patterns and tool != "phases":
        given = next((text for text in named if text), "")
        raise UsageError(
            f"no workers selected: {given!r} contains no pattern" if given else "no workers selected",
            "select them: --workers '*policy*,*rollout*', or '*' for all; --tool phases needs none",
        )
    by_variable = (tool in ("nsys", "phases") or chosen_by_variable) and not request.steps
    steps = read_steps(request.steps, "--steps") or (
        read_steps(environment.text(STEP_RANGE), STEP_RANGE) if by_variable else None
    )
    extra = read_extra_options(environment.text(EXTRA_OPTIONS)) if tool == "nsys" else {}
    _check_ranks(request.ranks)
    sync_s = _seconds(environment.text(SYNC))
    return Plan(
        tool=tool,
        patterns=patterns,
        folder=str(folder.resolve()),
        state_folder=str(run.resolve() / STATE_FOLDER),
        ranks=request.ranks,
        steps=steps,
        options=extra | read_options(request.options),
        class_names_first=not request.workers,
        delay_s=request.delay_s,
        sync_s=sync_s,
        sync_to=str(synchronised_logs(environment, run)) if sync_s else "",
        hooks=all_hooks(),
    )


def read_patterns(text: str) -> tuple[str, ...]:
    """Comma separated; white space is stripped and what is empty is left out. A comma inside [...] belongs to it."""
    return tuple(part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip())


def read_steps(text: str, source: str) -> tuple[int, int] | None:
    """`3:5` is steps 3 and 4, `3:` all from 3 on, `3` that one; None when nothing is given."""
    text = text.strip()
    if not text:
        return None
    match = re.fullmatch(r"(\d+)(?:\s*(:)\s*(\d*))?", text)
    hint = "steps are 1-based and the stop is exclusive: 3:5 is steps 3 and 4"
    if match is None:
        raise UsageError(f"invalid {source}: {text!r} (expected START:STOP)", hint)
    start = int(match[1])
    stop = start + 1 if not match[2] else int(match[3]) if match[3] else OPEN_END
    if start < 1 or stop <= start:
        raise UsageError(f"invalid {source}: {text!r} contains no step", hint)
    return start, stop


def read_extra_options(text: str) -> dict[str, str | None]:
    """NRL_NSYS_EXTRA_OPTIONS: a JSON object of nsys options; null is a bare flag."""
    if not text.strip():
        return {}
    hint = """for example NRL_NSYS_EXTRA_OPTIONS='{"t": "cuda,nvtx,cublas"}'"""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{EXTRA_OPTIONS} is not JSON: {error}", hint) from error
    if not isinstance(data, dict):
        raise UsageError(f"{EXTRA_OPTIONS} is not a JSON object", hint)
    return {str(name).lstrip("-"): _word(value) for name, value in data.items()}


def read_options(given: Sequence[str]) -> dict[str, str | None]:
    """`--opt k=v`, or `--opt k` for a bare flag."""
    options: dict[str, str | None] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name.strip("-"):
            raise UsageError(f"--opt {text!r} has no name", "for example --opt stacks=1")
        options[name.lstrip("-")] = value if equals else None
    return options


def synchronised_logs(environment: Environment, run: Path) -> Path:
    """Where a job's logs are kept: `<job>-logs/ray` where the job was submitted, else the run folder's logs."""
    job = environment.text("SLURM_JOB_ID")
    if not job:
        return run.resolve() / "logs" / "ray"
    return Path(environment.text("SLURM_SUBMIT_DIR") or Path.cwd()).resolve() / f"{job}-logs" / "ray"


def _check_ranks(text: str) -> None:
    from rldbg.agent import SelectionError, parse_selection

    if text:
        try:
            parse_selection(text)
        except SelectionError as error:
            raise UsageError(f"--ranks: {error}", "for example --ranks 0, --ranks 0:8:2, --ranks dp=0") from error


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if text.strip() else 0.0
    except ValueError:
        raise UsageError(f"{SYNC}={text!r} is not a number of seconds", f"for example {SYNC}=30") from None
    return max(seconds, 0.0)


def _word(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)
