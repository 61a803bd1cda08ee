"""Tools on recordings and logs: the same results and reports as the verbs of these names."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from rldbg.core import Finding, IncompleteDataError, SampleId, UsageError
from rldbg.mcp.tool_results import ToolResult, cited, only_place
from rldbg.mcp.workspace import Workspace
from rldbg.reports.plain_text import to_text

RunName = Annotated[str, Field(description="Name of a run, as `list` gives it.")]
Steps = Annotated[list[int] | None, Field(description="Only these steps. Default: all.")]
_MAX_RECORDS = 6
_MAX_RUNS = 50


class RecordedTools:
    """One method per tool; its docstring and the descriptions of its parameters are what an agent reads."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def tools(self) -> dict[str, Callable[..., ToolResult]]:
        return {
            "list": self.list_runs,
            "show": self.show,
            "check": self.check,
            "compare": self.compare,
            "mismatch": self.mismatch,
            "doctor": self.doctor,
            "zoo": self.zoo,
        }

    def list_runs(
        self, run: Annotated[str | None, Field(description="Also list the processes of this live run.")] = None
    ) -> ToolResult:
        """List the runs that are opened, their steps and kinds, and which are live; with `run`, its processes."""
        from rldbg.live import BrokerClient
        from rldbg.reports import processes as report

        if run is not None:
            with BrokerClient(self._workspace.live(run)) as client:
                found = client.request("ps")["processes"]
            stopped = [each["who"] for each in found if each["state"] == "stopped"]
            hint = f"evaluate, on {', '.join(stopped[:8])}" if stopped else "stacks, hang"
            return ToolResult(to_text([report.to_terminal(found), *report.notes(found)]), more=hint)
        runs = self._workspace.runs()
        lines = [_run_line(each) for each in runs[:_MAX_RUNS]] or ["no runs found"]
        if len(runs) > _MAX_RUNS:
            lines.append(f"and {len(runs) - _MAX_RUNS} more runs: start the server with the folder of fewer")
        return ToolResult(
            "\n".join(lines), more="check (one run), compare (two runs), hang (a live run), doctor (logs)"
        )

    def show(
        self,
        run: RunName,
        step: Annotated[int | None, Field(description="Only this step.")] = None,
        kind: Annotated[str | None, Field(description="Only this kind of records, for example trajectory.")] = None,
        rank: Annotated[int | None, Field(description="Only this rank.")] = None,
        sample: Annotated[str | None, Field(description="GROUP/RUN: show this sample token by token.")] = None,
    ) -> ToolResult:
        """Show the contents of a recording, the fields of its records, or one sample token by token."""
        from rldbg.recording import TokenColumns
        from rldbg.reports import recording as report

        opened = self._workspace.run(run)
        recording = opened.reopened()
        if sample is not None:
            found = recording.sample(SampleId.parse(sample), step, kind, rank)
            columns = TokenColumns(found)
            texts, reason = opened.texts_of(columns.tokens.tolist())
            note = [] if texts else [f"token ids are shown without text: {reason}"]
            text = to_text([report.sample_to_terminal(found, columns, texts), *note])
            place = {"run": run, "step": found.step, "sample": sample}
            return ToolResult(text, [place])
        if (step, kind, rank) == (None, None, None):
            summary = recording.summary()
            ids = [str(each) for step in recording.steps()[:1] for each in recording.samples(step=step)[:5]]
            more = f"show with sample, for example {', '.join(ids)}" if ids else ""
            return ToolResult(to_text([report.to_terminal(summary)]), more=more)
        entries = recording.entries(kind, step, rank)
        if not entries:
            kinds, steps = ", ".join(recording.kinds()), report.ranges(recording.steps())
            raise IncompleteDataError(
                f"run {run} has no such record", f"it has kinds {kinds}; steps {steps}; ranks {recording.ranks()}"
            )
        records = [recording.read_entry(entry) for entry in entries[:_MAX_RECORDS]]
        text = to_text(report.record_to_terminal(each) for each in records)
        left = len(entries) - len(records)
        words = ("step", "rank", "micro")
        places = [{"run": run} | {word: getattr(each.key, word) for word in words} for each in records]
        return ToolResult(text, places, f"{left} more records: narrow with kind, step and rank" if left else "")

    def check(
        self,
        run: RunName,
        steps: Steps = None,
        only: Annotated[list[str] | None, Field(description="Only these checks, by id.")] = None,
    ) -> ToolResult:
        """Check the invariants of one recording: which does not hold, at which step, sample and token."""
        from rldbg.analysis import check
        from rldbg.reports.check import to_terminal

        report = check(self._workspace.run(run).reopened(), only=only or (), steps=steps)
        more = "show with the step and sample of a citation; compare with a run that is right, where there is one"
        return ToolResult(to_text(to_terminal(report, ())), _cited_findings(run, report.findings), more)

    def compare(
        self,
        run_a: Annotated[str, Field(description="Name of the run that is right, or was first.")],
        run_b: Annotated[str, Field(description="Name of the other run.")],
        steps: Steps = None,
        kinds: Annotated[list[str] | None, Field(description="Only these kinds of records.")] = None,
    ) -> ToolResult:
        """Find the first stage, step, rank, sample and token where two recordings differ, and the cause if proven."""
        from rldbg.analysis import compare, noise_beside
        from rldbg.reports.comparison import to_terminal

        first, second = self._workspace.run(run_a).reopened(), self._workspace.run(run_b).reopened()
        chosen = tuple(steps) if steps else None
        result = compare(first, second, steps=chosen, kinds=kinds or None, repetitions=noise_beside(first), jobs=1)
        first_place = [{"run": run_b} | result.first_difference.to_dict()] if result.first_difference else []
        more = "show of both runs at the cited place" if first_place else ""
        return ToolResult(to_text(to_terminal([result])), [only_place(place) for place in first_place], more)

    def mismatch(self, run: RunName, steps: Steps = None) -> ToolResult:
        """Explain the gap between rollout and trainer log probs: shares per cause, with the tokens that prove them."""
        from rldbg.mismatch import explain_mismatch
        from rldbg.reports.mismatch import to_terminal

        report = explain_mismatch(self._workspace.run(run).reopened(), None, steps=steps)
        text = to_text(to_terminal(report))
        return ToolResult(text, cited(run, *text.splitlines()), "" if report.agrees else "show with a cited sample")

    def doctor(
        self,
        run: Annotated[str | None, Field(description="A run, whose logs are read.")] = None,
        path: Annotated[str | None, Field(description="A log file or a folder of logs instead.")] = None,
        failure: Annotated[str | None, Field(description="Id of a known failure to explain.")] = None,
    ) -> ToolResult:
        """Find the root cause of a failure in logs, with evidence and fix; or explain one known failure."""
        from rldbg.doctor import Library, diagnose
        from rldbg.reports.diagnosis import to_terminal
        from rldbg.reports.knowledge import entry_to_terminal

        if sum(each is not None for each in (run, path, failure)) != 1:
            raise UsageError("give one of run, path and failure", "for example path='logs/'")
        if failure is not None:
            return ToolResult(to_text([entry_to_terminal(Library.load()[failure])]))
        place = str(self._workspace.run(run).path if run is not None else self._workspace.file(str(path)))
        found = diagnose((place,))
        causes = [cause.id for cause in found.root_causes]
        more = f"doctor with failure={causes[0]!r} explains it" if causes else ""
        text = to_text([to_terminal(found)])
        return ToolResult(text, cited(run or place, *text.splitlines()), more)

    def zoo(
        self,
        words: Annotated[str, Field(description="Only bugs whose name, stage or story contains these words.")] = "",
    ) -> ToolResult:
        """List known bugs of RL training, what each does and at which stage it shows: for comparing symptoms."""
        from rldbg.reports.zoo import list_to_terminal
        from rldbg.trainer.zoo import BUGS

        wanted = words.lower().split()
        bugs = [bug for bug in BUGS if all(word in f"{bug.name} {bug.stage} {bug.story}".lower() for word in wanted)]
        if not bugs:
            raise UsageError(f"no bug in the zoo contains the words {words!r}", "call zoo with fewer words")
        return ToolResult(to_text([list_to_terminal(bugs)]))


def _run_line(run: Any) -> str:
    from rldbg.core import RldbgError
    from rldbg.live import is_alive
    from rldbg.reports.recording import ranges

    alive = "live, " if run.folder is not None and is_alive(run.folder) else ""
    try:
        recording = run.reopened()
        steps = ranges(recording.steps()) if recording.steps() else "none"
        facts = f"steps {steps}; ranks {ranges(recording.ranks())}; kinds {', '.join(recording.kinds())}"
    except RldbgError as error:
        facts = f"no recording ({error.message})"
    return f"{run.name}: {alive}{facts}"


def _cited_findings(run: str, findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return cited(run, *(finding.where for finding in findings))
