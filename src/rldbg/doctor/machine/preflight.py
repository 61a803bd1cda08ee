"""Compares what a job will need, read from its recipe or script, with this machine: GPUs, divisible sizes, files.

Sizes are read under the names that the frameworks give them (their launch profiles); what a job does not state is not
judged.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rldbg.core import IncompleteDataError, UsageError
from rldbg.doctor.answer.diagnosis import ProbeResult
from rldbg.doctor.machine.probes import Machine
from rldbg.doctor.machine.probes.machine import GIB, gib, result
from rldbg.launch import profiles

SIZES = (
    *("nodes", "gpus_per_node", "rollout_gpus", "prompts", "samples", "mini_batch", "micro_batch", "tensor_parallel"),
    *("train_tensor", "train_pipeline", "train_context", "prompt_length", "response_length", "model_length"),
    *("batched_tokens", "tokens_per_gpu"),
)
"""Names under which a launch profile states sizes."""


@cache
def _options(name: str) -> tuple[str, ...]:
    """The options of all frameworks that state a size."""
    return tuple(key for profile in profiles().values() for key in dict(profile.sizes).get(name, ()))


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The settings of a job: sizes under our names, and everything else as it was written."""

    name: str
    settings: Mapping[str, str]

    def size(self, name: str) -> int | None:
        for key in _options(name):
            text = self.settings.get(key, "").strip().strip("'\"")
            if text.isdigit():
                return int(text)
        return None

    @property
    def gpus(self) -> int | None:
        """How many GPUs the trainer and, where it does not share them, the rollout engines take."""
        per_node = self.size("gpus_per_node")
        if per_node is None:
            return None
        own = (self.size("nodes") or 1) * per_node
        shares = any(name in self.settings for profile in profiles().values() for name in profile.shares_gpus)
        return own if shares else own + (self.size("rollout_gpus") or 0)


def check_needs(path: Path, machine: Machine | None = None, *, gpus_available: int | None = None) -> list[ProbeResult]:
    """The checks of a recipe (YAML) or a script; what the job does not state is left out."""
    machine = machine or Machine()
    if not path.is_file():
        raise UsageError(f"no such file: {path}", "give the recipe (YAML) or the launch script of the job")
    jobs = list(_jobs(path))
    if not jobs:
        raise IncompleteDataError(f"no training command found in {path}", "give the recipe or the script that trains")
    return [probe for job in jobs for probe in _checks(job, machine, gpus_available)]


def _jobs(path: Path) -> Iterator[JobSettings]:
    if path.suffix in (".yaml", ".yml"):
        yield JobSettings(path.name, dict(_flat(_loaded(path))))
        return
    from rldbg.core import Environment
    from rldbg.launch import Request, explain, resolve_command

    argv, script = resolve_command([str(path.resolve())])
    request = Request(argv, script, Path.cwd(), Environment().everything())
    for training in explain(request, Path.cwd() / ".rldbg").trainings:
        yield JobSettings(shlex.join(training.command.call.argv[:3]), dict(settings_of(training.command.call.argv)))


def _loaded(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid YAML: {error}", "fix the file") from None


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))
    elif value is not None:
        yield prefix, str(value)


