"""When a window opens, and with which tool."""

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from rldbg.agent.profiling import process
from rldbg.agent.profiling import window as window_module
from rldbg.agent.profiling.plan import ChosenWorker, Plan
from rldbg.agent.profiling.tools import ToolError
from rldbg.agent.profiling.window import ProfileWindow, leave_step_marks
from rldbg.profiling.profiled_run import without_own_profile


class Tool:
    def __init__(self, error: str = "") -> None:
        self.error = error
        self.started = threading.Event()
        self.stopped = threading.Event()

    def start(self) -> None:
        self.started.set()
        if self.error:
            raise ToolError(self.error)

    def stop(self) -> list[Path]:
        self.stopped.set()
        return [Path("profile")]


class Generator:
    """A process that has no steps of its own, and a window from step 2 to 3."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, torch: bool, **tools: Tool) -> None:
        self.made: list[str] = []
        self.torch = torch
        self.tools = {"torch": Tool(), "pyspy": Tool()} | tools
        monkeypatch.setattr(window_module, "torch_is_imported", lambda: self.torch)
        monkeypatch.setattr(
            window_module, "make_tool", lambda plan, _stem, _under: self.made.append(plan.tool) or self.tools[plan.tool]
        )
        self.plan = Plan("torch", ("*",), str(folder / "out"), str(folder / "state_folder"), steps=(2, 3))
        nothing = lambda: None  # noqa: E731
        self.window = ProfileWindow(
            self.plan,
            ChosenWorker("generator", "*"),
            None,
            identity=lambda: {"rank": None},
            opened=nothing,
            closed=nothing,
        )
        self.window.begin(torch_is_here=torch)

    def reach(self, step: int) -> None:
        leave_step_marks(self.plan, step)


@pytest.mark.parametrize(("has_torch", "tool"), [(False, "pyspy"), (True, "torch")])
def test_a_process_without_torch_is_profiled_by_pyspy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_torch: bool, tool: str
) -> None:
    generator = Generator(tmp_path, monkeypatch, torch=has_torch)
    generator.reach(2)
    assert generator.tools[tool].started.wait(60)
    generator.reach(3)
    generator.window.finish()
    assert generator.made == [tool]
    assert generator.window.facts()["files"] == ["profile"]


def test_torch_that_comes_inside_the_window_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(tmp_path, monkeypatch, torch=False)
    generator.reach(2)
    assert generator.tools["pyspy"].started.wait(60)
    with generator.window._lock:  # the window has been opened
        generator.torch = True
    generator.window.begin(torch_is_here=True)
    assert generator.tools["torch"].started.is_set()
    assert generator.tools["pyspy"].stopped.wait(60)
    generator.window.finish()
    assert generator.made == ["pyspy", "torch"]
    assert generator.window.facts()["files"] == ["profile"]


def test_without_pyspy_torch_may_still_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(tmp_path, monkeypatch, torch=False, pyspy=Tool("py-spy is not installed on this node"))
    generator.reach(2)
    assert generator.tools["pyspy"].started.wait(60)
    with generator.window._lock:
        assert generator.window.facts()["state"] == "armed"
    generator.torch = True
    generator.window.enter_step(2)
    generator.window.finish()
    assert generator.window.facts()["state"] == "done"


def test_a_process_that_neither_tool_can_profile_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(tmp_path, monkeypatch, torch=False, pyspy=Tool("py-spy is not installed on this node"))
    generator.reach(2)
    assert generator.tools["pyspy"].started.wait(60)
    generator.window.finish()
    facts = generator.window.facts()
    assert (facts["state"], facts["reason"]) == (
        "failed",
        "it has not imported torch, and py-spy is not installed on this node",
    )


def test_a_framework_does_not_open_the_same_capture_range() -> None:
    given = {"NRL_NSYS_WORKER_PATTERNS": "*policy*", "NRL_NSYS_PROFILE_STEP_RANGE": "3:5", "PATH": "/bin"}
    assert without_own_profile(given) == {"PATH": "/bin"}


def test_a_script_that_asks_nemo_rl_to_profile_itself_is_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nemo_rl.utils.nsys` reads the variables when it is imported, after the start-up hook."""
    monkeypatch.setenv("NRL_NSYS_WORKER_PATTERNS", "*policy*")
    monkeypatch.setenv("NRL_NSYS_PROFILE_STEP_RANGE", "3:5")
    plan = Plan("torch", ("*",), str(tmp_path), str(tmp_path))
    monkeypatch.setattr(process.Settings, "from_environment", lambda: object())
    monkeypatch.setattr(process.Plan, "from_environment", lambda: plan)
    monkeypatch.setattr(process, "Profile", lambda *_: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(sys, process.ATTRIBUTE, None, raising=False)
    monkeypatch.delattr(sys, process.ATTRIBUTE)
    process.begin()
    monkeypatch.delattr(sys, process.ATTRIBUTE)
    assert not [name for name in os.environ if name.startswith("NRL_NSYS")]
