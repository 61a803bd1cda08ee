"""What a stub that is more than a no-op does in a dry run, after its call has been noted.

Programs that start others (`srun`, `ray job submit`, `docker run`) pass on to the command they would start, which is
a stub again: so the training command behind them is seen as well. Questions (`scontrol show hostnames`,
`hostname -I`, `git rev-parse`) are answered, because scripts build their arguments from the answers.
"""

import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rldbg.core import Environment
from rldbg.launch.command_line import is_interpreter, understand
from rldbg.launch.dry_run.calls import PREFIX
from rldbg.launch.known_launchers import peel, word_set
from rldbg.launch.nodelist import expand

_REAL_LIMIT_S = 10
_DEEPEST = 8
_MOST_TASKS = 8
_SHELLS = word_set("bash sh env nohup timeout nice stdbuf time setsid")
_HARMLESS_GIT = word_set("rev-parse describe log status config branch show diff ls-files remote symbolic-ref")
_CLONE_VALUES = word_set(
    "-b --branch --depth -o --origin -c --config -u --upload-pack -j --jobs --reference --template --filter "
    "--shallow-since --shallow-exclude --separate-git-dir"
)
_HARMLESS_SMI = re.compile(r"-L|-q|topo|--list-gpus|--query-.*|--format=.*|-m|-i|-d|\d+|[A-Z,]+|--id=.*|--display=.*")

RECORDED = word_set(
    "python python2 python3 pypy3 uv uvx ray torchrun deepspeed accelerate accelerate-launch coverage srun sbatch "
    "salloc apptainer singularity docker podman nerdctl enroot ssh kubectl sudo nsys ncu mpirun mpiexec conda mamba "
    "micromamba poetry pdm rye pixi pipenv hatch numactl taskset pkill killall fuser rm shutdown reboot scontrol "
    "squeue scancel sinfo sacct nvidia-smi git hostname sleep tmux screen"
)
"""Commands whose calls are noted. Those in ALWAYS have a stub even if the machine does not have them."""

ALWAYS = word_set("python python3 uv ray torchrun deepspeed accelerate rm pkill killall sleep hostname")

SILENT = word_set(
    "pipx apt apt-get yum dnf apk brew hf huggingface-cli modelscope wandb swanlab gsutil gcloud aws s3cmd "
    "rclone rsync scp sftp wget curl nc ncat telnet ping npm npx node ninja cmake gcc g++ nvcc "
    "systemctl service mount umount modprobe sysctl chown chgrp ufw iptables tar unzip zip gunzip gzip bunzip2 xz dd "
    "mkfs git-lfs crontab at batch mail sendmail kill logger renice chrt xdg-open"
)
"""Commands that would reach out or take long: they succeed at once and say nothing."""

PIP = word_set("pip pip3")
PIP_QUESTIONS = word_set("list show freeze check inspect config debug help -V --version")
"""What pip is only asked: that is answered by the real one, because scripts look for versions and folders in it."""

LENIENT = word_set("mkdir cp mv ln touch chmod install truncate")
"""Commands that really run inside the sandbox and whose failure there means nothing."""


_NODES = "".join(f" 1 node_{number:02d}\n" for number in range(64))
_RAY_STATUS = f"""\
======== Autoscaler status ========
Node status
Active:
{_NODES}Pending:
 (no pending nodes)
Resources
Usage:
 0.0/4096.0 CPU
 0.0/512.0 GPU
 0.0/UNITS.0 worker_units
"""
"""A cluster that is large enough for any script that waits for its nodes."""
_RESOURCE = re.compile(r'\\?"worker_units\\?": *(\d+)')


class StubReply(NamedTuple):
    """Print and exit, or become another command."""

    text: str = ""
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    real: bool = False
    tasks: int = 1
    """How often it would run at the same time; scripts count what their tasks leave behind."""


def main(argv: Sequence[str]) -> None:
    """Answers for the command whose words are `argv`; the call itself has been noted already."""
    environment = Environment().everything()
    call_id = environment.pop(f"{PREFIX}_CALL", "")
    if environment.get("SLURM_JOB_NUM_NODES", "").isdigit():
        _note(environment, "nodes", environment["SLURM_JOB_NUM_NODES"])
    answer = respond(argv, environment)
    if answer.argv:
        _become(answer, environment, call_id)
    sys.stdout.write(answer.text)
    sys.stdout.flush()
    os._exit(0)


