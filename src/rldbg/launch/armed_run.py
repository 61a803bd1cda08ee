"""One armed run from beginning to end: explained, checked, started, watched, and held against what was promised."""

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from rldbg.agent import Arming
from rldbg.core import ExitCode, Finding, PrerequisiteError, Run, UsageError, by_severity
from rldbg.launch.explanation import Explanation, explain
from rldbg.launch.laptop import laptop
from rldbg.launch.output import LOG, CapturedOutput
from rldbg.launch.plan import make_plan, refuse_unarmable
from rldbg.launch.preflight import preflight
from rldbg.launch.proof import armed_processes, judge_arming, judge_recording
from rldbg.launch.request import Request
from rldbg.launch.watch import Watch
from rldbg.tripwire import Event, WatcherProcess

_ELSEWHERE = re.compile(r"(?m)\b(?:srun|sbatch|salloc|mpirun)\b|^#SBATCH|\bssh\s")

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_WAITED = {*_FORWARDED, signal.SIGCHLD}
_FROM_TERMINAL = 0x80  # SI_KERNEL: the terminal sent it to the whole foreground group, the child included


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    exit_code: int
    run: Path
    explanation: Explanation
    findings: tuple[Finding, ...]
    processes: tuple[dict[str, Any], ...]
    ray_logs: tuple[Path, ...] = ()
    """Folders and logs of Ray that belong to the run."""
    asked_to_end: str = ""
    """The signal by which a run was ended in which nothing had crashed: how its launcher reports that is no failure."""

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
    announce: Callable[[Explanation, tuple[Finding, ...], Run], None],
    quiet_stdout: bool = False,
    redact_secrets: bool = True,
    pass_exceptions: Sequence[str] = (),
    listen: str = "",
) -> Outcome:
    """Runs the request armed. `announce` is called once everything is known and before anything has started."""
    check_breakpoints(request)
    run = Run.create(name=request.name, path=run_folder, redact_secrets=redact_secrets)
    folder = run.path.resolve()
    watch = Watch(run, say, owner_pid=os.getpid(), host=listen or broker_host(request), breakpoints=request.breakpoints)
    with ThreadPoolExecutor(max_workers=1) as pool:
        # A broker takes as long to start as a dry run; it has ended its start when this block is left.
        starting = pool.submit(watch.start_broker)
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
    with _on_a_laptop(explanation, request, folder) as added:
        plan = make_plan(
            explanation, replace(request, set_environment=(*request.set_environment, *added)), arming, folder
        )
        run.start(command=plan.argv, framework=explanation.framework, armed=explanation.to_dict()["commands"])
        output = CapturedOutput.open(run.folder("logs") / LOG, redact=redact_secrets, stdout_to_stderr=quiet_stdout)
        tripwire = _Tripwire(request, folder, say)

        def tick() -> None:
            watch.tick()
            tripwire.tick()

        asked: list[str] = []

        def asked_to_end(name: str) -> None:
            if not any((folder / "crashes").glob("*.json")):
                asked.append(name)

        exit_code = run_child(
            plan.argv,
            environment=plan.environment,
            prepare=watch.begin,
            started=watch.follow,
            tick=tick,
            asked_to_end=asked_to_end,
            output=(output.stdout, output.stderr),
        )
        tripwire.close()
    output.settle()
    findings = [*watch.finish(), *judge_arming(explanation.trainings, armed_processes(folder), redacted=redact_secrets)]
    findings += [event.to_finding() for event in tripwire.events]
    if request.record:
        findings += judge_recording(run, explanation, request)
    watch.close()
    if exit_code == 0 and _never_started(explanation, findings):
        exit_code = int(ExitCode.FINDING)
    run.finish(exit_code)
    outcome = Outcome(
        exit_code,
        folder,
        explanation,
        tuple(by_severity(findings)),
        tuple(watch.reported.values()),
        tuple(watch.ray_logs),
        asked[0] if asked else "",
    )
    run.update(findings=[finding.to_dict() for finding in outcome.findings], ray_logs=list(map(str, outcome.ray_logs)))
    return outcome


