"""One profiled run from beginning to end: planned, checked, run armed, waited for, gathered."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rldbg.agent.profiling import OWN_VARIABLES, PLAN_VARIABLE, TEXT_VARIABLE, Plan
from rldbg.core import ExitCode, Finding, IncompleteDataError, RldbgError, Run, UsageError
from rldbg.launch import LaunchExplanation, Request, run_armed
from rldbg.live import BrokerClient
from rldbg.profiling.collection import Manifest, make_manifest, wait_for_profiles
from rldbg.profiling.prerequisites import check_tool
from rldbg.profiling.remote_collection import bring_from_nodes
from rldbg.profiling.request import PLAN_FILE, ProfileRequest, make_plan


@dataclass(frozen=True, slots=True)
class Profiled:
    """How a profiled run ended."""

    exit_code: int
    run: Path
    manifest: Manifest
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        findings = [finding.to_dict() for finding in self.findings]
        return {"exit_code": self.exit_code, "run": str(self.run), "findings": findings} | self.manifest.to_dict()


def run_profiled(
    launch: Request,
    wanted: ProfileRequest,
    *,
    run_folder: Path | None,
    output: Path | None,
    wait_s: float,
    say: Callable[[str], None],
    announce: Callable[[LaunchExplanation, tuple[Finding, ...], Run], None],
    planned: Callable[[Plan], None],
    quiet_stdout: bool = False,
) -> Profiled:
    """Run the command and profile the selected workers; `planned` is called before it starts."""
    # Check first: an invalid request or a missing tool must leave nothing on disk.
    check_tool(make_plan(wanted, folder=Path(), run=Path()).tool)
    run = Run.create(name=f"profile-{launch.name}", path=run_folder)
    folder = output if output is not None else run.folder("profiles")
    folder.mkdir(parents=True, exist_ok=True)
    plan = make_plan(wanted, folder=folder, run=run.path)
    plan_file = Path(plan.state_folder) / PLAN_FILE
    plan_file.parent.mkdir(parents=True, exist_ok=True)
    plan_file.write_text(plan.to_text() + "\n", encoding="utf-8")
    planned(plan)
    armed = replace(
        launch,
        set_environment=(*launch.set_environment, (PLAN_VARIABLE, str(plan_file))),
        # The plan is long: pass it on, but do not list it among the changes.
        environment={**without_own_profile(launch.environment), TEXT_VARIABLE: plan.to_text()},
    )
    outcome = run_armed(
        armed,
        run_folder=run.path,
        post_mortem_wait_s=0.0,
        say=say,
        announce=announce,
        quiet_stdout=quiet_stdout,
    )
    manifest = gather(plan, outcome.run, outcome.processes, wait_s=wait_s, say=say)
    run.update(profiles=str(folder.resolve()))
    return Profiled(outcome.exit_code, outcome.run, manifest, (*manifest.findings(), *outcome.findings))


def without_own_profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Without the variables that would make a framework open the capture range a second time."""
    return {name: value for name, value in environment.items() if name not in OWN_VARIABLES}


def gather(
    plan: Plan,
    run: Path,
    processes: Sequence[dict[str, Any]],
    *,
    wait_s: float,
    say: Callable[[str], None],
) -> Manifest:
    """Waits for what is still being written, then writes the manifest. Ctrl-C ends the wait only; profiles are still
    collected."""
    with contextlib.suppress(RldbgError), BrokerClient(run) as client:
        # Ask workers that outlive the command to write their profiles.
        client.request("profile", action="finish", actor="", timeout_s=wait_s)
    try:
        wait_for_profiles(Path(plan.state_folder), limit_s=wait_s, say=say)
        bring_from_nodes(plan, limit_s=wait_s, say=say)
    except KeyboardInterrupt:
        say("no longer waiting: profiles that are not yet written are missing")
    manifest = make_manifest(plan, processes)
    manifest.write()
    return manifest


ATTACHABLE = ("pyspy", "torch", "memory")
_WRITE_S = 120.0


@dataclass(frozen=True, slots=True)
class Attached:
    """What each process gave."""

    processes: tuple[dict[str, Any], ...]

    @property
    def exit_code(self) -> int:
        return ExitCode.OK if all(process.get("files") for process in self.processes) else ExitCode.FINDING

    def to_dict(self) -> dict[str, Any]:
        return {"processes": list(self.processes)}


def profile_running(
    client: BrokerClient, who: str, *, plan: Plan, seconds: float, say: Callable[[str], None]
) -> Attached:
    """Profiles the processes chosen for some seconds and waits for their files."""
    if plan.tool not in ATTACHABLE:
        raise UsageError(
            f"--tool {plan.tool} cannot attach to a running process", f"use one of {', '.join(ATTACHABLE)}"
        )
    Path(plan.folder).mkdir(parents=True, exist_ok=True)
    body = {
        "tool": plan.tool,
        "folder": plan.folder,
        "state_folder": plan.state_folder,
        "options": plan.options,
        "seconds": seconds,
    }
    begun = client.request("profile", who=who, action="record", **body, timeout_s=_WRITE_S)["processes"]
    running = [process for process in begun if process.get("state") == "recording"]
    failed = [process for process in begun if process.get("state") != "recording"]
    say(f"{plan.tool} in {', '.join(process['who'] for process in running) or 'no process'} for {seconds:g} s")
    ended = [_wait_for(client, process, seconds) for process in running]
    return Attached((*ended, *failed))


def _wait_for(client: BrokerClient, process: dict[str, Any], seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds + _WRITE_S
    while True:
        try:
            answer = client.request("profile", who=f"@{process['pid']}", action="state", timeout_s=_WRITE_S)
        except IncompleteDataError:
            return process | {"state": "gone", "reason": "the process ended while it was being profiled"}
        state = next(each for each in answer["processes"] if each["host"] == process["host"])
        if state.get("state") not in ("recording", "finishing") or time.monotonic() > deadline:
            return dict(state)
        time.sleep(0.1)
