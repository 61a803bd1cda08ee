"""Recipes: YAML composed through `defaults`, changed by overrides, with interpolations resolved.

`defaults` may have one of three forms:

- a list of sibling names, with `_self_` where the file's own keys go (last when it is absent);
- one relative path (`defaults: ../base.yaml`), or a list of paths; the file's own keys go last;
- Hydra config groups (`- model: tiny`), composed by Hydra itself, which must then be installed.

Names are looked for next to the file, then along `hydra.searchpath` (`file://` entries, relative to the working
directory or to the file). A name without a path (`arithmetic`) is a recipe that ships with the package, unless a file
of that name exists. Overrides are Hydra's: `k=v` for a key that exists, `+k=v` for a new one, `++k=v` for either, `~k`
to remove one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rldbg.core.errors import IncompleteDataError, PrerequisiteError, UsageError, did_you_mean, explained_as

_SHIPPED = Path(__file__).parents[1] / "recipes"
# Examples of recipes write `...` on a line of its own for what they leave out.
_ELLIPSIS = re.compile(r"^\s*\.\.\.\s*$", re.MULTILINE)
_MISSING_VARIABLE = re.compile(r"Environment variable '([^']+)' not found")


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """A recipe composed, overridden and wholly resolved."""
    return resolve(compose(path, overrides), source=str(path))


def compose(path: Path | str, overrides: Sequence[str] = ()) -> DictConfig:
    """A recipe composed and overridden, its interpolations still in place."""
    file = find_recipe(path)
    own = _read(file)
    if _uses_hydra_groups(own.get("defaults")):
        return _compose_with_hydra(file, overrides)
    config = _compose_file(file, trail=())
    config.pop("defaults", None)
    for override in overrides:
        _apply(config, override)
    return config


def find_recipe(path: Path | str) -> Path:
    """The file of a recipe that is given by its path, or by the name of one that ships with the package."""
    file = Path(path)
    if not file.is_file() and file.name == str(path):
        shipped = _SHIPPED / f"{file.name.removesuffix('.yaml')}.yaml"
        if shipped.is_file():
            return shipped
    return file


def resolve(config: DictConfig, *, source: str) -> dict[str, Any]:
    """Plain data with every interpolation resolved; an unset variable without a default is an error."""

    try:
        resolved = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise _interpolation_error(error, source) from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def resolve_block(config: DictConfig, block: str, *, source: str, lenient: bool = False) -> Any:
    """One top-level block resolved. `lenient` leaves what cannot be resolved as it is written."""

    node = config._get_node(block)
    if not OmegaConf.is_config(node):
        try:
            return config[block]
        except OmegaConfBaseException as error:
            if lenient:
                return OmegaConf.to_container(config, resolve=False)[block]  # type: ignore[index, call-overload]
            raise _interpolation_error(error, source) from error
    try:
        return OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        if not lenient:
            raise _interpolation_error(error, source) from error
    if OmegaConf.is_dict(node):
        return {str(key): resolve_block(node, key, source=source, lenient=True) for key in node}
    return OmegaConf.to_container(node, resolve=False)


def _read(file: Path) -> DictConfig:

    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        names = ", ".join(sorted(shipped.stem for shipped in _SHIPPED.glob("*.yaml")))
        hint = f"give the path of a YAML file, or the name of a packaged recipe: {names}"
        raise UsageError(f"cannot read the recipe {file}: {error.strerror}", hint) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not a text file", "give a YAML recipe") from error
    try:
        config = OmegaConf.create(_ELLIPSIS.sub("", text) or "{}")
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise UsageError(f"{file} is not a valid recipe: {error}", "fix the YAML") from error
    if not isinstance(config, DictConfig):
        raise UsageError(f"{file} does not have a mapping at its top level", "a recipe is `key: value` lines")
    return config


def _compose_file(file: Path, trail: tuple[Path, ...]) -> DictConfig:
    """One file merged with what its `defaults` name, in their order."""

    where = file.resolve()
    if where in trail:
        chain = " -> ".join(step.name for step in (*trail, where))
        raise UsageError(f"recipes include each other in a cycle: {chain}", "remove one of the `defaults`")
    own = _read(file)
    layers: list[Any] = []
    placed = False
    for entry in _default_entries(own.pop("defaults", None), file):
        if entry == "_self_":
            layers.append(own)
            placed = True
        else:
            layers.append(_compose_file(_find(entry, file, own), (*trail, where)))
    if not placed:
        layers.append(own)
    try:
        merged = OmegaConf.merge(*layers)
    except OmegaConfBaseException as error:
        raise UsageError(
            f"{file} conflicts with the recipe that it builds on: {error}", "fix the key it names"
        ) from error
    return merged  # type: ignore[return-value]


def _default_entries(defaults: Any, file: Path) -> Iterator[str]:
    if defaults is None:
        return
    entries = [defaults] if isinstance(defaults, str) else list(defaults)
    for entry in entries:
        if not isinstance(entry, str):
            raise UsageError(f"{file}: `defaults` holds {entry!r}", "list names of other recipes, or one relative path")
        yield entry


def _find(name: str, file: Path, own: DictConfig) -> Path:
    """The recipe a `defaults` entry names: next to the file, else along hydra.searchpath."""
    suffix = "" if name.endswith((".yaml", ".yml")) else ".yaml"
    folders = [file.parent]
    for place in (own.get("hydra") or {}).get("searchpath") or []:
        if str(place).startswith("file://"):
            relative = str(place).removeprefix("file://")
            folders += [Path(relative), file.parent / relative]
    for folder in folders:
        candidate = folder / f"{name}{suffix}"
        if candidate.is_file():
            return candidate
    looked = ", ".join(dict.fromkeys(str(folder) for folder in folders))
    known = [other.stem for folder in folders for other in folder.glob("*.yaml")]
    hint = did_you_mean(name, known, "put it next to the recipe, or name its folder in hydra.searchpath")
    raise UsageError(f"{file} builds on {name!r}, which is not in {looked}", hint)


def _uses_hydra_groups(defaults: Any) -> bool:
    """Whether `defaults` needs Hydra: a mapping entry, a name inside a group, or a package."""
    if defaults is None or isinstance(defaults, str):
        return False
    return any(not isinstance(entry, str) or _is_hydra_name(entry) for entry in defaults)


def _is_hydra_name(entry: str) -> bool:
    return not entry.endswith((".yaml", ".yml")) and ("/" in entry or "@" in entry)


def _compose_with_hydra(file: Path, overrides: Sequence[str]) -> DictConfig:
    message = f"{file} is composed from Hydra groups, and Hydra is not installed"
    with explained_as(PrerequisiteError, ImportError, message, "pip install 'rldbg[hydra]'"):
        from hydra import compose as hydra_compose
        from hydra import initialize_config_dir
        from hydra.errors import HydraException

    try:
        with initialize_config_dir(config_dir=str(file.parent.resolve()), version_base="1.3"):
            config = hydra_compose(config_name=file.stem, overrides=list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(f"Hydra cannot compose {file}: {error}", "fix the recipe or the override it names") from error
    OmegaConf.set_struct(config, False)
    with open_dict(config):
        config.pop("hydra", None)
    return config


def _apply(config: DictConfig, override: str) -> None:
    """One override, in Hydra's grammar."""

    match = re.fullmatch(r"(?P<sign>\+\+|\+|~|)(?P<key>[^=+~\s][^=]*?)(?:=(?P<value>.*))?", override, re.DOTALL)
    if match is None or (match["value"] is None and match["sign"] != "~"):
        raise UsageError(f"invalid override: {override!r}", "write key=value, +key=value, ++key=value or ~key")
    sign, key = match["sign"], match["key"]
    exists = _has(config, key)
    if sign == "~":
        if not exists:
            raise _unknown_key(config, key, f"there is no {key!r} to remove")
        parent, _, last = key.rpartition(".")
        (OmegaConf.select(config, parent) if parent else config).pop(last)
        return
    if sign == "" and not exists:
        raise _unknown_key(config, key, f"the recipe has no {key!r}")
    if sign == "+" and exists:
        raise UsageError(f"the recipe already has {key!r}", f"write {key}=... or ++{key}=... to change it")
    try:
        value = OmegaConf.from_dotlist([f"value={match['value']}"])
        OmegaConf.update(config, key, value._get_node("value"), merge=True, force_add=True)
    except (OmegaConfBaseException, ValueError) as error:
        raise UsageError(f"cannot apply {override!r}: {error}", "quote the value, or fix the key") from error


