"""Real nsys: workers on Ray and plain ones, and every way in which they end; no report is lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from profile_jobs import LOOP, RAY_JOB, manifest, profile, short_folder, started
from real_nsys import folder_of_nsys


@pytest.fixture(scope="module")
def path() -> str:
    """A PATH that holds the real nsys."""
    return os.pathsep.join([str(folder_of_nsys()), str(Path(sys.executable).parent), os.environ["PATH"]])


def test_kill_ray_kill_shutdown_and_crash_lose_no_report(tmp_path, path):
    """GIVEN a Ray job on two raylets, one worker of which is killed, one ended by ray.kill, one by ray.shutdown
    WHEN its driver crashes too
    THEN all three reports are there, named and placed as documented, and the crash is the exit code."""
    (tmp_path / "job.py").write_text(RAY_JOB)
    done = profile(
        tmp_path,
        "--run",
        "run",
        "--",
        "python",
        "job.py",
        "every way",
        PATH=path,
        NRL_NSYS_WORKER_PATTERNS=" *policy* , ,*vllm*,*nobody*",
        NRL_NSYS_EXTRA_OPTIONS='{"t": "osrt,nvtx", "trace-fork-before-exec": "true"}',
        RAY_LOG_SYNC_FREQUENCY="5",
        SLURM_JOB_ID="4711",
    )
    assert done.returncode == 1, done.stderr
    assert "the driver crashes" in done.stderr
    line = "Nsight profiling enabled for worker '{}' (matched pattern '{}')"
    assert line.format("dtensor_policy_worker", "*policy*") in done.stderr
    assert line.format("vllm_generation_worker", "*vllm*") in done.stderr
    assert "without --steps the files grow large" in done.stderr
    found = manifest(tmp_path / "run" / "profiles")
    assert found["missing"] == [], done.stderr
    reports = [Path(file["path"]) for entry in found["profiles"] for file in entry["files"]]
    names = sorted(report.name.rpartition("_")[0] for report in reports)
    assert names == ["dtensor_policy_worker", "dtensor_policy_worker", "vllm_generation_worker"]
    assert all(
        report.stem.rpartition("_")[2] == str(entry["pid"])
        for entry in found["profiles"]
        for report in [Path(entry["files"][0]["path"])]
    )
    assert all(report.stat().st_size > 10_000 for report in reports)
    # Where the guide looks for them, on the node and in the job's logs.
    for report in reports:
        assert list(short_folder(tmp_path).glob(f"ray/session_*/logs/nsight/{report.name}"))
        assert list((tmp_path / "4711-logs" / "ray").rglob(report.name))
    assert found["unmatched"] == ["*nobody*"]
    assert "bystander" in done.stderr
    # The interpreter that the actor asked for is the one that ran under nsys.
    assert "'kept'" in done.stdout
    readable = subprocess.run(
        [f"{path.partition(os.pathsep)[0]}/nsys", "export", "--type=info", str(reports[0])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert readable.returncode == 0, readable.stderr


def interrupted(folder, path, line, *words):
    """Exit code and errors of a command that gets Ctrl-C when it has printed that line."""
    process = started(folder, *words, stderr=subprocess.PIPE, PATH=path)
    assert process.stdout is not None
    assert any(said.strip() == line for said in process.stdout)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=170)
    return process.returncode, errors


@pytest.mark.timeout(600)
def test_ctrl_c_inside_the_window_leaves_the_report(tmp_path, path):
    """A plain process, its steps told by rldbg.step; the terminal interrupts all of the group."""
    (tmp_path / "loop.py").write_text(LOOP)
    words = ["profile", "--workers", "loop", "--steps", "3:100000", "--tool", "nsys", "--run", "run", "--"]
    code, errors = interrupted(tmp_path, path, "step 8", *words, "python", "loop.py", "100000")
    assert code != 0
    (entry,) = manifest(tmp_path / "run" / "profiles")["profiles"]
    assert Path(entry["files"][0]["path"]).name == f"loop_3:100000_{entry['pid']}.nsys-rep", errors
    assert entry["files"][0]["size_bytes"] > 10_000


def test_a_window_of_steps_and_the_exit_code(tmp_path, path):
    (tmp_path / "loop.py").write_text(LOOP + "sys.exit(7)\n")
    words = ["--workers", "loop", "--steps", "2:4", "--tool", "nsys", "-o", "out", "--run", "run"]
    done = profile(tmp_path, *words, "--json", "--", "python", "loop.py", "6", PATH=path)
    assert done.returncode == 7, done.stderr
    (entry,) = json.loads(done.stdout)["profiles"]
    assert entry["steps"] == "2:4"
    assert Path(entry["files"][0]["path"]).parent == tmp_path / "out"
    assert "step 6" in done.stderr


# What NeMo RL does (`nemo_rl.utils.nsys.maybe_gpu_profile_step`): the variables are read when the module is imported,
# and opening its capture range a second time inside ours ends the report early. NeMo RL itself cannot be installed from
# a package index (its name there is an empty placeholder), and cudaProfilerStart needs a GPU: a file says that it was
# called.
PROFILES_ITSELF = """\
import os
PATTERNS = os.environ.get("NRL_NSYS_WORKER_PATTERNS", "")
STEPS = os.environ.get("NRL_NSYS_PROFILE_STEP_RANGE", "")

