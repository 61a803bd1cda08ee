"""Options and commands that a program does not have: whose program it is, and which of its options is nearest.

argparse prints its usage above the error, with all options that the installed release has.
"""

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.evidence import Failure
from rldbg.doctor.logs.frames import is_standard, package_of, short
from rldbg.doctor.logs.sources import LogSource
from rldbg.frameworks import frameworks

_REFUSED = re.compile(
    r"(?P<program>[\w./-]+|[A-Z]\w*(?: [A-Z]{2,8})?): error: (?:unrecognized arguments: (?P<options>-.{1,300})"
    r"|argument \S{1,40}: invalid choice: '(?P<choice>[\w./-]{1,60})' \(choose from (?P<choices>.{1,600}?)\)?$)"
)
_OPTION = re.compile(r"(?<!\S)--?[A-Za-z][\w-]*")
_IN_USAGE = re.compile(r"--[A-Za-z][\w-]*")
_ABSENT = re.compile(r"'(?:Namespace|SimpleNamespace)' object has no attribute '(?P<name>\w+)'")
_PACKAGES = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "torchrun": "torch",
    "ray": "ray",
    "llamafactory-cli": "llamafactory",
    "swift": "ms-swift",
    "axolotl": "axolotl",
}
"""Whose the programs are that no framework names as its own."""
_USAGE_ROWS = 400


class Refusal(NamedTuple):
    """What a program refused, in a sentence, and what to do."""

    title: str
    title_zh: str
    words: str
    fix: tuple[str, ...]


def refused_option(failure: Failure, sources: Sequence[LogSource]) -> Refusal | None:
    """Which installed program does not have an option or a command that it was given."""
    found = _REFUSED.search(failure.headline)
    if found is None:
        return None
    program = found["program"]
    package = _package_of_program(program)
    whose = f"the installed {package} ({program})" if package else program
    if found["choice"]:
        near = _nearest(found["choice"], re.findall(r"[\w./-]+", found["choices"] or ""))
        words = f"{whose} has no {found['choice']}, only {(found['choices'] or '').replace(chr(39), '')}"
    else:
        given = _OPTION.findall(found["options"])
        near = _nearest(given[0], _usage(failure, sources)) if given else ""
        words = f"{whose} has no option {', '.join(given[:4])}"
    hint = (f"{near} is the nearest that it has; did you mean that?",) if near else ()
    what, what_zh = ("command", "子命令") if found["choice"] else ("option", "选项")
    title = f"{f'The installed {package}' if package else program} has no {what} that it was given"
    title_zh = f"{f'已安装的 {package}' if package else program} 没有所给的{what_zh}"
    return Refusal(title, title_zh, words, (*hint, *_steps(program, package)))


def _package_of_program(program: str) -> str:
    names = {program, PurePath(program).name}
    own = (each.distribution for each in frameworks() if names.intersection(each.programs))
    return next(own, "") or next((package for name, package in _PACKAGES.items() if name in names), "")


def _steps(program: str, package: str) -> tuple[str, ...]:
    """What to do: where a framework passes the option itself, releases do not fit; else the command line is wrong."""
    listing = f"if you wrote it yourself: `{program} --help` lists what this release takes"
    if not package:
        return (listing,)
    return (
        f"if a framework's launcher passed it, {package} is older (or newer) than that framework needs: pip show "
        f"{package}; install the {package} that the framework pins (pip install -U {package} where it is older)",
        listing,
    )


def _nearest(asked: str, known: Sequence[str]) -> str:
    import difflib

    return next(iter(difflib.get_close_matches(asked, sorted(set(known) - {asked}), n=1, cutoff=0.75)), "")


def _usage(failure: Failure, sources: Sequence[LogSource]) -> list[str]:
    """The options that the usage right above an error lists."""
    source = next((each for each in sources if each.name == failure.place.file), None)
    end = failure.place.line - 1
    rows = rows_of(source)[max(0, end - _USAGE_ROWS) : end] if source is not None else []
    texts = [clean(row).text for row in rows]
    start = max((number for number, text in enumerate(texts) if "usage: " in text), default=len(texts))
    return [option for text in texts[start:] for option in _IN_USAGE.findall(text)]


def absent_option(said: str, frames: Sequence[str]) -> str:
    """Which option a program does not define that code asks its parsed arguments for."""
    absent = _ABSENT.search(said)
    own = [frame for frame in frames if not is_standard(frame)]
    if absent is None or not own:
        return ""
    option = f"--{absent['name']}"
    package = package_of(own[0])
    other = f"; another script of {package} may define it" if package else ""
    script = short(own[0]).rpartition(":")[0]
    return (
        f"the program that was started ({script}) defines no option {option}, and the code at {short(own[-1])} asks "
        f"for it{other}: start that script, or add the option"
        + (f", or compare: pip show {package}." if package else ".")
    )
