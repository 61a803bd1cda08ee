"""Tools on live runs. They look; those that stop, resume or change processes exist with --allow-control only."""

import ast
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from rldbg.core import UsageError
from rldbg.mcp.recorded_tools import RunName
from rldbg.mcp.tool_results import ToolResult
from rldbg.mcp.workspace import Workspace
from rldbg.reports.plain_text import to_text

_LOOKS = (
    ast.Expression, ast.Name, ast.Load, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.Tuple, ast.List,
    ast.Dict, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop,
)  # fmt: skip
_HARMLESS_CALLS = ("len", "type", "id", "isinstance", "hasattr")


_LOOK_S = 60.0
_COMMAND_S = 20.0
Who = Annotated[str, Field(description="Processes: all, 0, 1,3, 0:8:2, policy/0, *policy*, @PID.")]


class LiveTools:
    """One method per tool, as in RecordedTools."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def tools(self) -> dict[str, Callable[..., ToolResult]]:
        return {"stacks": self.stacks, "hang": self.hang, "evaluate": self.evaluate}

    def control_tools(self) -> dict[str, Callable[..., ToolResult]]:
        return {"command": self.command, "break": self.set_break, "pause": self.pause, "continue": self.resume}

    def stacks(
        self,
        run: RunName,
        who: Who = "all",
        variables: Annotated[bool, Field(description="Also show the local variables of every frame.")] = False,
    ) -> ToolResult:
        """Show the stacks of a live run's processes: identical stacks once, the smallest group first."""
        from rldbg.live import BrokerClient, group_stacks
        from rldbg.reports.stacks import to_lines

        with BrokerClient(self._workspace.live(run)) as client:
            stacks = client.request("stacks", who=who, locals=variables, timeout_s=_LOOK_S)["stacks"]
        places = [{"run": run, "rank": each} for each in sorted({each["who"] for each in stacks})]
        return ToolResult(to_text(to_lines(group_stacks(stacks))), places, "hang explains who waits for whom")

    def hang(self, run: RunName) -> ToolResult:
        """Explain why a live run does not move: who waits for what, who should have done it, what it does instead."""
        from rldbg.live import BrokerClient, explain_run, group_stacks
        from rldbg.reports.findings import to_terminal
        from rldbg.reports.stacks import to_lines

        with BrokerClient(self._workspace.live(run)) as client:
            stacks, causes = explain_run(client)
        findings = [cause.to_finding() for cause in causes]
        places = [{"run": run, "rank": finding.where} for finding in findings if finding.where]
        return ToolResult(to_text([to_terminal(findings), *to_lines(group_stacks(stacks), brief=True)]), places)

    def evaluate(
        self,
        run: RunName,
        expression: Annotated[str, Field(description="A Python expression in the frame where the process stopped.")],
        who: Who = "all",
    ) -> ToolResult:
        """Evaluate an expression in stopped processes: identical answers once, unusual ranks marked."""
        if not self._workspace.allow_control:
            refuse_effects(expression)
        return self._cast(run, f"p {expression}", who)

    def command(
        self,
        run: RunName,
        text: Annotated[str, Field(description="A pdb command, for example n or up.")],
        who: Who = "all",
    ) -> ToolResult:
        """Run a pdb command in stopped processes."""
        return self._cast(run, text, who)

    def set_break(
        self,
        run: RunName,
        place: Annotated[str, Field(description="FILE:LINE.")],
        condition: Annotated[str | None, Field(description="Stop only if this expression is true.")] = None,
        who: Who = "all",
    ) -> ToolResult:
        """Set a breakpoint in running processes."""
        from rldbg.live import break_place

        file, line = break_place(place)
        answer = self._request(run, "break_set", {"file": file, "line": line, "ranks": who, "if": condition})
        return ToolResult(f"breakpoint {answer['id']} at {place}", more="list with the run shows who has stopped")

    def pause(self, run: RunName, who: Who = "all") -> ToolResult:
        """Pause running processes where they are."""
        return self._outcomes(run, "pause", who, "paused")

    def resume(self, run: RunName, who: Who = "all") -> ToolResult:
        """Resume stopped processes."""
        return self._outcomes(run, "continue", who, "resumed")

    def _cast(self, run: str, command: str, who: str) -> ToolResult:
        from rldbg.live import BrokerClient, broadcast
        from rldbg.reports import broadcast as report

        with BrokerClient(self._workspace.live(run)) as client:
            result = broadcast(client, who, command, wait_s=_COMMAND_S)
        places = [{"run": run, "rank": each} for group in result.groups for each in group.who]
        return ToolResult(to_text([*report.to_lines(result), *report.notes(result)]), places)

    def _request(self, run: str, name: str, wanted: dict[str, Any]) -> dict[str, Any]:
        from rldbg.live import BrokerClient

        with BrokerClient(self._workspace.live(run)) as client:
            return dict(client.request(name, **wanted))

    def _outcomes(self, run: str, name: str, who: str, done: str) -> ToolResult:
        from rldbg.reports.processes import outcome_lines

        return ToolResult(to_text(outcome_lines(self._request(run, name, {"who": who})["processes"], done)))


def refuse_effects(expression: str) -> None:
    """Names, attributes, items, arithmetic, `len`, `type`. A call could change the run or hang it in a collective."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError as error:
        raise UsageError(
            f"invalid expression: {error.msg}", "give a Python expression, for example loss.shape"
        ) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in _HARMLESS_CALLS and not node.keywords:
                continue
            what = f"calls {ast.unparse(node.func)}"
        elif isinstance(node, _LOOKS):
            continue
        else:
            what = f"has {type(node).__name__}"
        raise UsageError(
            f"the expression {what}, which may change the run",
            "names, attributes, items and arithmetic are always possible; calls need `rldbg mcp --allow-control`",
        )