def maybe_gpu_profile_step(step):
    assert bool(PATTERNS) == bool(STEPS)
    if PATTERNS and step in range(*map(int, STEPS.split(":"))):
        open(f"own-range-{step}", "w").close()
"""


@pytest.mark.parametrize("asks", ["the environment", "the script"])
def test_a_framework_that_profiles_itself_leaves_the_capture_range_to_us(tmp_path, path, asks):
    (tmp_path / "profiles_itself.py").write_text(PROFILES_ITSELF)
    call = "    profiles_itself.maybe_gpu_profile_step(number)\n"
    (tmp_path / "loop.py").write_text(
        "import profiles_itself\n" + LOOP.replace("rldbg.step(number)\n", f"rldbg.step(number)\n{call}")
    )
    assert call in (tmp_path / "loop.py").read_text()
    variables = {"NRL_NSYS_WORKER_PATTERNS": "loop", "NRL_NSYS_PROFILE_STEP_RANGE": "2:4"}
    exports = "".join(f"export {name}={value}\n" for name, value in variables.items())
    (tmp_path / "train.sh").write_text(f"{exports if asks == 'the script' else ''}python loop.py 6\n")
    flags = ["--workers", "loop", "--steps", "2:4", "--tool", "nsys"] if asks == "the script" else []
    given = {} if asks == "the script" else variables
    done = profile(tmp_path, *flags, "--run", "run", "--", "bash", "train.sh", PATH=path, **given)
    assert done.returncode == 0, done.stderr
    found = manifest(tmp_path / "run" / "profiles")
    assert found["profiles"], (found["missing"], done.stderr)
    (entry,) = found["profiles"]
    assert entry["steps"] == "2:4"
    assert entry["files"][0]["size_bytes"] > 10_000, done.stderr
    assert list(tmp_path.glob("own-range-*")) == []


def test_without_nsys_nothing_starts_and_the_install_command_is_given(tmp_path):
    (tmp_path / "loop.py").write_text("open('started', 'w')\n")
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("python", "bash", "env"):
        target = sys.executable if name == "python" else shutil.which(name)
        (bare / name).symlink_to(target)
    if any(Path("/opt/nvidia").glob("nsight-systems*")):
        pytest.skip("this machine has nsys outside of PATH")
    done = profile(tmp_path, "--workers", "*", "--tool", "nsys", "--", "python", "loop.py", PATH=str(bare))
    assert done.returncode == 3
    assert "nsys" in done.stderr and "apt-get install" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.soak
def test_ctrl_c_on_ray_loses_no_report(tmp_path, path):
    (tmp_path / "job.py").write_text(RAY_JOB)
    words = [
        "profile",
        "--workers",
        "*policy*,*vllm*",
        "--tool",
        "nsys",
        "--run",
        "run",
        "--",
        "python",
        "job.py",
        "wait",
    ]
    _, errors = interrupted(tmp_path, path, "waiting", *words)
    found = manifest(tmp_path / "run" / "profiles")
    assert (len(found["profiles"]), found["missing"]) == (3, []), errors
