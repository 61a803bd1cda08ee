"""Hooks that record: the wrapped function is unchanged, whatever the handler does, and nothing is silently missing."""

import asyncio
import io
import json
import os
import subprocess
import sys
import tomllib
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from rich.console import Console

from rldbg.agent.profiling import Hook
from rldbg.cli.application import run as cli
from rldbg.frameworks import Framework, plan_for, recorded, recording_findings
from rldbg.frameworks.hook_findings import nothing_hooked
from rldbg.frameworks.parameter_selection import parameter_patterns
from rldbg.frameworks.record_plan import HOOKS_FOLDER
from rldbg.recording import Recorder
from rldbg.recording import open as open_recording
from rldbg.reports.frameworks import hooks_of_run

HANDLERS = """
from rldbg.frameworks.recorded import FrameworkRecording

class Recording(FrameworkRecording):
    def loss(self, owner, value):
        result = yield
        self.recorded.recorder().record("loss", step=value, micro=0, loss=result)

    def broken(self, owner, value):
        raise RuntimeError("another version")
        yield

    def answer(self, owner, value):
        yield
        raise RuntimeError("after the call")

RECORDING = Recording
"""


class Trainer:
    """Stands for a class of the framework."""

    def compute_loss(self, value):
        return value / 2

    def clip(self, value):
        if value < 0:
            raise ValueError("the framework's own error")
        return value

    async def ask(self, value):
        return value + 1


@pytest.fixture
def hooked(tmp_path, monkeypatch):
    package = tmp_path / "site" / "small_rl_support"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "recording.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    framework = Framework(name="small_rl", title="Small RL", package="small_rl_support", modules=("small_rl",))
    hooks = (
        Hook("small_rl.loop", "Trainer.compute_loss", records=("loss",), handler="loss"),
        Hook("small_rl.loop", "Trainer.clip", records=("gradient",), handler="broken"),
        Hook("small_rl.loop", "Trainer.ask", records=("trajectory",), handler="answer"),
        Hook("small_rl.loop", "Trainer.renamed", records=("param",), handler="loss"),
        Hook("small_rl.loop", "Trainer.rewards", records=("loss",), handler="loss"),
    )
    monkeypatch.setattr(recorded, "recorded_hooks", lambda: tuple((framework, hook) for hook in hooks))
    monkeypatch.setattr("rldbg.frameworks.hook_findings.find_framework", lambda _name: framework)
    monkeypatch.setenv("RLDBG_RECORD_HOOKS", plan_for(tmp_path / "run").to_text())
    module = types.ModuleType("small_rl.loop")
    module.Trainer = type("Trainer", (Trainer,), dict(vars(Trainer)))
    yield recorded.ProcessHooks(plan_for(tmp_path / "run")), module, tmp_path / "run"
    sys.modules.pop("small_rl_support", None)
    sys.modules.pop("small_rl_support.recording", None)


def test_results_are_those_of_the_framework_and_are_recorded(hooked):
    hooks, module, run = hooked
    hooks.hook(module)

    assert module.Trainer().compute_loss(3) == 1.5
    assert hooks.recorded.recorder().close()

    (record,) = list(open_recording(run).records(kind="loss"))
    assert record.key.step == 3
    assert record.fields["loss"] == 1.5


def test_an_error_of_a_handler_stays_in_it_and_is_named(hooked, capsys):
    hooks, module, run = hooked
    hooks.hook(module)

    assert [module.Trainer().clip(7) for _ in range(3)] == [7, 7, 7]
    assert asyncio.run(module.Trainer().ask(1)) == 2
    with pytest.raises(ValueError, match="the framework's own error"):
        module.Trainer().clip(-1)

    assert capsys.readouterr().err.count("another version") == 1, "said once"
    failed = [finding for finding in recording_findings(run) if finding.id == "recording.hook-failed"]
    assert [finding.where for finding in failed] == [
        "Small RL: small_rl.loop.Trainer.clip",
        "Small RL: small_rl.loop.Trainer.ask",
    ]


def test_a_module_that_a_package_no_longer_has_is_named(hooked, tmp_path, monkeypatch):
    hooks, module, run = hooked
    monkeypatch.setattr(module, "__path__", [str(tmp_path)], raising=False)
    monkeypatch.setitem(sys.modules, "small_rl", module)
    module.__name__ = "small_rl.another"

    hooks.hook(module)

    (missing,) = (each for each in recording_findings(run) if each.id == "recording.hook-missing")
    assert missing.evidence[0] == "small_rl.loop.Trainer.compute_loss: there is no module small_rl.loop (loss)"


def call_hooked(hooks, module, monkeypatch, kind):
    """Calls the only hooked function, which is said to record this kind and records another."""
    ((framework, _), *_) = recorded.recorded_hooks()
    step = Hook("small_rl.loop", "Trainer.compute_loss", records=(kind,), handler="loss")
    monkeypatch.setattr(recorded, "recorded_hooks", lambda: ((framework, step),))
    hooks.hook(module)
    module.Trainer().compute_loss(1)


def test_parameters_that_had_no_gradients_are_named(hooked, monkeypatch):
    hooks, module, run = hooked
    call_hooked(hooks, module, monkeypatch, "gradient")

    (found,) = recording_findings(run)

    assert found.id == "recording.no-gradients"
    assert found.evidence[0].startswith("small_rl.loop.Trainer.compute_loss: called, and no parameter had a gradient")
    assert "recording.no-gradients" not in {finding.id for finding in recording_findings(run, ("loss",))}
    assert recording_findings(run, among=("loss",)) == [], "the run records no gradients"
    hooks.recorded.recorder().close()
    (run / "recording" / "gradient").mkdir()
    assert recording_findings(run) == []


