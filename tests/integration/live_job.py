"""A job under a real broker, for tests of the live plane: armed processes, real debugpy, no fixed sleeps."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rldbg.agent import Arming, armed_environment
from rldbg.core import Run
from rldbg.live import BrokerClient, start_broker, stop_broker

PATIENCE_S = 60.0
# Adds up until a file `stop` is there; stops itself when a file `break_RANK` is.
LOOP = """
import os, pathlib, time
def body(i, total):
    total = total + i
    return total
def main():
    i = total = 0
    while not pathlib.Path("stop").exists():
        total = body(i, total)
        i += 1
        if pathlib.Path(f"break_{os.environ.get('RANK', 0)}").exists():
            pathlib.Path(f"break_{os.environ.get('RANK', 0)}").unlink()
            breakpoint()
        time.sleep(0.002)
main()
print("ENDED", flush=True)
"""


def until(condition, what, timeout_s=PATIENCE_S):
    """The first true value of `condition()`, polled; fails with `what` when it never comes."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_s} s: {what}")


def rldbg(*arguments, run=None, check=True, timeout_s=PATIENCE_S, **options):
    """The command line in a process of its own."""
    extra = ["--run", str(run)] if run else []
    done = subprocess.run(
        [sys.executable, "-m", "rldbg", *arguments, *extra],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        check=False,
        **options,
    )
    assert not check or done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def assert_not_in_processes(token):
    """No process shows it in its command line or environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                assert token.encode() not in (folder / name).read_bytes(), f"{folder}/{name}"


def close_pipes(process):
    """Of a process that has ended."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


class LiveJob:
    """A run folder with a broker, and the processes started in it."""

    def __init__(
        self,
        folder: Path,
        *,
        arming: Arming | None = None,
        environment: dict[str, str] | None = None,
        host: str = "127.0.0.1",
    ):
        self.folder = folder
        self.run = Run.create(name="test", path=folder / "run")
        start_broker(self.run, owner_pid=os.getpid(), host=host)
        self.environment = os.environ | armed_environment(self.run.path, arming) | (environment or {})
        self.client = BrokerClient(self.run.path)
        self.processes: list[subprocess.Popen] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE_S)
            close_pipes(process)
        with contextlib.suppress(Exception):
            self.client.__exit__()
            stop_broker(self.run.path)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def start(self, *arguments, python=sys.executable, **environment):
        process = subprocess.Popen(
            [python, *map(str, arguments)],
            env=self.environment | {name: str(value) for name, value in environment.items()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )
        self.processes.append(process)
        return process

    def ranks(self, script, count, *arguments, **environment):
        return [
            self.start(script, *arguments, RANK=rank, WORLD_SIZE=count, LOCAL_RANK=rank, **environment)
            for rank in range(count)
        ]

    def ps(self, **options):
        return self.client.request("ps", **options)["processes"]

    def stopped(self):
        return [process for process in self.ps() if process["state"] == "stopped" and process["debugged"]]

    def wait_stopped(self, count=1):
        return until(lambda: len(self.stopped()) >= count and self.stopped(), f"{count} stopped: {self.ps()}")

    def rldbg(self, *arguments, **options):
        return rldbg(*arguments, **({"run": self.run.path} | options))

    def broker_pid(self):
        import json

        return json.loads((self.run.path / "broker.json").read_text())["pid"]

    def kill_broker(self, number=signal.SIGKILL):
        os.kill(self.broker_pid(), number)

    def replace_broker(self):
        """Kills the broker, if there is one, and starts the next."""
        with contextlib.suppress(ProcessLookupError):
            self.kill_broker()
        start_broker(self.run, owner_pid=os.getpid())
        self.client.__exit__()
        self.client = BrokerClient(self.run.path)


def output(process, timeout_s=PATIENCE_S):
    """What a process printed until its end; fails when it does not end."""
    text, _ = process.communicate(timeout=timeout_s)
    return text


@contextlib.contextmanager
def looping_job(folder):
    """A job of one process that runs a loop, and whose agent has come."""
    with LiveJob(folder) as job:
        job.start(job.write("loop.py", LOOP))
        until(lambda: any(p["who"] == "loop" for p in job.ps()), "the agent")
        yield job
