"""Editors: VS Code's own debug client steps through `rldbg attach --ide`, and leaving keeps the rank stopped."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from live_job import LiveJob

CLIENT = Path(__file__).parents[2] / ".venvs" / "dap-client"
SCRIPT = Path(__file__).with_name("editor.mjs")
STEPS = """
def step(i):
    loss = i * 0.5
    breakpoint()
    after = loss + 1
    return after
for i in range(3):
    step(i)
print("DONE", flush=True)
"""


@pytest.fixture(scope="module")
def dap_client():
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("no node and npm here")
    if not (CLIENT / "node_modules" / "@vscode").exists():
        CLIENT.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--silent", "--prefix", str(CLIENT), "@vscode/debugadapter-testsupport"]
        if subprocess.run(install, check=False, timeout=120).returncode:
            pytest.skip("the debug client cannot be installed here")
    return CLIENT


@pytest.fixture
def job(tmp_path):
    with LiveJob(tmp_path) as job:
        yield job


def _open_port(job, *options):
    process = subprocess.Popen(
        [sys.executable, "-m", "rldbg", "attach", "train", "--ide", "--json", "--run", str(job.run.path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    job.processes.append(process)
    return process, json.loads(process.stdout.readline())


def test_a_real_editor_steps_through_the_port(job, dap_client):
    script = job.write("train.py", STEPS)
    job.start(script)
    job.wait_stopped()
    _, opened = _open_port(job, "--launch-json", str(job.folder / ".vscode" / "launch.json"))
    written = json.loads((job.folder / ".vscode" / "launch.json").read_text())["configurations"]
    assert written == [opened["configuration"]] and written[0]["connect"]["port"] == opened["port"]
    # The editor sees the files under another folder, as it would on a laptop or through a container's mount.
    local = "/home/somebody/project"
    arguments = [str(dap_client), opened["port"], f"{local}/train.py", 6, local, job.folder]
    command = ["node", str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    said = {}
    for line in done.stdout.splitlines():
        said |= json.loads(line)
    assert said["verified"] == [True]
    assert said["first"] == {"line": 5, "path": f"{local}/train.py", "loss": "0.0"}
    assert said["next"] == 6 and said["continue"] in (4, 5, 6) and said["locals"]["i"] == "1"
    # It asked to terminate the debuggee and left; the process is where it was, for the next client.
    (stopped,) = job.wait_stopped()
    assert stopped["attached_by"] == [] and stopped["pid"] == job.processes[0].pid
    assert "\n1\n" in job.rldbg("attach", "train", "-c", "p i").stdout


def test_an_earlier_launch_json_is_kept_and_comments_are_refused(job, tmp_path):
    job.start(job.write("train.py", STEPS))
    job.wait_stopped()
    path = tmp_path / "launch.json"
    path.write_text(json.dumps({"version": "0.2.0", "configurations": [{"name": "mine"}], "inputs": []}))
    _open_port(job, "--launch-json", str(path))
    body = json.loads(path.read_text())
    assert [each["name"] for each in body["configurations"]] == ["mine", "rldbg train"] and body["inputs"] == []
    path.write_text("// a comment\n{}")
    done = job.rldbg("attach", "train", "--ide", "--launch-json", str(path), check=False)
    assert done.returncode == 2 and "by hand" in done.stderr
    assert path.read_text() == "// a comment\n{}"