def test_a_kind_that_was_asked_for_and_not_made_is_named(hooked, monkeypatch):
    hooks, module, run = hooked
    call_hooked(hooks, module, monkeypatch, "old_log_probs")
    hooks.recorded.recorder().close()

    assert recording_findings(run) == []
    (found,) = recording_findings(run, ("old_log_probs",))

    assert found.id == "recording.kind-not-made" and "no old_log_probs records" in found.cause
    (run / "recording" / "old_log_probs").mkdir()
    assert recording_findings(run, ("old_log_probs",)) == []


def test_what_was_never_called_or_is_not_there_is_named(hooked, capsys):
    hooks, module, run = hooked
    hooks.hook(module)
    module.Trainer().compute_loss(1)

    missing = {finding.cause: finding.evidence for finding in recording_findings(run)}

    assert missing == {
        "no gradient records: no function that makes them was called": ("never called: Trainer.clip",),
        "no trajectory records: no function that makes them was called": ("never called: Trainer.ask",),
        "no param records: functions that make them are missing or fail": (
            "small_rl.loop.Trainer.renamed: there is no function Trainer.renamed",
        ),
        "functions that are recorded are not in this version: what they give is missing": (
            "small_rl.loop.Trainer.renamed: there is no function Trainer.renamed (param)",
            "small_rl.loop.Trainer.rewards: there is no function Trainer.rewards (loss)",
        ),
    }
    hooks.recorded.recorder().flush()
    asked = [finding.id for finding in recording_findings(run, ("loss",))]
    assert asked == ["recording.hook-missing"], "losses there are, and something of them is missing"
    (other,) = recording_findings(run, ("forward_data",))
    assert other.evidence == ("no function that is hooked records this kind",), "nobody asked for the others"
    assert cli(["frameworks", "--run", str(run)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "Trainer.compute_loss loss 1 0." in shown, "one call, and the seconds that recording it took"
    assert "no gradient records" in shown


def test_a_function_of_a_deep_module_is_named_in_full():
    function = "trl.experimental.async_grpo.async_grpo_trainer.AsyncGRPOTrainer.compute_loss"
    hook = {"records": ["forward_data", "is_loss_debug", "loss"], "calls": 1, "errors": 0, "problem": "", "seconds": 0}
    console = Console(width=80, file=io.StringIO())
    console.print(hooks_of_run([{"host": "h", "pid": 1, "rank": "0", "hooks": {function: hook}}], []))
    assert "AsyncGRPOTrainer.compute_loss" in console.file.getvalue()


def test_a_process_that_is_killed_has_said_what_it_hooked(hooked):
    hooks, module, run = hooked
    hooks.hook(module)
    (file,) = (run / HOOKS_FOLDER).glob("*.json")
    assert json.loads(file.read_text())["hooks"]["small_rl.loop.Trainer.clip"]["calls"] == 0
    module.Trainer().clip(1)
    assert json.loads(file.read_text())["hooks"]["small_rl.loop.Trainer.clip"]["calls"] == 1


def test_a_run_without_any_framework_says_so(tmp_path):
    finding = nothing_hooked(tmp_path)
    assert finding is not None
    assert "TRL" in finding.evidence[0]
    assert "rldbg.record_loop" in finding.fix[0]


def test_what_a_watcher_keeps_for_itself_is_no_recording(tmp_path):
    (Path(plan_for(tmp_path).directory) / ".watch").mkdir(parents=True)
    assert nothing_hooked(tmp_path) is not None


def test_a_run_that_records_by_itself_lacks_no_hooks(tmp_path):
    with Recorder(plan_for(tmp_path).directory) as recorder:
        recorder.record("loss", step=0, loss=1.0)
    assert nothing_hooked(tmp_path) is None


def test_nothing_happens_unless_asked(monkeypatch):
    for name in ("RLDBG_RECORD_HOOKS", "RLDBG_RECORD_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert recorded.process_hooks() is None


def test_of_a_large_model_few_parameters_are_recorded_unless_named():
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8192, 8192), torch.nn.LayerNorm(16))
    patterns, words = parameter_patterns(model, ())
    assert patterns == ("^(?:1\\.bias|1\\.weight|0\\.bias)$",)
    assert words.startswith("3 of 4")
    assert parameter_patterns(model, ("gradient",)) == ((".",), "all")


DOORS = {
    "verl.plugins": "import rldbg.frameworks.verl.plugin",
    "VERL_USE_EXTERNAL_MODULES": "import rldbg.frameworks.verl",
    "vllm.general_plugins": "from rldbg.frameworks.plugin import register; register()",
}


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("door", DOORS)
def test_an_installed_plug_in_is_inert_unless_asked(tmp_path, door, asked):
    program = f"import sys; {DOORS[door]}; print('rldbg.recording' in sys.modules, len(sys.meta_path))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RLDBG_")}
    environment |= {"RLDBG_RECORD_DIR": str(tmp_path / "dump")} if asked else {}
    environment["VERL_USE_EXTERNAL_MODULES"] = "rldbg.frameworks.verl" if door.startswith("VERL") else ""
    plain = subprocess.run(
        [sys.executable, "-c", "import sys; print(len(sys.meta_path))"], capture_output=True, text=True
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == [str(asked), str(int(plain.stdout) + asked)], done.stderr
    assert not (tmp_path / "dump").exists(), "nothing is written before something is recorded"


@pytest.mark.parametrize("group", ["verl.plugins", "vllm.general_plugins", "sglang.srt.plugins"])
def test_the_wheel_declares_a_plug_in_of(group):
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["entry-points"]
    ((name, value),) = declared[group].items()
    assert name == "rldbg"
    assert EntryPoint(name, value, group).load()
