"""One armed run from beginning to end: explained, checked, started, watched, and held against what was promised."""

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rldbg.core import Finding, PrerequisiteError, Run, UsageError, by_severity
from rldbg.launch.child import run_child
from rldbg.launch.explanation import Explanation, explain
from rldbg.launch.output import LOG, CapturedOutput
from rldbg.launch.plan import make_plan, refuse_unarmable
from rldbg.launch.preflight import preflight
from rldbg.launch.proof import armed_processes, judge_arming
from rldbg.launch.request import Request
from rldbg.launch.watch import Watch
from rldbg.live import Arming, armed_environment

_ELSEWHERE = re.compile(r"(?m)\b(?:srun|sbatch|salloc|mpirun)\b|^#SBATCH|\bssh\s")


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
) -> Outcome:
    """Runs the request armed. `announce` is called once everything is known and before anything has started."""
    check_breakpoints(request)
    run = Run.create(name=request.name, path=run_folder, redact_secrets=redact_secrets)
    folder = run.path.resolve()
    watch = Watch(run, say, owner_pid=os.getpid(), host=broker_host(request), breakpoints=request.breakpoints)
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
    plan = make_plan(explanation, request, _armed(request, run, post_mortem_wait_s, redact_secrets), folder)
    run.start(command=plan.argv, framework=explanation.framework, armed=explanation.to_dict()["commands"])
    output = CapturedOutput.open(run.folder("logs") / LOG, redact=redact_secrets, stdout_to_stderr=quiet_stdout)
    exit_code = run_child(
        plan.argv,
        environment=plan.environment,
        prepare=watch.begin,
        started=watch.follow,
        tick=watch.tick,
        output=(output.stdout, output.stderr),
    )
    output.settle()
    findings = [*watch.finish(), *judge_arming(explanation.trainings, armed_processes(folder), redacted=redact_secrets)]
    watch.close()
    run.finish(exit_code)
    outcome = Outcome(
        exit_code,
        folder,
        explanation,
        tuple(by_severity(findings)),
        tuple(watch.reported.values()),
        tuple(watch.ray_logs),
    )
    run.update(findings=[finding.to_dict() for finding in outcome.findings], ray_logs=list(map(str, outcome.ray_logs)))
    return outcome


def check_breakpoints(request: Request) -> None:
    for place in request.breakpoints:
        file, _, line = place.rpartition(":")
        if not file or not line.isdigit():
            raise UsageError(f"--break {place!r} is not FILE:LINE", "for example --break verl/trainer/main_ppo.py:42")


def _armed(request: Request, run: Run, post_mortem_wait_s: float, redact_secrets: bool) -> dict[str, str]:
    arming = Arming(
        post_mortem_wait_s=post_mortem_wait_s if request.post_mortem else 0.0,
        ray_breakpoints=request.ray_breakpoints or request.legacy,
        redact=redact_secrets,
    )
    return armed_environment(run, arming, base=dict(request.environment) | request.added_environment)


def broker_host(request: Request) -> str:
    """Loopback, unless processes on other machines must find the broker; it asks everyone for the run's token."""
    text = " ".join(request.argv)
    if request.script is not None:
        text += request.script.read_text(encoding="utf-8", errors="replace")
    address = request.environment.get("RAY_ADDRESS", "")
    elsewhere = address and not re.search(r"127\.0\.0\.1|localhost|^auto$|^local$", address)
    return "0.0.0.0" if elsewhere or _ELSEWHERE.search(text) else "127.0.0.1"
