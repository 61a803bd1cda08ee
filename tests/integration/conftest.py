"""Makes the modules of this folder importable by its tests (pytest's importlib mode leaves sys.path alone)."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
# A suite started in the background inherits an ignored Ctrl-C; the programs under test must not.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_breakpoint():
    """Ray puts its own breakpoint() into the environment of a process that joined a cluster, and leaves it there;
    programs of later tests must not inherit it."""
    yield
    os.environ.pop("PYTHONBREAKPOINT", None)


@pytest.fixture
def rldbg_here(capsys):
    """`rldbg ARGUMENTS` in this process, where torch and transformers are imported once: for commands that would spend
    more time on their start than on their work, and whose process is not what the test is about."""
    from rldbg.cli.application import run

    def call(*arguments):
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def ray_cluster():
    """One Ray cluster for all tests of the live plane; starting one takes longer than most of them."""
    from ray_stage import Cluster

    cluster = Cluster(Path(f"/tmp/rldbg-cluster-{os.getpid()}"))
    yield cluster
    cluster.end()


@pytest.fixture
def by_itself(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of the tests that ask for it one runs at a time, whatever the number of workers: profilers and looks at whole
    clusters slow each other down beyond their time limits."""
    with (tmp_path_factory.getbasetemp().parent / "by_itself.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
