"""Programs that start other programs: how each is called, and where what it starts will run.

`peel` takes one such program off the front of a command line and leaves the command that it starts. The tables hold
what cannot be guessed: which options take a value of their own when it is not written with `=`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

LaunchPlace = Literal["here", "cluster", "allocation", "batch", "container", "host", "session"]


@dataclass(frozen=True, slots=True)
class Launcher:
    """One way to start something: `ray job submit`, `torchrun`, `srun` ..."""

    words: tuple[str, ...]
    place: LaunchPlace = "here"
    values: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    unknown: Literal["flag", "value"] = "flag"
    starts: Literal["command", "python", "uv", "shell", "script"] = "command"
    operands: int = 0
    """Words between the options and the command: a container image, a host."""

    @property
    def name(self) -> str:
        return " ".join(self.words)

    def takes_value(self, option: str) -> bool:
        if option in self.values:
            return True
        if option in self.flags:
            return False
        if not option.startswith("--") and len(option) > 2:
            # `-n4` carries its value; `-it` is a bundle of flags, and the last of a bundle may take one: `-dmS NAME`.
            return option[:2] not in self.values and f"-{option[-1]}" in self.values
        return self.unknown == "value"


class Peeled(NamedTuple):
    launcher: Launcher
    head: tuple[str, ...]
    """The launcher's own words, options included; head + what follows is the whole command line."""
    inner: tuple[str, ...]
    """What it starts, in the form the shell would start it; empty when that is not on the command line."""


def word_set(text: str) -> frozenset[str]:
    """A long list of words, written as text so that it stays readable."""
    return frozenset(text.split())


_UV_VALUES = word_set(
    "--extra --no-extra --group --no-group --only-group --with --with-editable --with-requirements --env-file --python "
    "-p --package --directory --project --index --default-index -i --index-url --extra-index-url -f --find-links "
    "--index-strategy --keyring-provider -P --upgrade-package --resolution --prerelease --fork-strategy "
    "--exclude-newer --link-mode -C --config-setting --cache-dir --color --config-file --refresh-package "
    "--reinstall-package --no-build-package --no-binary-package -w --allow-insecure-host --no-sources-package"
)
_RAY_VALUES = word_set(
    "--address --job-id --submission-id --runtime-env --runtime-env-json --working-dir --metadata-json "
    "--entrypoint-num-cpus --entrypoint-num-gpus --entrypoint-memory --entrypoint-resources "
    "--entrypoint-label-selector --log-style --log-color --verify --headers"
)
_SLURM_VALUES = word_set("-A -a -b -C -c -D -d -e -F -G -i -J -L -M -m -N -n -o -p -q -r -S -t -w -x -Z -B")
_SLURM_FLAGS = word_set(
    "--overlap --exclusive --unbuffered -u --label -l --pty --exact --kill-on-bad-exit --no-container-mount-home "
    "--container-mount-home --parsable --quiet -Q --verbose -v --overcommit -O --oversubscribe -s --no-kill -k -K "
    "--hold -H --requeue --no-requeue --disable-status -X --multi-prog --preserve-env -E --test-only --contiguous "
    "--container-writable --container-readonly --container-remap-root --no-container-remap-root -W --wait-all-nodes "
    "--spread-job --use-min-nodes --get-user-env --reboot --ignore-pbs --no-shell --no-bell --bell --async "
    "--no-container-entrypoint --container-entrypoint --interactive -I --immediate --whole --mem-bind-verbose"
)
_CONTAINER_VALUES = word_set(
    "--bind -B --env --env-file --pwd --cwd --home -H --workdir -W --overlay -o --scratch -S --security --hostname "
    "--app --mount --no-mount --dns --network --network-args --apply-cgroups --docker-host --nvccli-devices"
)
_DOCKER_FLAGS = word_set(
    "-i -t -d -P --interactive --tty --detach --rm --privileged --init --read-only --publish-all --no-healthcheck "
    "--oom-kill-disable --sig-proxy --disable-content-trust --quiet -q -it -ti -itd -dit -idt --userns-host"
)
_TORCHRUN_FLAGS = word_set("--standalone --no-python --no_python --run-path --run_path --use-env --use_env")
_ACCELERATE_FLAGS = word_set(
    "--multi_gpu --multi-gpu --cpu --tpu --mps --use_deepspeed --use-deepspeed --use_fsdp --use-fsdp "
    "--use_megatron_lm --use_parallelism_config --use_xpu --debug --quiet -q --no_python --no-python --tpu_cluster "
    "--no_tpu_cluster --tpu_use_sudo --tpu_use_cluster --no_tpu_use_cluster --enable_cpu_affinity --ipex -h"
)
_DEEPSPEED_FLAGS = word_set(
    "--force_multi --no_python --no_local_rank --no_ssh --no_ssh_check --save_pid --elastic_training "
    "--bind_cores_to_rank --ssh_check"
)
_NSYS_VALUES = word_set("-o -t -s -c -y -d -x -w -f -e -n -p -b -q")

