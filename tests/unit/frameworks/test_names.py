"""Frameworks are named in their folders only: a new one, or a new version of one, changes nothing else."""

import re
from functools import cache
from pathlib import Path

import rldbg
from rldbg.doctor.machine.preflight import SIZES
from rldbg.frameworks import frameworks
from rldbg.launch import profiles

SOURCE = Path(rldbg.__file__).parent
# Where a name may stand outside of frameworks/, and why. A folder stands for all files in it.
ALLOWED = {
    "inference": "routes and workflow shapes of engines and trainers, which are called by their names",
    "cli/rollout.py": "options that choose one of these shapes and protocols",
    "cli/serve_up.py": "options that choose an engine to start",
    "cli/serve_backends.py": "starts the engine that was chosen",
    "training_service/losses.py": "variables of the dumping service that the NexRL document names",
    "algorithms/token_sampling.py": "says which of two log probs an engine reports",
    "compare_debug_dumps.py": "entry point of the NexRL document",
    "cli/compare.py": "options of the NexRL document",
    "reports/comparison_document.py": "output lines of the NexRL document",
    "reports/comparison_sections.py": "report of the NexRL document",
    "debug_ray_dapo.py": "entry point of the ArcherCodeR guide",
    "launcher": "entry point of the AReaL guide",
    "cli/convert.py": "names of file formats: our pt and jsonl files are the dictionaries of the NexRL document",
    "recording/conversion.py": "names of these formats",
    "recording/settings.py": "names these formats",
    "recording/recorder/settings.py": "names these formats",
    "recording/kinds.py": "kinds of the NexRL document",
    "recording/formats": "reads and writes these formats",
    "recording/verification.py": "a step number that only these formats have",
    "bisection/dumps.py": "reads dumps of tools that are called by their names",
    "cli/bisect.py": "names the tools whose dumps can be one side",
    "agent/collectives.py": "the agent stands alone in processes that have no registry",
    "core/run.py": "the core stands below the registry; versions of engines are written into each run",
}
# "miles" and "archer" are words; as modules and titles they are looked for like the others.
NAMES = sorted(
    {name for each in frameworks() if each.name not in ("rldbg", "generic") for name in (each.name, each.title)}
    | {module for each in frameworks() if each.name not in ("rldbg", "generic", "archer") for module in each.modules}
)
NAMED = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, NAMES))})(?![\w])", re.IGNORECASE)


def allowed(file: str) -> bool:
    return any(file == place or file.startswith(f"{place}/") for place in ALLOWED)


@cache
def lines_with_names() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted([*SOURCE.rglob("*.py"), *SOURCE.rglob("*.yaml")]):
        file = path.relative_to(SOURCE).as_posix()
        # What the doctor knows of engines is judged below.
        if not file.startswith(("frameworks/", "doctor/knowledge/")):
            lines = [
                f"{file}:{number}: {line.strip()}"
                for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
                if NAMED.search(line)
            ]
            if lines:
                found[file] = lines
    return found


def test_no_framework_is_named_outside_of_its_folder():
    named = [line for file, lines in lines_with_names().items() if not allowed(file) for line in lines]

    assert named == []


def test_every_exception_is_still_needed():
    files = lines_with_names()

    assert [place for place in ALLOWED if not any(f == place or f.startswith(f"{place}/") for f in files)] == []


def test_no_knowledge_of_the_doctor_is_about_one_framework():
    folder = SOURCE / "doctor" / "knowledge"
    ids = re.findall(r"(?m)^- id: (\S+)", "".join(file.read_text() for file in folder.glob("*.yaml")))
    engines = tuple(f"{each.name}-" for each in frameworks() if each.is_engine)

    assert [name for name in ids if name.startswith(engines)] == []


def test_sizes_of_profiles_are_those_that_the_preflight_checks():
    stated = {name for profile in profiles().values() for name, _ in profile.sizes}

    assert stated == set(SIZES)
