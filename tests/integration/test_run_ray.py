"""`rldbg run` on real Ray: a cluster that the script starts, a job submitted to it, a driver that joins it later."""

import json
import os
import signal
from pathlib import Path

import command_line
import psutil
import pytest
from free_networks import free_port

TRAIN = """\
import json, os, sys
import ray

@ray.remote
class Worker:
    def run(self):
        names = ("RAY_DEBUG_POST_MORTEM", "PYTHONPATH", "THEIRS", "MINE", "RLDBG_RUN")
        return {name: os.environ.get(name) for name in names} | {"agent": hasattr(sys, "_rldbg_agent")}

if __name__ == "__main__":
    # The same variable as in the job's runtime environment: Ray would refuse it if arming did not see to that.
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": "/from/driver"}})
    worker = ray.get(Worker.remote().run.remote())
    with open(os.environ["SEEN"], "w") as seen:
        json.dump({"argv": sys.argv[1:], "worker": worker, "agent": hasattr(sys, "_rldbg_agent")}, seen)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A slime-shaped project; whatever Ray its scripts start is ended by its temporary folder, and nothing else is."""
    folder = tmp_path_factory.mktemp("ray_project")
    temporary = Path(f"/tmp/rldbg-runtest-{os.getpid()}-t")
    port, dashboard, agent = free_port(), free_port(), free_port()
    (folder / "train.py").write_text(TRAIN)
    (folder / "slime.sh").write_text(
        f'set -e\ncd "$(dirname "$0")"\n'
        f"ray start --head --port={port} --dashboard-port={dashboard} --num-cpus=2 --include-dashboard=true "
        # Another Ray on this machine may hold the agent's usual port, and without it no job is taken.
        f"--dashboard-agent-listen-port={agent} "
        f"--disable-usage-stats --temp-dir={temporary} > start.log\n"
        'RUNTIME_ENV_JSON="{\\"env_vars\\": {\\"PYTHONPATH\\": \\"/root/Megatron-LM/\\", \\"THEIRS\\": \\"1\\", '
        '\\"SEEN\\": \\"$SEEN\\"}}"\n'
        # The head takes submissions only once its agent is up.
        "for attempt in $(seq 60); do\n"
        f'ray job submit --address="http://127.0.0.1:{dashboard}" --runtime-env-json="${{RUNTIME_ENV_JSON}}" \\\n'
        "   -- python3 train.py --hf-checkpoint m --rollout-batch-size 8 --num-rollout 3000 --save /out/ && exit 0\n"
        "sleep 1\ndone\nexit 1\n"
    )
    yield folder, port
    for process in psutil.process_iter(["cmdline"]):
        if any(str(temporary) in word for word in process.info["cmdline"] or ()):
            process.send_signal(signal.SIGKILL)


def rldbg(folder: Path, *words: str, **more: str):
    own = {"RAY_USAGE_STATS_ENABLED": "0", "SEEN": str(folder / "seen.json")}
    return command_line.rldbg(folder, *words, timeout_s=170, **own, **more)


def seen(folder: Path) -> dict:
    body = json.loads((folder / "seen.json").read_text())
    (folder / "seen.json").unlink()
    return body


def test_submitted_job_is_armed_in_driver_and_workers(project):
    folder, _ = project

    result = rldbg(folder, "run", "--wait", "1", "--env", "MINE=1", "slime.sh")

    assert result.returncode == 0, result.stderr[-3000:]
    found = seen(folder)
    assert found["agent"] and found["worker"]["agent"]
    assert found["argv"][:2] == ["--hf-checkpoint", "m"]
    assert found["argv"][8:12] == ["--save", "/out-Debug/", "--num-rollout", "1"]
    assert found["worker"]["RAY_DEBUG_POST_MORTEM"] == found["worker"]["MINE"] == found["worker"]["THEIRS"] == "1"
    assert found["worker"]["PYTHONPATH"].endswith("/agent/startup:/from/driver")
    assert "launch.not-armed" not in result.stderr


def test_driver_that_joins_a_running_cluster_arms_its_workers(project):
    folder, port = project
    mode = "token" if (Path.home() / ".ray" / "auth_token").exists() else "disabled"

    result = rldbg(
        folder,
        *(
            "run",
            "--wait",
            "1",
            "--framework",
            "slime",
            "--env",
            "MINE=2",
            "--",
            "python",
            "train.py",
            "--num-rollout",
            "9",
        ),
        RAY_ADDRESS=f"127.0.0.1:{port}",
        RAY_AUTH_MODE=mode,
    )

    assert result.returncode == 0, result.stderr[-3000:]
    found = seen(folder)
    assert found["worker"]["agent"] and found["worker"]["MINE"] == "2"
    assert found["worker"]["RAY_DEBUG_POST_MORTEM"] == "1"
    assert found["argv"][2:4] == ["--num-rollout", "1"]
    assert "Ray cluster started at: " in result.stderr
    assert f"local folder {folder}" in result.stderr
