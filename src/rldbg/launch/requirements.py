"""What a script lacks that ends before its training: variables, arguments, files, packages, each with what to try."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rldbg.launch.dry_run.execution import DryRun
from rldbg.launch.script import ScriptLine, logical_lines, placeholders, read_text

_ENDS = re.compile(r"(?:exit|return)\b")
_NAME = re.compile(r"\$\{?([A-Za-z_]\w*)")
_NO_SUCH_FILE = re.compile(r"(?:^|: )['\"‘]?([^:\n'\"‘’]+)['\"’]?: No such file or directory")
_NO_MODULE = re.compile(r"No module named '?([\w.]+)")
_DEMANDED = re.compile(r"\$\{([A-Za-z_]\w*):?\?")
_OPENS = re.compile(r"(?:^|[;&|]\s*|\b(?:then|do|else)\s+)(?:if|for|while|until|case|select)\s|\{$")
_CLOSES = re.compile(r"(?:^|[;&|]\s*)(?:fi|done|esac|\})(?=\s|[;&|)]|$)")
_LONGEST_TEXT = 120


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where an empty value comes from: a variable that nobody sets, an argument, or a line that gives nothing."""

    kind: str
    text: str


def what_it_lacks(
    dry_run: DryRun, script: Path | None, arguments: int, cwd: Path, environment: Mapping[str, str]
) -> tuple[str, ...]:
    """What to try so that the script does not end where the dry run ended; empty when that cannot be told."""
    said = [line for line in dry_run.output.splitlines() if line.strip()]
    last = said[-1] if said else ""
    if _ENDS.match(dry_run.last_command) and dry_run.condition:
        origins = _origins(dry_run.condition, dry_run, follow=False)
    else:
        origins = _origins(dry_run.last, dry_run, follow=True)
    if not _ENDS.match(dry_run.last_command) and (placeholder := _fill_in(dry_run.last, script)):
        return (placeholder,)
    found = [*origins]
    if _DEMANDED.search(dry_run.last_command):
        # It would end at the next one then.
        found += [_Origin("variable", name) for name in demanded_variables(script, environment, always=True)]
    steps = [*_steps(found, script, arguments)]
    if not steps and _ENDS.match(dry_run.last_command):
        steps += _steps(_defaults(dry_run.condition), script, arguments)
    if missing := _NO_SUCH_FILE.search(last):
        steps.append(_missing_file(missing[1].strip(), cwd))
    elif module := _NO_MODULE.search(last):
        steps.append(f"install {module[1]}, or activate the environment that has it")
    if not steps and dry_run.last_command and dry_run.exit_code and not _ENDS.match(dry_run.last_command):
        steps.append(f"see why this fails here: {_short(dry_run.last_command)}")
    return tuple(dict.fromkeys(steps))


def demanded_variables(script: Path | None, environment: Mapping[str, str], *, always: bool) -> tuple[str, ...]:
    """Variables without which the script says it does not run, `${NAME:?}`, and that nobody sets; in its order. With
    `always`, without those that it demands under a condition."""
    lines = logical_lines(read_text(str(script or "")))
    asking = _unconditional(lines) if always else lines
    named = dict.fromkeys((name, line.number) for line in asking for name in _DEMANDED.findall(line.text))
    return tuple(
        dict.fromkeys(
            name
            for name, number in named
            if not environment.get(name) and _assignment(lines, name, before=number) is None
        )
    )


def _unconditional(lines: Iterable[ScriptLine]) -> Iterator[ScriptLine]:
    """The lines outside of conditions, loops and functions."""
    depth = 0
    for line in lines:
        closes = len(_CLOSES.findall(line.text))
        opens = len(_OPENS.findall(line.text))
        if depth == 0 and not opens:
            yield line
        depth = max(depth + opens - closes, 0)


def where_paths_come_from(place: str, dry_run: DryRun, script: Path | None, arguments: int) -> tuple[str, ...]:
    """What to try when a command at this place names something that does not exist."""
    return _steps(_origins(place, dry_run, follow=True), script, arguments)


def why_it_ended(dry_run: DryRun) -> tuple[str, ...]:
    """The command at which the shell gave up, or the condition after which the script says `exit`."""
    if not dry_run.last_command or not dry_run.exit_code:
        return ()
    if not _ENDS.match(dry_run.last_command):
        return (f"its last command: {_short(dry_run.last_command)}",)
    file, _, number = dry_run.condition.rpartition(":")
    lines = logical_lines(read_text(file))
    return tuple(f"it asks at {dry_run.condition}: {_short(each.text)}" for each in lines if str(each.number) == number)


