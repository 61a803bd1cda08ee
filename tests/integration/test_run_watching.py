"""While it runs: processes without an agent are named with the reason, breakpoints never reached are a finding."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """\
import subprocess, sys, time
# A worker whose interpreter ignores PYTHONPATH lives until the launcher has named it, which the launcher's log tells.
worker = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"])
deadline = time.monotonic() + 90
while time.monotonic() < deadline and "disables the start-up hook" not in open(sys.argv[1]).read():
    time.sleep(0.2)
worker.kill()
worker.wait()


def never():
    return 1
"""


def test_unreached_worker_and_unreached_breakpoint(tmp_path: Path):
    (tmp_path / "train.py").write_text(PROGRAM)
    never = PROGRAM.splitlines().index("    return 1") + 1
    said = tmp_path / "said"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RLDBG", "RAY_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = ["run", "--break", f"{tmp_path}/train.py:{never}", "--", "python", "train.py", str(said)]
    with said.open("w") as log:
        code = subprocess.run(
            [sys.executable, "-m", "rldbg", *words],
            cwd=tmp_path,
            env=clean | {"PATH": path},
            stdout=log,
            stderr=log,
            timeout=150,
            check=False,
        ).returncode

    text = said.read_text()
    assert code == 0, text
    assert "was started with -I, which disables the start-up hook" in text
    assert "launch.breakpoint-never-reached" in text
