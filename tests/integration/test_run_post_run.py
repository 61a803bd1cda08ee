"""After the command: its output was kept, the doctor names why it failed, and what `doctor --fix` noted was applied."""

import json
import os
import pickle
import pty
import resource
import subprocess
from pathlib import Path

import pytest
from command_line import RLDBG, clean_environment, rldbg

OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1 GiB is free."
FAILING = f"""\
import sys
print("HF_TOKEN=hf_abcdefghijklmnopqrstuvwx", flush=True)
print("\\033[31mon stderr\\033[0m", file=sys.stderr)
def allocate(size):
    raise RuntimeError("{OOM}")
try:
    allocate(2)
except RuntimeError as error:
    raise ValueError("step failed") from error
"""


def test_a_failed_run_is_explained_from_its_output_and_crash_file(tmp_path):
    (tmp_path / "train.py").write_text(FAILING)

    result = rldbg(tmp_path, "run", "--run", "run", "--wait", "0", "--", "python", "train.py")

    assert result.returncode == 1
    assert "root cause: " in result.stderr and "torch-cuda-oom" in result.stderr
    assert "HF_TOKEN=hf_abcdefghijklmnopqrstuvwx" in result.stdout
    log = (tmp_path / "run" / "logs" / "output.log").read_text()
    assert "HF_TOKEN=***redacted***" in log and "on stderr" in log and "hf_abc" not in log
    report = json.loads((tmp_path / "run" / "reports" / "diagnosis.json").read_text())
    assert report["root_causes"][0]["id"] == "torch-cuda-oom"
    quoted = [quote["file"] for quote in report["root_causes"][0]["evidence"]]
    assert any("/crashes/" in file for file in quoted) and any(file.endswith("output.log") for file in quoted)
    assert report["probes"]
    # Asked again later, the run folder tells the same.
    again = rldbg(tmp_path, "doctor", "--json", "run")
    assert json.loads(again.stdout)["root_causes"][0]["id"] == "torch-cuda-oom"


def test_knowledge_that_cannot_be_read_does_not_change_the_exit_code(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "broken.yaml").write_text("- id: broken\n  signatures: []\n")
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")

    environment = clean_environment() | {"RLDBG_KNOWLEDGE": str(tmp_path / "own")}
    line = [*RLDBG, "run", "--run", "run", "--", "python", "train.py"]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 3
    assert "no diagnosis: " in done.stderr and "broken.yaml" in done.stderr
    assert "exit code 3" in done.stderr


def test_json_carries_the_diagnosis_and_an_unknown_cause_stays_unknown(tmp_path):
    (tmp_path / "train.py").write_text("raise LookupError('no such tool')\n")

    result = rldbg(tmp_path, "run", "--json", "--wait", "0", "--", "python", "train.py")

    body = json.loads(result.stdout)
    assert (result.returncode, body["exit_code"], body["diagnosis"]["verdict"]) == (1, 1, "unknown")
    assert body["diagnosis"]["first_error"]["type"] == "LookupError"
    assert body["diagnosis"]["first_error"]["traceback"][-1].startswith(f"{tmp_path}/train.py:1 ")


def test_collective_dumps_of_the_run_are_kept_and_read(tmp_path):
    template = tmp_path / "dumps" / "trace_"
    template.parent.mkdir()
    Path(f"{template}7").write_bytes(b"of an earlier run")
    os.utime(f"{template}7", (1, 1))
    source = Path(__file__).parents[1] / "unit" / "doctor" / "test_doctor_collectives.py"
    (tmp_path / "train.py").write_text(
        "import os, pathlib, pickle, sys\n"
        f"source = pathlib.Path({str(source)!r}).read_text()\n"
        "exec(source[source.index('def dump('):source.index('\\n@')])\n"
        "folder = pathlib.Path(os.environ['TORCH_FR_DUMP_TEMP_FILE']).parent\n"
        "for rank in range(4):\n"
        "    dump(folder, rank, 4, enqueued=7 if rank == 2 else 8, completed=7)\n"
        "    (folder / f'nccl_trace_rank_{rank}').rename(folder / f'trace_{rank}')\n"
        "sys.exit(6)\n"
    )

    result = rldbg(tmp_path, "run", "--run", "run", "--", "python", "train.py", TORCH_FR_DUMP_TEMP_FILE=str(template))

    assert result.returncode == 6
    assert "ranks [2] blocked the others" in result.stderr
    kept = sorted((tmp_path / "run" / "logs" / "flight_recorder").iterdir())
    assert [file.name for file in kept] == [f"nccl_trace_rank_{rank}" for rank in range(4)]
    assert pickle.loads(kept[0].read_bytes())["version"] == "2.9"


RANKS = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
def reward(sample):
    raise LookupError("no verifier for this sample")
for step in range(3):
    if dist.get_rank() == 1 and step == 2:
        reward(step)
    dist.all_reduce(torch.ones(4))