def _steps(origins: Iterable[_Origin], script: Path | None, arguments: int) -> tuple[str, ...]:
    found = list(dict.fromkeys(origins))
    name = script or "SCRIPT"
    variables = [origin.text for origin in found if origin.kind == "variable"]
    steps = []
    if variables:
        options = " ".join(f"--env {each}=VALUE" for each in variables)
        steps.append(f"set {_listed(variables)}: rldbg run {options} {name}")
    if any(origin.kind == "argument" and _lacks_argument(origin, script, arguments) for origin in found):
        steps.append(f"give it its arguments: rldbg run {name} ARGUMENT ...")
    return (*steps, *(origin.text for origin in found if origin.kind == "line"))


def _lacks_argument(origin: _Origin, script: Path | None, arguments: int) -> bool:
    file, _, number = origin.text.rpartition(" ")
    is_its_own = script is not None and Path(file).absolute() == script.absolute()
    return is_its_own and (not number.isdigit() or int(number) > arguments)


def _origins(place: str, dry_run: DryRun, *, follow: bool, above: tuple[str, ...] = ()) -> Iterator[_Origin]:
    """Where the empty values of a line come from; with `follow`, also those inside the values of its variables."""
    file, _, number = place.rpartition(":")
    lines = logical_lines(read_text(file))
    line = next((line for line in lines if str(line.number) == number), None)
    if line is None or place in above:
        return
    empty = dry_run.empty.get(place, frozenset())
    for name in dict.fromkeys(_NAME.findall(line.text)):
        source = _assignment(lines, name, before=line.number)
        deeper: list[_Origin] = []
        if source is not None and (follow or name in empty):
            inside = f"{file}:{source.number}"
            deeper = list(_origins(inside, dry_run, follow=True, above=(*above, place)))
        if name in empty and source is None:
            deeper = [_Origin("variable", name)]
        elif name in empty and source is not None and not deeper:
            deeper = [_Origin("line", f"{name} is empty after {file}:{source.number}: {_short(source.text)}")]
        yield from deeper
    yield from (_Origin("argument", f"{file} {name}") for name in sorted(empty) if not _NAME.match(f"${name}"))


def _defaults(place: str) -> Iterator[_Origin]:
    """Variables of a condition for which the script has a default, `X=${X:-/path/to/x}`: it may want another value."""
    file, _, number = place.rpartition(":")
    lines = logical_lines(read_text(file))
    texts = [line.text for line in lines if str(line.number) == number]
    for name in dict.fromkeys(name for text in texts for name in _NAME.findall(text)):
        if any(re.search(rf"\b{name}=\"?\$\{{{name}:?[-=]", line.text) for line in lines):
            yield _Origin("variable", name)


def _assignment(lines: list[ScriptLine], name: str, *, before: int) -> ScriptLine | None:
    """The last line above that gives the variable a value of its own: `X=${X:-}` does not."""
    gives = re.compile(
        rf"(?:^|[;&|(]|\b(?:then|do|else|export|local|readonly|declare|-\w))\s*{name}\+?=|\bfor\s+{name}\b|\bread\b.*\b{name}\b"
    )
    own = re.compile(rf"{name}=\"?\$\{{?{name}\b")
    found = [line for line in lines if line.number < before and gives.search(line.text) and not own.search(line.text)]
    return found[-1] if found else None


def _fill_in(place: str, script: Path | None) -> str:
    left = [left for left in placeholders(script) if place.endswith(f":{left.number}")] if script is not None else []
    return f"replace {left[0].text} in the script" if left else ""


def _missing_file(name: str, cwd: Path) -> str:
    """A path that ends like a file of this folder: the script expects the folder at another place."""
    path = Path(os.path.normpath(name))
    if path.is_absolute():
        for at in range(1, len(path.parts) - 1):
            inside, expected = Path(*path.parts[at:]), Path(*path.parts[:at])
            if (cwd / inside).exists():
                if expected.is_relative_to(cwd):
                    return f"correct the path in the script: {name} does not exist, {inside} does"
                return f"run it where {expected} is this folder (ln -s {cwd} {expected}), or correct the path in it"
    return f"provide {name}, or run the script from the folder that has it"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _short(text: str) -> str:
    first = " ".join(text.split())
    return first if len(first) <= _LONGEST_TEXT else f"{first[:_LONGEST_TEXT]}…"
