"""One armed run from start to end: explained, checked, started, monitored, and compared with the dry run."""

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rldbg.agent import Arming
from rldbg.core import ExitCode, Finding, PrerequisiteError, Run, by_severity
from rldbg.launch.child import run_child
from rldbg.launch.explanation import LaunchExplanation, explain
from rldbg.launch.hazards import missing_files
from rldbg.launch.laptop import laptop
from rldbg.launch.output import LOG, CapturedOutput
from rldbg.launch.plan import make_plan, refuse_unarmable
from rldbg.launch.preflight import preflight
from rldbg.launch.proof import armed_processes, judge_arming, judge_recording
from rldbg.launch.request import Request
from rldbg.launch.run_monitor import RunMonitor
from rldbg.live import break_place

if TYPE_CHECKING:
    from rldbg.tripwire import Event, WatcherProcess

_ELSEWHERE = re.compile(
    r"(?m)\b(?:srun|sbatch|salloc|mpirun)\b|^#SBATCH|\bssh\s"
    r"|--(?:nnodes|num[_-]nodes|num[_-]machines)[= ]+(?:[2-9]|\d\d|\d:)|--hostfile\b"
)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended."""

    exit_code: int
    run: Path
    explanation: LaunchExplanation
    findings: tuple[Finding, ...]
    processes: tuple[dict[str, Any], ...]
    ray_logs: tuple[Path, ...] = ()
    """Folders and logs of Ray that belong to the run."""
    ended_by: str = ""
    """The signal of the user's by which the run was ended."""
    asked_to_end: str = ""
    """The same if nothing had crashed by then: what a launcher reports of it is not a failure."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "exit_code": self.exit_code,
            "run": str(self.run),
            "findings": [finding.to_dict() for finding in self.findings],
            "processes": list(self.processes),
        } | self.explanation.to_dict()


def run_armed(
    request: Request,
    *,
    run_folder: Path | None,
    post_mortem_wait_s: float,
    say: Callable[[str], None],
    announce: Callable[[LaunchExplanation, tuple[Finding, ...], Run], None],
    quiet_stdout: bool = False,
    redact_secrets: bool = True,
    pass_exceptions: Sequence[str] = (),
    listen: str = "",
) -> RunOutcome:
    """Runs the request armed. `announce` is called once everything is known and before anything has started."""
    # First: a place that cannot be meant starts nothing.
    breakpoints = [break_place(place) for place in request.breakpoints]
    run = Run.create(name=request.name, path=run_folder, redact_secrets=redact_secrets)
    folder = run.path.resolve()
    monitor = RunMonitor(run, say, owner_pid=os.getpid(), host=listen or broker_host(request), breakpoints=breakpoints)
    with ThreadPoolExecutor(max_workers=1) as pool:
        # A broker takes as long to start as a dry run; it has started when this block ends.
        starting = pool.submit(monitor.start_broker)
        explanation = explain(request, folder)
        refuse_unarmable(explanation)
        before = preflight(explanation, request)
    starting.result()
    announce(explanation, before.findings, run)
    if before.forbids:
        first = before.forbids[0]
        raise PrerequisiteError(f"{first.cause} ({'; '.join(first.evidence)})", "; or ".join(first.fix))
    arming = Arming(
        post_mortem_wait_s=post_mortem_wait_s if request.post_mortem else 0.0,
        ray_breakpoints=request.ray_breakpoints or request.legacy,
        redact=redact_secrets,
        pass_exceptions=tuple(pass_exceptions),
    )
    tripwire = _Tripwire(request, folder, say)
    exit_code, signal_name, had_crashed = _run_to_its_end(
        request, run, explanation, arming, monitor, tripwire, say=say, quiet_stdout=quiet_stdout
    )
    findings = [
        *monitor.finish(),
        *judge_arming(
            explanation.trainings,
            armed_processes(folder),
            redacted=redact_secrets,
            is_complete=not signal_name,
        ),
    ]
    findings += [event.to_finding() for event in tripwire.events]
    if request.record:
        findings += judge_recording(run, explanation, request)
    monitor.close()
    if exit_code == 0 and any(missing_files(explained.command) for explained in explanation.trainings):
        # The shell continued after the error; the script may have created the program meanwhile.
        say("a program of the script does not exist: exit code 0 counts as a failure")
        exit_code = int(ExitCode.FINDING)
    found, processes, ray_logs = tuple(by_severity(findings)), tuple(monitor.reported.values()), tuple(monitor.ray_logs)
    try:
        run.finish(exit_code, findings=[finding.to_dict() for finding in found], ray_logs=list(map(str, ray_logs)))
    except OSError as error:
        # Returning the command's exit code matters more than recording it.
        say(f"how the run ended could not be written: {error}")
    asked_to_end = "" if had_crashed else signal_name
    return RunOutcome(exit_code, folder, explanation, found, processes, ray_logs, signal_name, asked_to_end)


def _run_to_its_end(
    request: Request,
    run: Run,
    explanation: LaunchExplanation,
    arming: Arming,
    monitor: RunMonitor,
    tripwire: "_Tripwire",
    *,
    say: Callable[[str], None],
    quiet_stdout: bool,
) -> tuple[int, str, bool]:
    """The exit code, the signal by which the run was ended, and whether something had crashed before it came."""
    folder = run.path.resolve()
    asked: list[str] = []
    had_crashed = False

    def tick() -> None:
        monitor.tick()
        tripwire.tick()

    def asked_to_end(name: str) -> None:
        nonlocal had_crashed
        if name != signal.SIGKILL.name:
            monitor.asked_to_end(name)
        had_crashed = had_crashed or (not asked and any((folder / "crashes").glob("*.json")))
        asked.append(name)

    with _on_a_laptop(explanation, request, folder) as added:
        changed = replace(request, set_environment=(*request.set_environment, *added))
        plan = make_plan(explanation, changed, arming, folder)
        run.start(command=plan.argv, framework=explanation.framework, armed=explanation.to_dict()["commands"])
        output = CapturedOutput.open(run.folder("logs") / LOG, redact=arming.redact, stdout_to_stderr=quiet_stdout)
        tripwire.start()
        exit_code = run_child(
            plan.argv,
            environment=plan.environment,
            prepare=monitor.begin,
            started=monitor.follow,
            tick=tick,
            asked_to_end=asked_to_end,
            left_over=monitor.left_over,
            say=say,
            output=(output.stdout, output.stderr),
        )
        tripwire.close()
    output.settle()
    return exit_code, ended_by(exit_code, asked), had_crashed


def ended_by(exit_code: int, asked: Sequence[str]) -> str:
    """Which of the signals that a run was sent has ended it; empty without any."""
    if signal.SIGKILL.name in asked:
        return f"{signal.SIGKILL.name}, after {' and '.join(asked[: asked.index(signal.SIGKILL.name)])}"
    own = [name for name in asked if exit_code == 128 + signal.Signals[name]]
    return own[0] if own else asked[-1] if asked else ""


class _Tripwire:
    """The `rldbg watch` process of the run, if requested; its events are printed as they come."""

    def __init__(self, request: Request, folder: Path, say: Callable[[str], None]) -> None:
        self.events: list[Event] = []
        self._say = say
        self._folder = folder
        self._settings = request.watch
        self._process: WatcherProcess | None = None

    def start(self) -> None:
        if self._settings is not None:
            from rldbg.tripwire import WatcherProcess

            log = self._folder / "logs" / "watch.log"
            self._process = WatcherProcess(self._folder / "recording", self._settings, log=log)

    def tick(self) -> None:
        if self._process is None:
            return
        events = self._process.new_events()
        self.events += events
        for text in [*(event.message for event in events), *self._process.new_notes()]:
            self._say(f"watch: {text}")

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self.tick()


@contextlib.contextmanager
def _on_a_laptop(
    explanation: LaunchExplanation, request: Request, folder: Path
) -> Iterator[tuple[tuple[str, str], ...]]:
    if not request.laptop:
        yield ()
        return
    with laptop([explained.command for explained in explanation.trainings], request, folder) as added:
        yield added


def broker_host(request: Request) -> str:
    """Loopback, unless processes on other machines must reach the broker."""
    text = " ".join(request.argv)
    if request.script is not None:
        text += request.script.read_text(encoding="utf-8", errors="replace")
    address = request.environment.get("RAY_ADDRESS", "")
    elsewhere = address and not re.search(r"127\.0\.0\.1|localhost|^auto$|^local$", address)
    return "0.0.0.0" if elsewhere or _ELSEWHERE.search(text) else "127.0.0.1"
