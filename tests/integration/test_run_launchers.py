"""`rldbg run` behind the launchers of the field, really installed: every rank gets its options and its agent."""

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import RLDBG, clean_environment, rldbg
from free_networks import free_port

BIN = Path(sys.executable).parent
TRAIN = """\
import json, os, sys, time
from pathlib import Path
seen = {"orig": sys.orig_argv, "argv": sys.argv[1:], "rank": os.environ.get("RANK", "0")}
seen["agent"] = any(name.startswith("rldbg_agent") for name in sys.modules)
unfinished = Path(f"unfinished-{seen['rank']}")
unfinished.write_text(json.dumps(seen))
unfinished.rename(f"seen-{seen['rank']}")
# A launcher ends the other ranks when one has failed: all of them have to be here first.
deadline = time.monotonic() + 60
while time.monotonic() < deadline and len(list(Path().glob("seen-*"))) < int(os.environ.get("WORLD_SIZE", "1")):
    time.sleep(0.01)
secret = sum(range(10))
if os.environ.get("STOP"):
    breakpoint()
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train_grpo.py").write_text(TRAIN)
    return tmp_path


def has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        pytest.param(
            "torchrun --nproc_per_node 2 --master_port {port}",
            2,
            marks=pytest.mark.skipif(not has("torch"), reason="no torch"),
        ),
        pytest.param(
            "accelerate launch --cpu --num_processes 1",
            1,
            marks=pytest.mark.skipif(not has("accelerate"), reason="no accelerate"),
        ),
        pytest.param(
            "deepspeed --num_gpus 1 --no_local_rank --master_port {port}",
            1,
            marks=pytest.mark.skipif(not has("deepspeed"), reason="no deepspeed"),
        ),
    ],
    ids=["torchrun", "accelerate", "deepspeed"],
)
def test_every_rank_is_armed_and_the_code_comes_back(project, launcher, ranks):
    words = [*launcher.format(port=free_port()).split(), "train_grpo.py", "--output_dir", "out", "--run_name", "n"]
    dry = json.loads(rldbg(project, "run", "--framework", "trl", "--dry-run", "--json", "--", *words).stdout)
    (shown,) = [command for command in dry["commands"] if command["kind"] == "training"]
    assert shown["argv"] == words

    real = rldbg(project, "run", "--framework", "trl", "--no-doctor", "--", *words, CODE="3")

    assert real.returncode != 0, real.stderr
    seen = [json.loads((project / f"seen-{rank}").read_text()) for rank in range(ranks)]
    for process in seen:
        assert process["argv"] == shown["armed_arguments"]
        assert process["orig"][-5:] == words[-5:]
        assert process["agent"]
    assert "--run_name" in shown["armed_arguments"] and "n-Debug" in shown["armed_arguments"]
    assert "launch.not-armed" not in real.stderr


@pytest.mark.skipif(shutil.which("uv", path=str(BIN)) is None, reason="no uv")
def test_an_isolated_uv_environment_without_debugpy_can_be_stopped_and_attached(project):
    """Nothing of ours is installed there, and no debugpy."""
    words = ["uv", "run", "--offline", "--isolated", "--no-project", "--python", sys.executable, "train_grpo.py"]
    command = [*RLDBG, "run", "--framework", "trl", "--run", "run", "--", *words, "--output_dir", "out"]
    with (
        (project / "said").open("w") as said,
        subprocess.Popen(
            command, cwd=project, env=clean_environment(STOP="1", CODE="7"), stdout=said, stderr=said
        ) as armed,
    ):
        who = wait_for_stop(project, armed)
        attached = rldbg(project, "attach", who, "-c", "p secret", "-c", "c", "--run", "run", "--wait", "1")
        assert "45" in attached.stdout, attached.stdout + attached.stderr
        assert armed.wait(timeout=60) == 7
    seen = json.loads((project / "seen-0").read_text())
    assert not seen["orig"][0].startswith(str(BIN))
    assert "out-Debug" in seen["argv"]


def wait_for_stop(project: Path, armed) -> str:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert armed.poll() is None, (project / "said").read_text()
        if "stopped at" in (project / "said").read_text():
            listed = json.loads(rldbg(project, "ps", "--json", "--run", "run").stdout)
            return next(row["who"] for row in listed["processes"] if row["state"] == "stopped")
        time.sleep(0.2)
    raise AssertionError((project / "said").read_text())
