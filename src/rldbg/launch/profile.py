"""How each framework is started, read from the `launch.yaml` in its folder (keys: `launch/settings.py`)."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from rldbg.core import UsageError, check_values, refuse_unknown
from rldbg.frameworks import GENERIC, Framework, find_framework, frameworks, lineage
from rldbg.launch.settings import LaunchProfile, OptionEntry

_FILE = "launch.yaml"


@cache
def profiles() -> dict[str, LaunchProfile]:
    """The profiles of all frameworks that have one, by name; the generic one last."""
    known = sorted(frameworks(), key=lambda framework: (framework.name == GENERIC, framework.name))
    files = ((framework, framework.file(_FILE)) for framework in known)
    return {framework.name: _load(framework, file) for framework, file in files if file is not None}


def profile_named(name: str) -> LaunchProfile:
    """The profile of a framework, or of the one that it is a fork of."""
    framework = find_framework(name)
    known = profiles()
    for each in lineage(framework):
        if each.name in known:
            return known[each.name]
    raise UsageError(f"{framework.title} has no launch profile", f"choose one of: {', '.join(known)}")


def commands() -> set[str]:
    """Programs of frameworks that are started by a name of their own and a sub-command (`my_rl grpo`)."""
    return {pattern.split()[0] for profile in profiles().values() for pattern in profile.train if " " in pattern}


def _load(framework: Framework, file: Path) -> LaunchProfile:
    """All profiles are read before every run, so this needs nothing but YAML."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data: dict[str, Any] = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
    refuse_unknown(LaunchProfile, data, str(file))
    types = {field.name: field.type for field in fields(LaunchProfile)}
    try:
        profile = LaunchProfile(framework.name, **{key: _read(types[key], data[key], file) for key in data})
    except TypeError as error:
        raise UsageError(f"{file}: {error}", "see src/rldbg/launch/settings.py for its keys") from error
    check_values(profile, source=str(file))
    return profile


def _read(kind: Any, value: Any, file: Path) -> Any:
    """A value of the file as its field has it: lists and mappings become tuples."""
    if kind == tuple[OptionEntry, ...]:
        return tuple(_entry(item, file) for item in value)
    if isinstance(value, Mapping):
        return tuple((key, tuple(item) if isinstance(item, list) else str(item)) for key, item in value.items())
    return tuple(value) if isinstance(value, list) else value


def _entry(item: str | Mapping[str, Any], file: Path) -> OptionEntry:
    if isinstance(item, str):
        return OptionEntry(item)
    refuse_unknown(OptionEntry, item, str(file))
    return OptionEntry(**{**item, "value": str(item.get("value", ""))})