def _never_started(explanation: Explanation, findings: Sequence[Finding]) -> bool:
    """A script that succeeds although its program does not exist: the shell went on after the error."""
    missing = {hazard.where for hazard in explanation.hazards if hazard.id == "launch.program-missing"}
    return any(found.id == "launch.not-armed" and found.where in missing for found in findings)


class _Tripwire:
    """The watcher beside the training, if the request asks for one: its events are said as they come."""

    def __init__(self, request: Request, folder: Path, say: Callable[[str], None]) -> None:
        self.events: list[Event] = []
        self._say = say
        recording = folder / "recording"
        log = folder / "logs" / "watch.log"
        self._process = WatcherProcess(recording, request.watch, log=log) if request.watch is not None else None

    def tick(self) -> None:
        if self._process is not None:
            self._tell(self._process.new_events())

    def close(self) -> None:
        if self._process is not None:
            self._tell(self._process.close())

    def _tell(self, events: Sequence[Event]) -> None:
        self.events += events
        for event in events:
            self._say(f"watch: {event.message}")


@contextlib.contextmanager
def _on_a_laptop(explanation: Explanation, request: Request, folder: Path) -> Iterator[tuple[tuple[str, str], ...]]:
    if not request.laptop:
        yield ()
        return
    with laptop([explained.command for explained in explanation.trainings], request, folder) as added:
        yield added


def check_breakpoints(request: Request) -> None:
    for place in request.breakpoints:
        file, _, line = place.rpartition(":")
        if not file or not line.isdigit():
            raise UsageError(
                f"invalid --break {place!r} (expected FILE:LINE)", "for example --break trainer/main_ppo.py:42"
            )


def broker_host(request: Request) -> str:
    """Loopback, unless processes on other machines must find the broker; it asks everyone for the run's token."""
    text = " ".join(request.argv)
    if request.script is not None:
        text += request.script.read_text(encoding="utf-8", errors="replace")
    address = request.environment.get("RAY_ADDRESS", "")
    elsewhere = address and not re.search(r"127\.0\.0\.1|localhost|^auto$|^local$", address)
    return "0.0.0.0" if elsewhere or _ELSEWHERE.search(text) else "127.0.0.1"


def run_child(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    prepare: Callable[[], None] = lambda: None,
    started: Callable[[int], None] = lambda _pid: None,
    tick: Callable[[], None] = lambda: None,
    asked_to_end: Callable[[str], None] = lambda _name: None,
    every_s: float = 0.5,
    output: tuple[int, int] = (1, 2),
) -> int:
    """Runs a command to its end and returns the status a shell would show: 128 + n after signal n.

    `output` are the descriptors it gets as standard output and error. `asked_to_end` is told the name of each signal
    that asks for the end.

    The child shares our process group, so that pdb on the terminal works. Signals are taken by waiting for them,
    because only then is it known who sent them; threads that `prepare` starts inherit that they are not disturbed.
    """
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        raise PrerequisiteError(f"command not found: {argv[0]!r}", "check the spelling and PATH")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    try:
        prepare()
        actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in zip(output, (1, 2), strict=True)]
        pid = os.posix_spawn(program, list(argv), dict(environment), setsigmask=before, file_actions=actions)
        started(pid)
        return _wait(pid, tick, asked_to_end, every_s)
    finally:
        while signal.sigtimedwait(_WAITED, 0) is not None:
            continue
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, tick: Callable[[], None], asked_to_end: Callable[[str], None], every_s: float) -> int:
    was_asked_to_end = False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        info = signal.sigtimedwait(_WAITED, every_s)
        if info is not None and info.si_signo in _ENDING:
            asked_to_end(signal.Signals(info.si_signo).name)
        if info is None:
            tick()
        elif info.si_signo in _FORWARDED and info.si_code != _FROM_TERMINAL:
            if info.si_signo == signal.SIGTERM and was_asked_to_end:
                # The first one left the command its own time to end.
                _kill_tree(pid)
            else:
                os.kill(pid, info.si_signo)
            was_asked_to_end = was_asked_to_end or info.si_signo == signal.SIGTERM


def _kill_tree(pid: int) -> None:
    processes = [psutil.Process(pid)]
    processes += processes[0].children(recursive=True)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