LAUNCHERS: tuple[Launcher, ...] = (
    Launcher(("uv", "run"), values=_UV_VALUES, starts="uv"),
    *(Launcher((tool, "run")) for tool in ("poetry", "pdm", "rye", "pixi", "pipenv", "hatch")),
    *(
        Launcher((tool, "run"), values=word_set("-n -p --name --prefix --cwd"))
        for tool in ("conda", "mamba", "micromamba")
    ),
    Launcher(("torchrun",), flags=_TORCHRUN_FLAGS, unknown="value", starts="python"),
    Launcher(("deepspeed",), flags=_DEEPSPEED_FLAGS, unknown="value", starts="python"),
    Launcher(("accelerate", "launch"), flags=_ACCELERATE_FLAGS, unknown="value", starts="python"),
    Launcher(("accelerate-launch",), flags=_ACCELERATE_FLAGS, unknown="value", starts="python"),
    Launcher(
        ("coverage", "run"),
        values=word_set(
            "--data-file --source --omit --include --rcfile --context --concurrency --source-pkgs --source-dirs"
        ),
        starts="python",
    ),
    Launcher(("http_weights",), starts="python"),
    Launcher(("debugpy",), values=word_set("--listen --connect --log-to --configure"), starts="python"),
    Launcher(("ray", "job", "submit"), "cluster", values=_RAY_VALUES, flags=word_set("--no-wait"), unknown="value"),
    Launcher(("srun",), "allocation", values=_SLURM_VALUES, flags=_SLURM_FLAGS - word_set("-W"), unknown="value"),
    Launcher(("sbatch",), "batch", values=_SLURM_VALUES, flags=_SLURM_FLAGS, unknown="value", starts="script"),
    Launcher(("salloc",), "allocation", values=_SLURM_VALUES, flags=_SLURM_FLAGS, unknown="value"),
    *(
        Launcher((tool, act), "container", values=_CONTAINER_VALUES, operands=1)
        for tool in ("apptainer", "singularity")
        for act in ("exec", "run")
    ),
    *(
        Launcher((tool, act), "container", flags=_DOCKER_FLAGS, unknown="value", operands=1)
        for tool in ("docker", "podman", "nerdctl")
        for act in ("run", "exec")
    ),
    Launcher(("enroot", "start"), "container", values=word_set("-e --env -m --mount -c --conf"), operands=1),
    Launcher(
        ("ssh",),
        "host",
        values=word_set("-o -p -i -l -L -R -D -J -F -E -c -m -b -e -I -O -Q -S -W -w"),
        starts="shell",
        operands=1,
    ),
    Launcher(("kubectl", "exec"), "container", values=word_set("-n --namespace -c --container -f"), operands=1),
    *(
        Launcher(("tmux", act), "session", values=word_set("-s -n -c -t -x -y -e -F -f"), starts="shell")
        for act in ("new-session", "new", "new-window", "neww", "split-window", "splitw", "respawn-pane")
    ),
    Launcher(("screen",), values=word_set("-S -c -e -h -p -s -t -T -L -Logfile")),
    Launcher(("sudo",), values=word_set("-u -g -h -p -C -r -t -T -U -D")),
    Launcher(("nsys", "profile"), values=_NSYS_VALUES, unknown="value"),
    Launcher(("ncu",), values=word_set("-o -f -k -c -s"), unknown="value"),
    *(
        Launcher(
            (tool,),
            values=word_set("-np -n -H -host --host -hostfile --hostfile -x -wdir --bind-to --map-by -npernode"),
        )
        for tool in ("mpirun", "mpiexec")
    ),
    Launcher(("nohup",)),
    Launcher(("setsid",)),
    Launcher(("time",), values=word_set("-f -o")),
    Launcher(("env",), values=word_set("-u -C -S --unset --chdir")),
    Launcher(("nice",), values=word_set("-n")),
    Launcher(("ionice",), values=word_set("-c -n")),
    Launcher(("stdbuf",), values=word_set("-i -o -e")),
    Launcher(("timeout",), values=word_set("-k -s --kill-after --signal"), operands=1),
    Launcher(("taskset",), values=word_set("-p"), operands=1),
    Launcher(("numactl",), values=word_set("-N -m -C -i -p"), unknown="flag"),
    Launcher(("exec",), values=word_set("-a")),
    Launcher(("command",)),
)

