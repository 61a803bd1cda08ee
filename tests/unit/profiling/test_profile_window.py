"""When a window opens, and with which tool."""

import threading
from pathlib import Path

import pytest

from rldbg.agent.profiling import window as window_module
from rldbg.agent.profiling.plan import Choice, Plan
from rldbg.agent.profiling.window import Window, leave_step_marks
from rldbg.profiling.profiled_run import without_own_profile


class Tool:
    def __init__(self) -> None:
        self.started = threading.Event()

    def start(self) -> None:
        self.started.set()

    def stop(self) -> list[Path]:
        return [Path("profile")]


@pytest.mark.parametrize(("has_torch", "tool"), [(False, "pyspy"), (True, "torch")])
def test_a_process_without_torch_is_profiled_by_pyspy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_torch: bool, tool: str
) -> None:
    made: list[str] = []
    fake = Tool()
    monkeypatch.setattr(window_module, "torch_is_imported", lambda: has_torch)
    monkeypatch.setattr(window_module, "torch_can_come", lambda: has_torch)
    monkeypatch.setattr(window_module, "make_tool", lambda plan, _stem, _under: made.append(plan.tool) or fake)
    plan = Plan("torch", ("*",), str(tmp_path / "out"), str(tmp_path / "books"), steps=(2, 3))
    nothing = lambda: None  # noqa: E731
    window = Window(
        plan, Choice("generator", "*"), None, identity=lambda: {"rank": None}, opened=nothing, closed=nothing
    )
    window.begin(torch_is_here=False)
    window.begin(torch_is_here=True)
    leave_step_marks(plan, 2)
    assert fake.started.wait(60)
    leave_step_marks(plan, 3)
    window.finish()
    assert made == [tool]
    assert window.facts()["files"] == ["profile"]


def test_a_framework_does_not_open_the_same_capture_range() -> None:
    given = {"NRL_NSYS_WORKER_PATTERNS": "*policy*", "NRL_NSYS_PROFILE_STEP_RANGE": "3:5", "PATH": "/bin"}
    assert without_own_profile(given) == {"PATH": "/bin"}
