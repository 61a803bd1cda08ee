"""Versions that must fit together, packages that are not what their name says, and a compiler."""

import importlib.metadata
import importlib.util
import re
import shutil
import sysconfig

from rldbg.doctor.machine.probes.machine import Machine, ProbeOutcome, check
from rldbg.frameworks import frameworks

_COMPILED = ("flash-attn", "flash_attn", "sgl-kernel", "transformer-engine", "xformers", "torchvision")
_TAKEN = {"weaver": "nex-agi/weaver"}
"""Projects that install from their repository only, because another one has their name on the public index."""
_OWN_WORDS = re.compile(r"(?i)\b(RL|reinforcement|post-?training|megatron|LLM|language model)\b")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


@check("compiled packages")
def packages_abi(_machine: Machine) -> ProbeOutcome:
    """What a compiled package was built for, against the torch that is installed."""
    torch = _version("torch")
    if torch is None:
        return "skip", "torch is not installed"
    for name in (*_COMPILED, *(framework.distribution for framework in frameworks() if framework.is_engine)):
        if (version := _version(name)) is None:
            continue
        built = re.search(r"torch(\d+\.\d+)", version)
        if built and _tuple(built[1])[:2] != _tuple(torch)[:2]:
            fix = f"install the wheel of {name} for torch {torch}, or build it with --no-build-isolation"
            return "fail", f"{name} {version} was built for another torch than {torch}", fix
        wanted = _pinned_torch(name)
        if wanted and _tuple(wanted) != _tuple(torch):
            fix = f"pip install torch=={wanted}, or another {name}"
            return "fail", f"{name} {version} needs torch {wanted}, installed is {torch}", fix
    return "pass", f"torch {torch}; no conflicts"


def _pinned_torch(name: str) -> str | None:
    for requirement in importlib.metadata.requires(name) or ():
        if found := re.match(r"torch ?\(?==\s*([\d.]+)", requirement):
            return found[1]
    return None


@check("Ray")
def ray_version(_machine: Machine) -> ProbeOutcome:
    version = _version("ray")
    if version is None:
        return "skip", "not installed"
    if _tuple(version) < (2, 9, 1):
        return "fail", f"{version} is too old for debugging", 'pip install "ray[default]>=2.9.1"'
    if _version("aiohttp") is None:
        return "warn", f"{version} without its dashboard", 'pip install "ray[default]"'
    return "pass", version


@check("debugpy")
def debugpy(_machine: Machine) -> ProbeOutcome:
    version = _version("debugpy")
    if version is None or _tuple(version) < (1, 8, 0):
        fix = 'pip install "debugpy>=1.8.0" in driver and workers'
        return "fail", f"{version or 'not installed'}: breakpoints are skipped", fix
    return "pass", version


@check("packages of the same name")
def name_squats(_machine: Machine) -> ProbeOutcome:
    of_frameworks = {each.distribution: each.only_from for each in frameworks() if each.only_from}
    for name, repository in (of_frameworks | _TAKEN).items():
        version = _version(name)
        if version is None:
            continue
        about = importlib.metadata.metadata(name).json
        described = " ".join(str(about.get(key, "")) for key in ("summary", "home_page", "project_url"))
        if repository.lower() not in described.lower() and not _OWN_WORDS.search(described):
            fix = f'pip uninstall {name}; pip install "git+https://github.com/{repository}.git"'
            return "fail", f"{name} {version} is another project: {described[:80] or 'no description'}", fix
    names = ", ".join([*of_frameworks, *_TAKEN])
    return "pass", f"{names} are the expected packages or not installed"


@check("C compiler")
def compiler(machine: Machine) -> ProbeOutcome:
    name = machine.variables.get("CC") or "gcc"
    if shutil.which(name) is None and shutil.which("cc") is None and shutil.which("clang") is None:
        fix = "apt install gcc g++: Triton and torch.compile build their kernels with it"
        return "warn", "no compiler on PATH", fix
    header = sysconfig.get_paths()["include"]
    if not machine.path(f"{header}/Python.h").exists():
        return "warn", f"no Python.h in {header}", "apt install python3-dev for this interpreter"
    return "pass", "compiler and Python headers are installed"