_MODULES_THAT_LAUNCH: dict[str, tuple[str, ...]] = {
    "torch.distributed.run": ("torchrun",),
    "torch.distributed.launch": ("torchrun",),
    "deepspeed": ("deepspeed",),
    "deepspeed.launcher.runner": ("deepspeed",),
    "accelerate.commands.launch": ("accelerate-launch",),
    "coverage": ("coverage",),
    "debugpy": ("debugpy",),
}
_OWN_MODULE = re.compile(r"rldbg\.frameworks\.\w+\.(http_weights)")


def module_that_launches(name: str) -> tuple[str, ...]:
    """The launcher above that `python -m NAME` is a form of, in the words that start it; empty for other modules."""
    own = _OWN_MODULE.fullmatch(name)
    return (own[1],) if own else _MODULES_THAT_LAUNCH.get(name, ())


def peel(words: Sequence[str]) -> Peeled | None:
    """Takes the launcher off the front of a command line; None when the first word is not a launcher."""
    if not words:
        return None
    program = words[0].rsplit("/", 1)[-1]
    for launcher in LAUNCHERS:
        if program == launcher.words[0] and tuple(words[1 : len(launcher.words)]) == launcher.words[1:]:
            return _peel(launcher, words)
    return None


def _peel(launcher: Launcher, words: Sequence[str]) -> Peeled:
    at = len(launcher.words)
    module = False
    while at < len(words) and (words[at].startswith("-") or (launcher.name in ("env", "sudo") and "=" in words[at])):
        word = words[at]
        if word == "--":
            at += 1
            break
        if word in ("-m", "--module") and launcher.starts in ("python", "uv"):
            module = True
            at += 1
            break
        # What follows is no value if it is an option itself: the value was a variable that is empty.
        has_value = at + 1 < len(words) and not words[at + 1].startswith("--")
        at += 2 if word.startswith("-") and "=" not in word and launcher.takes_value(word) and has_value else 1
    at += launcher.operands
    if launcher.operands and at < len(words) and words[at] == "--":
        at += 1
    at = min(at, len(words))
    return Peeled(launcher, tuple(words[:at]), _inner(launcher, tuple(words[at:]), module))


def _inner(launcher: Launcher, rest: tuple[str, ...], module: bool) -> tuple[str, ...]:
    if not rest:
        return ()
    if module:
        return ("python", "-m", *rest)
    if launcher.starts == "python" or (launcher.starts == "uv" and rest[0].endswith(".py")):
        return ("python", *rest)
    if launcher.starts == "shell":
        return ("bash", "-c", " ".join(rest))
    if launcher.starts == "script":
        return ("bash", *rest)
    return rest
