"""Jobs that are profiled, and how: the command line in a clean environment."""

import atexit
import json
import os
import shutil
import subprocess
from pathlib import Path

from command_line import RLDBG, clean_environment, rldbg

POLICY = """\
import os, ray, torch

class Policy:
    def __init__(self):
        self.model = torch.nn.Linear(16, 16)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def train(self):
        self.model(torch.ones(4, 16)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
"""

# Never imports rldbg. Two raylets: policies on one, the engine on the other.
RAY_JOB = (
    POLICY
    + """\
import signal, sys, time
from ray.cluster_utils import Cluster

@ray.remote(num_cpus=0)
class DTensorPolicyWorker(Policy):
    def train(self):
        super().train()
        return os.getpid(), os.environ.get("MARK")
    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

@ray.remote(num_cpus=0)
class InnerWorker:
    def forward(self):
        torch.ones(8).prod()

@ray.remote(num_cpus=0)
class VllmGenerationWorker:
    def __init__(self, nested):
        self.inner = InnerWorker.remote() if nested else None
    def generate(self):
        torch.ones(8).sum()
        if self.inner:
            ray.get(self.inner.forward.remote())
        time.sleep(0.3)
        return os.getpid()

@ray.remote(num_cpus=0)
class Bystander:
    def look(self):
        return os.getpid()

head = {"num_cpus": 1, "resources": {"a": 9}, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(num_cpus=1, resources={"b": 9})
ray.init(address=cluster.address, logging_level="error")
marked = {"py_executable": f"env MARK=kept {sys.executable}"}
one = DTensorPolicyWorker.options(resources={"a": 1}, runtime_env=marked).remote()
two = DTensorPolicyWorker.options(resources={"b": 1}).remote()
engine = VllmGenerationWorker.options(resources={"b": 1}).remote(nested="nested" in sys.argv)
other = Bystander.options(resources={"a": 1}).remote()
ray.get(other.look.remote())
for step in range(4):
    trained = ray.get([one.train.remote(), two.train.remote()])
    ray.get(engine.generate.remote())
print("trained", trained, flush=True)
ending = sys.argv[1] if len(sys.argv) > 1 else "end"
if ending == "every way":
    one.kill.remote()
    ray.kill(two)
    ray.shutdown()
    raise RuntimeError("the driver crashes")
if ending == "wait":
    print("waiting", flush=True)
    time.sleep(600)
"""
)

LOOP = """\
import sys, time
import rldbg
for number in range(1, int(sys.argv[1]) + 1):
    rldbg.step(number)
    with rldbg.phase("reward"):
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            sum(range(1000))
    print("step", number, flush=True)
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    source = str(Path(__file__).parents[2] / "src")
    own = {"PYTHONPATH": source, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    return clean_environment(**own | {"RAY_TMPDIR": str(folder)} | more)


def profile(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return rldbg(folder, "profile", *words, env=environment(short_folder(folder), **more), timeout_s=175)


def started(folder: Path, *words: str, stderr: int = subprocess.DEVNULL, **more: str) -> subprocess.Popen[str]:
    """A verb on its way, in a process group of its own, so that a test can do as a terminal does."""
    return subprocess.Popen(
        [*RLDBG, *words],
        cwd=folder,
        env=environment(short_folder(folder), **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def short_folder(folder: Path) -> Path:
    """Ray's sockets have short names only."""
    short = Path(f"/tmp/rldbg-p-{os.getpid()}-{abs(hash(str(folder))) % 10000}")
    if not short.exists():
        short.mkdir()
        atexit.register(shutil.rmtree, short, ignore_errors=True)
    return short


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())