def respond(argv: Sequence[str], environment: Mapping[str, str]) -> StubReply:
    """What stands for this command: pure, so that every case can be tested without a sandbox."""
    program = argv[0].rsplit("/", 1)[-1]
    special = _SPECIAL.get(program)
    if special is not None:
        return special(argv, environment)
    peeled = peel(argv)
    if peeled is None or not peeled.inner:
        return StubReply()
    if is_interpreter(peeled.inner[0]) and peeled.launcher.starts in ("python", "uv"):
        # The launcher chooses the interpreter, not the script.
        return StubReply()
    if peeled.launcher.place in ("container", "host"):
        return _elsewhere(peeled.inner)
    reply = StubReply(argv=peeled.inner, environment=_slurm(peeled.launcher.place, peeled.inner, environment))
    if peeled.launcher.name != "srun" or peeled.inner[0].rsplit("/", 1)[-1] not in _SHELLS:
        return reply
    reply = reply._replace(tasks=_tasks(peeled.head))
    if any(word.startswith(("--container-image", "--container-name")) for word in peeled.head):
        inside = _elsewhere(peeled.inner)
        return reply._replace(argv=inside.argv, environment={**reply.environment, **inside.environment})
    return reply


def _tasks(words: Sequence[str]) -> int:
    """The tasks that `srun` is told to start; a few stand for many."""
    given: dict[str, int] = {}
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        value = value if equals else words[at + 1] if at + 1 < len(words) else ""
        if name in ("-N", "--nodes", "-n", "--ntasks", "--ntasks-per-node") and value.isdigit():
            given[{"-N": "--nodes", "-n": "--ntasks"}.get(name, name)] = int(value)
    count = given.get("--ntasks", given.get("--nodes", 1) * given.get("--ntasks-per-node", 1))
    return max(1, min(count, _MOST_TASKS))


def _elsewhere(inner: tuple[str, ...]) -> StubReply:
    """Folders of a container or another host are not here: a `cd` or `source` that fails there means nothing.

    Only bash can be told so; a plain `sh` is answered by it.
    """
    shell = "bash" if inner[0].rsplit("/", 1)[-1] in ("sh", "dash") else inner[0]
    return StubReply(argv=(shell, *inner[1:]), environment={f"{PREFIX}_ELSEWHERE": "1"})


def _ray(argv: Sequence[str], environment: Mapping[str, str]) -> StubReply:
    if "--version" in argv[1:2]:
        return StubReply("ray, version 2.60.0\n")
    if argv[1:2] == ["status"]:
        units = _noted(environment, "units")
        # Scripts wait until it is exactly what all nodes of their allocation have said.
        return StubReply(
            _RAY_STATUS.replace("UNITS", str(units * (_noted(environment, "nodes") or 1) if units else 64))
        )
    if argv[1:2] == ["start"]:
        if found := _RESOURCE.search(" ".join(argv)):
            _note(environment, "units", found[1])
        # With --block it would stay: scripts look whether what they started in the background is still there.
        return StubReply(argv=("sleep", "3"), real=True) if "--block" in argv else StubReply()
    peeled = peel(argv)
    return StubReply(argv=peeled.inner) if peeled and peeled.inner else StubReply()


def _note(environment: Mapping[str, str], name: str, value: str) -> None:
    """Something that later answers of this dry run depend on."""
    if folder := environment.get(f"{PREFIX}_RESULTS"):
        (Path(folder) / name).write_text(value, encoding="utf-8")


def _noted(environment: Mapping[str, str], name: str) -> int:
    file = Path(environment.get(f"{PREFIX}_RESULTS", "")) / name
    return int(file.read_text(encoding="utf-8")) if f"{PREFIX}_RESULTS" in environment and file.exists() else 0


def _scontrol(argv: Sequence[str], environment: Mapping[str, str]) -> StubReply:
    words = [word for word in argv[1:] if not word.startswith("-")]
    if words[:2] in (["show", "hostnames"], ["show", "hostname"]):
        nodes = words[2] if len(words) > 2 else environment.get("SLURM_JOB_NODELIST", "node-1")
        return StubReply("".join(f"{host}\n" for host in expand(nodes)))
    if words[:2] == ["show", "node"]:
        return StubReply(f"NodeName={words[2] if len(words) > 2 else 'node-1'} CPUTot=8 Gres=gpu:8\n")
    if words[:2] == ["show", "job"]:
        return StubReply(f"JobId={environment.get('SLURM_JOB_ID', '1')} WorkDir={Path.cwd()} NodeList=node-[1-2]\n")
    return StubReply()


def _git(argv: Sequence[str], environment: Mapping[str, str]) -> StubReply:
    verb = next((word for word in argv[1:] if not word.startswith("-") and "/" not in word and "=" not in word), "")
    if verb == "clone" and argv[1] == verb and f"{PREFIX}_KEEP_OTHERS" not in environment:
        # Scripts go on in the folder; it is one of the throw-away layer.
        return StubReply(argv=("mkdir", "-p", "--", _cloned_folder(argv[2:])), real=True)
    return StubReply(argv=tuple(argv), real=True) if verb in _HARMLESS_GIT else StubReply()


def _cloned_folder(words: Sequence[str]) -> str:
    """Where `git clone` puts a repository: the second operand, else the last part of the address."""
    values = [at + 1 for at, word in enumerate(words) if word in _CLONE_VALUES]
    operands = [word for at, word in enumerate(words) if not word.startswith("-") and at not in values]
    if len(operands) > 1:
        return operands[1]
    return re.split(r"[/:]", operands[0].rstrip("/"))[-1].removesuffix(".git") if operands else "."


