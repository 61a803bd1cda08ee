"""Check, before anything starts, that the tool is installed on every node that will run a worker."""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rldbg.agent.profiling import INSTALL, find_nsys
from rldbg.core import Environment, PrerequisiteError, UnreachableError, ray_access

_PROBE_S = 60.0
_PROBE = """\
import json, sys
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

@ray.remote(num_cpus=0)
def look(patterns):
    import glob, shutil
    return shutil.which("nsys") or next((path for each in patterns for path in glob.glob(each)), "")

ray.init(address=sys.argv[1], logging_level="error", log_to_driver=False)
nodes = [node for node in ray.nodes() if node["Alive"]]
places = [On(node["NodeID"], soft=False) for node in nodes]
found = ray.get([look.options(scheduling_strategy=place).remote(json.loads(sys.argv[2])) for place in places])
names = [f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})" for node in nodes]
print(json.dumps(dict(zip(names, found))))
"""


def check_tool(tool: str) -> None:
    if tool == "nsys":
        check_nsys(Environment())
    elif tool == "pyspy" and shutil.which("py-spy") is None and not (Path(sys.executable).parent / "py-spy").exists():
        raise PrerequisiteError("py-spy is not installed", "pip install py-spy, in the environment of the workers")


def check_nsys(environment: Environment) -> None:
    """Checks for nsys on this machine, or on each node of the cluster that the job will join."""
    address = environment.text("RAY_ADDRESS")
    found = nodes_with_nsys(address, environment.everything()) if address and address != "local" else {}
    lacking = [node for node, path in found.items() if not path]
    if lacking:
        raise PrerequisiteError(
            f"nsys is not installed on {', '.join(lacking)}", f"on each of these nodes, before `ray start`: {INSTALL}"
        )
    if not found and find_nsys() is None:
        raise PrerequisiteError("nsys (NVIDIA Nsight Systems) is not installed on this machine", INSTALL)


def nodes_with_nsys(address: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Each live node of a Ray cluster with the nsys that its workers would find; empty when the cluster does not
    answer."""
    if importlib.util.find_spec("ray") is None:
        return {}
    try:
        access = ray_access(address, Environment(environment))
    except UnreachableError:
        return {}
    elsewhere = json.dumps(["/opt/nvidia/nsight-systems*/*/bin/nsys", "/usr/local/cuda*/bin/nsys"])
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, address, elsewhere],
            env=dict(environment) | access,
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=True,
        )
        found: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError):
        return {}
    return found