def _has(config: DictConfig, key: str) -> bool:

    parent, _, last = key.rpartition(".")
    try:
        node = OmegaConf.select(config, parent) if parent else config
    except OmegaConfBaseException:
        return False
    # `in` on a DictConfig denies keys whose interpolation cannot be resolved; its key list does not.
    return OmegaConf.is_dict(node) and last in list(node.keys())


def _unknown_key(config: DictConfig, key: str, message: str) -> UsageError:
    return UsageError(message, did_you_mean(key, _keys(config), f"to add it, write +{key}=...", cutoff=0.7))


def _keys(config: DictConfig, prefix: str = "") -> Iterator[str]:

    for key in config:
        name = f"{prefix}{key}"
        yield name
        node = config._get_node(key)
        if OmegaConf.is_dict(node) and not node._is_none() and not node._is_interpolation():
            yield from _keys(node, f"{name}.")


def _interpolation_error(error: Exception, source: str) -> UsageError | IncompleteDataError:
    key = getattr(error, "full_key", None) or "?"
    variable = _MISSING_VARIABLE.search(str(error))
    if variable:
        name = variable[1]
        return UsageError(
            f"{source}: {key} needs the environment variable {name}, which is not set",
            f"export {name}=... or give it a default: ${{oc.env:{name},DEFAULT}}",
        )
    first_line = str(error).splitlines()[0]
    return UsageError(f"{source}: {key} cannot be resolved: {first_line}", "define what it refers to")