def _nvidia_smi(argv: Sequence[str], environment: Mapping[str, str]) -> StubReply:
    reading = all(_HARMLESS_SMI.fullmatch(word) for word in argv[1:])
    return StubReply(argv=tuple(argv), real=True) if reading else StubReply()


def _hostname(argv: Sequence[str], environment: Mapping[str, str]) -> StubReply:
    """The sandbox has no network; the machine's own addresses were asked for before."""
    wants = argv[1] if len(argv) > 1 else ""
    if not wants and "SLURMD_NODENAME" in environment:
        return StubReply(environment["SLURMD_NODENAME"] + "\n")
    if wants in ("-I", "-i", "--all-ip-addresses", "--ip-address"):
        return StubReply(environment.get(f"{PREFIX}_ADDRESSES", "127.0.0.1") + "\n")
    return StubReply(argv=tuple(argv), real=True) if wants.startswith("-") or not wants else StubReply()


def _uv(argv: Sequence[str], environment: Mapping[str, str]) -> StubReply:
    peeled = peel(argv)
    if peeled is None or not peeled.inner or is_interpreter(peeled.inner[0]):
        program = understand(argv)
        if program.kind in ("code", "stdin"):
            return StubReply(argv=("python3", *peeled.inner[1:]) if peeled else (), real=True)
        return StubReply()
    return StubReply(argv=peeled.inner)


def _slurm(place: str, inner: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Inside an allocation the script would find Slurm's variables."""
    if place not in ("allocation", "batch") or "SLURM_JOB_ID" in environment:
        return {}
    return {
        "SLURM_JOB_ID": "1",
        "SLURM_JOBID": "1",
        "SLURM_JOB_NODELIST": "node-[1-2]",
        "SLURM_NODELIST": "node-[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NNODES": "2",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_JOB_PARTITION": "batch",
        "SLURM_JOB_ACCOUNT": "account",
        "SLURM_JOB_NAME": Path(inner[-1]).name if inner else "job",
        "SLURM_SUBMIT_DIR": str(Path.cwd()),
        "SLURM_SUBMIT_HOST": "login",
    }


def _become(answer: StubReply, environment: dict[str, str], call_id: str) -> None:
    """Replaces this process by a real command with a time limit, or by the next stub."""
    environment = environment | dict(answer.environment)
    bin_folder = environment[f"{PREFIX}_BIN"]
    path = environment.get("PATH", "")
    if answer.real:
        path = os.pathsep.join(folder for folder in path.split(os.pathsep) if folder != bin_folder)
        environment = {name: value for name, value in environment.items() if not name.startswith(PREFIX)}
        environment.pop("BASH_ENV", None)
        environment.pop("RLDBG_RUN", None)
        environment["PATH"] = path
        signal.alarm(_REAL_LIMIT_S)
        found = shutil.which(answer.argv[0], path=path)
    else:
        depth = int(environment.get(f"{PREFIX}_DEPTH", "0"))
        if depth >= _DEEPEST:
            os._exit(0)
        environment |= {f"{PREFIX}_DEPTH": str(depth + 1), f"{PREFIX}_VIA": call_id}
        found = _next_stub(answer.argv[0], path, bin_folder)
        environment[f"{PREFIX}_NAME"] = answer.argv[0] if found.endswith(".unknown") else ""
    if found is None:
        os._exit(0)
    if answer.tasks > 1:
        environment |= _task(answer.tasks, environment)
    os.execve(found, list(answer.argv), environment)


def _task(count: int, environment: Mapping[str, str]) -> dict[str, str]:
    """One process per task. The first is this one; what the others start is not noted a second time."""
    hosts = expand(environment.get("SLURM_JOB_NODELIST", "node-[1-2]")) or ["node-1"]
    number = next((each for each in range(1, count) if os.fork() == 0), 0)
    mine = {"SLURM_PROCID": str(number), "SLURM_NODEID": str(number), "SLURMD_NODENAME": hosts[number % len(hosts)]}
    return mine | ({f"{PREFIX}_UNSEEN": "1"} if number else {})


def _next_stub(program: str, path: str, bin_folder: str) -> str:
    """Shells and scripts run on; everything else is noted and does nothing."""
    found = shutil.which(program, path=path) or ""
    goes_on = (
        program.rsplit("/", 1)[-1] in _SHELLS or program.endswith((".sh", ".bash")) or found.startswith(bin_folder)
    )
    return found if found and goes_on else f"{bin_folder}/.unknown"


_SPECIAL = {
    "uv": _uv,
    "ray": _ray,
    "scontrol": _scontrol,
    "git": _git,
    "nvidia-smi": _nvidia_smi,
    "hostname": _hostname,
}
