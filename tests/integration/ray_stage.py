"""A Ray cluster of the tests' own, and drivers of `ray_scenes` on it."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue

from live_job import PATIENCE_S, close_pipes

SCENES = Path(__file__).with_name("ray_scenes.py")


class Stage:
    """A driver that plays scenes on request. Ray's files go to a folder of its own."""

    def __init__(self, environment: dict[str, str], *, python: str = sys.executable, **ray_options):
        options = {"log_to_driver": False} | ray_options
        quiet = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        quiet["RAY_DASHBOARD_STARTUP_TIMEOUT_S"] = "240"
        self.process = subprocess.Popen(
            [python, str(SCENES)],
            env=environment | quiet | {"SCENE_RAY": json.dumps(options)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.gcs_address, _, self.dashboard = self._wait_for("READY", 300.0).partition(" ")

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")

    def _wait_for(self, prefix: str, timeout_s: float) -> str:
        while True:
            try:
                line = self._lines.get(timeout=timeout_s)
            except Empty:
                raise AssertionError(f"no {prefix!r} from the driver within {timeout_s} s") from None
            assert line != "" or self.process.poll() is None, f"the driver ended before {prefix!r}"
            assert not line.startswith("FAILED"), line
            if line.startswith(prefix):
                return line.removeprefix(prefix).strip()

    def play(self, scene: str) -> None:
        self.process.stdin.write(scene + "\n")
        self.process.stdin.flush()

    def result(self, scene: str, timeout_s: float = PATIENCE_S):
        return json.loads(self._wait_for(f"RESULT {scene}", timeout_s))

    def end(self) -> None:
        """Lets the driver end; kills it when it does not."""
        if self.process.poll() is None:
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(30)
        close_pipes(self.process)


class Cluster:
    """A Ray cluster that knows nothing of rldbg, started by an ordinary driver, with its dashboard."""

    def __init__(self, folder: Path, *, python: str = sys.executable):
        self.folder = folder
        self.stage = Stage(
            plain_environment(),
            python=python,
            include_dashboard=True,
            _temp_dir=str(folder),
            runtime_env={"env_vars": {"RAY_DEBUG_POST_MORTEM": "1"}},
        )
        # Ray chose the port: one that was free here could be taken by the time its dashboard starts.
        self.url = f"http://{self.stage.dashboard}"

    def end(self) -> None:
        self.stage.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def plain_environment() -> dict[str, str]:
    """No arming, and nothing of an enclosing run."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RLDBG_")}