def settings_of(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Hydra overrides (key=value) and options (--key value, --key=value, --flag) of a command line."""
    words = list(argv)
    for number, word in enumerate(words):
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            following = words[number + 1] if number + 1 < len(words) else ""
            if not equals:
                value = following if following and not following.startswith("--") else "true"
            yield key, value
        elif "=" in word and not word.startswith(("-", "/", "=")):
            key, _, value = word.lstrip("+~").partition("=")
            yield key, value


def _checks(job: JobSettings, machine: Machine, gpus_available: int | None) -> Iterator[ProbeResult]:
    yield from _gpus(job, machine, gpus_available)
    yield from _sizes(job)
    yield from _lengths(job)
    yield from _files(job, machine)
    yield from _memory(job, machine)


def _gpus(job: JobSettings, machine: Machine, available: int | None) -> Iterator[ProbeResult]:
    needed = job.gpus
    if needed is None:
        return
    if available is None:
        listed = machine.run("nvidia-smi", "-L")
        available = len(listed.splitlines()) if listed else 0
    nodes = job.size("nodes") or 1
    here = needed // nodes if nodes > 1 else needed
    reason = f"{needed} needed on {nodes} node(s), {available} here"
    fix = "fewer GPUs per node in the recipe, more nodes in Ray (ray status), or shared placement (colocate)"
    yield result("preflight-gpus", "GPUs for the job", "pass" if available >= here else "fail", reason, fix)
    tensor = job.size("tensor_parallel")
    if tensor and needed % tensor:
        fix = "choose a tensor parallel size of the engine that divides the GPUs"
        yield result("preflight-engines", "GPUs per engine", "fail", f"{needed} GPUs, engines of {tensor}", fix)


def _sizes(job: JobSettings) -> Iterator[ProbeResult]:
    prompts, samples, mini = job.size("prompts"), job.size("samples") or 1, job.size("mini_batch")
    ranks = _data_parallel(job)
    title = "batch sizes"
    if prompts and ranks and (prompts * samples) % ranks:
        fix = "make prompts x samples a multiple of the data parallel size"
        reason = f"{prompts} prompts x {samples} samples over {ranks} data parallel ranks"
        yield result("preflight-batch", title, "fail", reason, fix)
    elif prompts and mini and _whole(job, prompts, samples) % mini:
        fix = "make the mini batch a divisor of the batch"
        yield result("preflight-batch", title, "fail", f"batch {_whole(job, prompts, samples)}, mini batch {mini}", fix)
    elif prompts:
        yield result("preflight-batch", title, "pass", f"{prompts} prompts x {samples} samples")
    if "samples" in _stated(job) and samples == 1:
        fix = "group-relative advantages need at least two samples per prompt"
        yield result(
            "preflight-group", "samples per prompt", "warn", "one sample per prompt: its standard deviation is NaN", fix
        )


def _whole(job: JobSettings, prompts: int, samples: int) -> int:
    """What the mini batch is a part of: some frameworks count prompts in it, most count samples."""
    of_prompts = [key for profile in profiles().values() for key in profile.prompts_per_mini_batch]
    return prompts if any(key in job.settings for key in of_prompts) else prompts * samples


def _stated(job: JobSettings) -> set[str]:
    return {name for name in SIZES if job.size(name) is not None}


def _data_parallel(job: JobSettings) -> int | None:
    per_node = job.size("gpus_per_node")
    if per_node is None:
        return None
    model = 1
    for name in ("train_tensor", "train_pipeline", "train_context"):
        model *= job.size(name) or 1
    return max(1, (job.size("nodes") or 1) * per_node // model)


def _lengths(job: JobSettings) -> Iterator[ProbeResult]:
    prompt, response = job.size("prompt_length"), job.size("response_length")
    if prompt is None or response is None:
        return
    whole = prompt + response
    for name, words in (
        ("model_length", "the engine's max_model_len"),
        ("batched_tokens", "max_num_batched_tokens"),
        ("tokens_per_gpu", "the token budget per GPU"),
    ):
        limit = job.size(name)
        if limit is not None and limit < whole:
            fix = f"at least {whole}, or shorter prompts and responses"
            reason = f"{words} is {limit}, prompt plus response {whole}"
            yield result("preflight-lengths", "lengths", "fail", reason, fix)
            return
    yield result("preflight-lengths", "lengths", "pass", f"{prompt} + {response} tokens")


def _files(job: JobSettings, machine: Machine) -> Iterator[ProbeResult]:
    for key in (key for profile in profiles().values() for key in profile.paths):
        for word in job.settings.get(key, "").strip("[]'\"").split(","):
            path = word.strip(" '\"")
            if path.startswith(("/", "~", "./")) and not machine.path(str(Path(path).expanduser())).exists():
                fix = "the path must exist on every node, inside the container"
                yield result("preflight-files", "files of the job", "fail", f"{key}: {path} does not exist here", fix)


def _memory(job: JobSettings, machine: Machine) -> Iterator[ProbeResult]:
    """Offload keeps parameters and optimizer state of every rank in host memory."""
    offload = any("offload" in key and value.lower() == "true" for key, value in job.settings.items())
    per_node = job.size("gpus_per_node")
    facts = machine.text("/proc/meminfo") or ""
    total = next((int(line.split()[1]) << 10 for line in facts.splitlines() if line.startswith("MemTotal")), None)
    if not offload or per_node is None or total is None:
        return
    wanted = per_node * 80 * GIB
    fix = "about 80 GiB of host memory per GPU are needed with offload; disable it, or use fewer GPUs per node"
    reason = f"{gib(total)} for {per_node} GPUs with offload"
    yield result("preflight-memory", "host memory", "pass" if total >= wanted else "warn", reason, fix)
