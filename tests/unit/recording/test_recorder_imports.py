"""A recorder goes into other people's training processes: it brings nothing along but numpy."""

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import sys
from rldbg.recording.recorder import Recorder
import numpy
with Recorder(sys.argv[1]) as recorder:
    recorder.record("mine", step=0, x=numpy.arange(3), rows=[[1, 2], [3]], metrics={"a": 1.0})
heavy = {"torch", "ray", "transformers", "pydantic", "omegaconf", "debugpy", "rich", "click", "psutil", "pandas"}
print(sorted(heavy & set(sys.modules)))
"""


def test_recording_needs_numpy_only(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert (tmp_path / "mine" / "step_000000_rank0.safetensors").exists()