"""


def test_where_the_other_ranks_stood_is_part_of_the_diagnosis(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(RANKS)
    words = ["torchrun", "--standalone", "--nproc_per_node", "2", "train.py", "--output_dir", "out"]

    result = rldbg(tmp_path, "run", "--json", "--run", "run", "--wait", "4", "--", *words)

    found = json.loads(result.stdout)["diagnosis"]
    assert found["verdict"] == "unknown"
    assert found["first_error"]["message"] == "no verifier for this sample"
    assert "rank 1" in found["first_error"]["process"]
    (held_up,) = [finding for finding in found["findings"] if finding["id"].startswith("hang.")]
    assert held_up["where"] == "rank 1"
    assert "rank 0 waits in all_reduce" in held_up["evidence"][0]


def test_who_goes_on_writing_after_the_command_meets_no_broken_pipe(tmp_path):
    (tmp_path / "later.py").write_text(
        "import sys, time, pathlib\n"
        "while not pathlib.Path('ended').exists(): time.sleep(0.05)\n"
        "print('from behind', flush=True)\n"
        "pathlib.Path('still_there').touch()\n"
    )
    (tmp_path / "train.sh").write_text("python later.py & \npython -c 'pass'\npython train.py --output_dir x\n")
    (tmp_path / "train.py").write_text("print('trained')\n")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*RLDBG, "run", "train.sh"], cwd=tmp_path, env=clean_environment(), **pipes) as process:
        assert process.wait(timeout=90) == 0
        (tmp_path / "ended").touch()
        assert process.stdout is not None
        text = process.stdout.read().decode()

    assert "trained" in text and "from behind" in text
    assert (tmp_path / "still_there").exists()


def test_on_a_terminal_the_command_has_one_too(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "print('terminal', [os.isatty(n) for n in range(3)], os.get_terminal_size(1).columns)\n"
        "print('heard', input('say: '))\n"
    )
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", "91", "rows", "20"], stdin=theirs, check=True)
    with subprocess.Popen(
        [*RLDBG, "run", "--", "python", "train.py"],
        cwd=tmp_path,
        env=clean_environment(TERM="xterm"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        seen = b""
        while b"say: " not in seen:
            seen += os.read(ours, 4096)
        os.write(ours, b"something\n")
        while b"run folder" not in seen.partition(b"heard")[2]:
            seen += os.read(ours, 4096)
        assert process.wait(timeout=60) == 0
    os.close(ours)

    assert b"terminal [True, True, True] 91\r\n" in seen
    assert b"heard something\r\n" in seen


def test_what_a_fix_noted_is_applied_and_said(tmp_path):
    (tmp_path / "train.py").write_text(
        "import json, os, resource\n"
        "print(json.dumps([os.environ.get('NCCL_NVLS_ENABLE'), os.environ.get('http_proxy'),"
        " resource.getrlimit(resource.RLIMIT_NOFILE)]))\n"
    )
    for entry in ("nccl-nvls-invalid-argument", "http-proxy-on-internal-traffic"):
        fixed = rldbg(tmp_path, "doctor", "--fix", entry, "--yes", http_proxy="http://proxy")
        assert fixed.returncode == 0, fixed.stderr
    settings = json.loads((tmp_path / ".rldbg" / "run_settings.json").read_text())
    (tmp_path / ".rldbg" / "run_settings.json").write_text(json.dumps(settings | {"raise_limits": True}))

    dry = rldbg(tmp_path, "run", "--dry-run", "--json", "--", "python", "train.py")
    (command,) = json.loads(dry.stdout)["commands"]
    assert {"NCCL_NVLS_ENABLE": "0"}.items() <= {c["what"]: c["value"] for c in command["changes"]}.items()
    result = rldbg(tmp_path, "run", "--", "python", "train.py", http_proxy="http://proxy")

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert json.loads(result.stdout.splitlines()[0]) == ["0", None, [hard, hard]]
    assert "set by rldbg doctor --fix" in result.stderr
    own = rldbg(tmp_path, "run", "--env", "NCCL_NVLS_ENABLE=1", "--", "python", "train.py")
    assert json.loads(own.stdout.splitlines()[0])[0] == "1"


@pytest.mark.parametrize("content", ["{", "[]", '{"environment": 3, "unset": [], "raise_limits": false}'])
def test_damaged_settings_are_refused_with_the_way_out(tmp_path, content):
    (tmp_path / ".rldbg").mkdir()
    (tmp_path / ".rldbg" / "run_settings.json").write_text(content)
    result = rldbg(tmp_path, "run", "--dry-run", "--", "python", "train.py")
    assert result.returncode == 2
    assert "rm .rldbg/run_settings.json" in result.stderr


def test_a_script_that_succeeds_without_its_program_is_no_success(tmp_path):
    (tmp_path / "train.sh").write_text("python train_grpo.py --epochs 3 || true\necho done\n")

    result = rldbg(tmp_path, "run", "--run", "run", "train.sh")

    assert result.returncode == 1
    assert "a program of the script does not exist: exit code 0 counts as a failure" in result.stderr
    assert "launch-script-failed" in result.stderr
