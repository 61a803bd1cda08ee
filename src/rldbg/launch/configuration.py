"""The configuration file that a training command names, as far as it can be read without the framework."""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from rldbg.launch.command_line import Program

_DEEPEST = 6
_KEY_PARTS = 3
_LARGEST_BYTES = 1_000_000
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def configured_source(program: Program, cwd: Path, key: str) -> tuple[str, str]:
    """The key that `key` takes its value from, which is another one where the configuration refers to it (others may
    refer to it as well), and its text, with further references in it: empty when it is not there."""
    file = _configuration_file(program, cwd)
    if file is None:
        return key, ""
    value = _look_up(file, key.lstrip("-").split("."), _DEEPEST)
    for _ in range(_DEEPEST):
        referred = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if referred is None:
            break
        key = referred[1]
        value = _look_up(file, key.split("."), _DEEPEST)
    return key, value if isinstance(value, str) else ""


def configured_names(program: Program, cwd: Path) -> set[str]:
    """The option names that the configuration itself sets, dotted: they tell the framework."""
    file = _configuration_file(program, cwd)
    return set(_names(_read(file), "", _KEY_PARTS)) if file is not None else set()


def _names(node: Any, prefix: str, parts: int) -> Iterator[str]:
    if not isinstance(node, dict) or parts == 0:
        return
    for key, value in node.items():
        yield f"{prefix}{key}"
        yield from _names(value, f"{prefix}{key}.", parts - 1)


def missing_configuration(program: Program, cwd: Path, there: Collection[str]) -> str:
    """The YAML file that the command names and that is not where the program looks for it; empty where that is not
    certain. `there` are words that named files when the command was called."""
    named, words = _named_file(program), " ".join(program.arguments)
    if named is None or named.suffix not in (".yaml", ".yml") or str(named) in there or "hydra.searchpath" in words:
        return ""
    if "--config-path" not in words and "-cp" not in words and "--config-name" in words:
        return ""  # below a folder that the program itself names
    is_there = any((folder / named).is_file() for folder in _folders(program, cwd))
    source = _source(program, cwd)
    starts_here = (cwd / named.parent).is_dir() if named.is_absolute() else source is not None and source.is_file()
    return str(named) if starts_here and not is_there else ""


def _configuration_file(program: Program, cwd: Path) -> Path | None:
    named = _named_file(program)
    return _existing(program, cwd, named) if named is not None else _default_file(program, cwd)


def _named_file(program: Program) -> Path | None:
    """`--config FILE`, or Hydra's `--config-path FOLDER --config-name NAME`."""
    arguments = program.arguments
    options: dict[str, str] = {}
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in ("--config", "--config-path", "-cp", "--config-name", "-cn", "--config_file"):
            options[name] = value if equals else (arguments[at + 1] if at + 1 < len(arguments) else "")
    chosen = options.get("--config-name") or options.get("-cn")
    if chosen:
        folder = Path(options.get("--config-path") or options.get("-cp") or "config")
        return folder / (chosen if chosen.endswith((".yaml", ".yml")) else f"{chosen}.yaml")
    named = options.get("--config") or options.get("--config_file")
    if named is None and program.words[:1] == ("rldbg",):
        named = next((word for word in arguments if word.endswith((".yaml", ".yml"))), None)
    return Path(named) if named else None


def _default_file(program: Program, cwd: Path) -> Path | None:
    """The file that the program itself names for the case that its command does not; None where it names several."""
    source = _source(program, cwd)
    if source is None or not _is_small_file(source):
        return None
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    named = {source.parent / file for node in ast.walk(tree) if isinstance(node, ast.Call) for file in _named_by(node)}
    files = [file for file in named if _is_small_file(file)]
    return files[0] if len(files) == 1 else None


def _source(program: Program, cwd: Path) -> Path | None:
    if program.kind == "script":
        return cwd / program.name
    return cwd.joinpath(*program.name.split(".")).with_suffix(".py") if program.kind == "module" else None


def _named_by(call: ast.Call) -> Iterator[str]:
    """`os.path.join(os.path.dirname(__file__), "configs", "x.yaml")`, or Hydra's decorator."""
    function, words = ast.unparse(call.func), [_text(argument) for argument in call.args[1:]]
    is_beside = function in ("os.path.join", "join") and any(
        "dirname(__file__)" in ast.unparse(argument) for argument in call.args[:1]
    )
    if is_beside and words and all(words) and words[-1].endswith((".yaml", ".yml")):
        yield "/".join(words)
    if function == "hydra.main":
        options = {keyword.arg: _text(keyword.value) for keyword in call.keywords}
        if options.get("config_name"):
            yield f"{options.get('config_path') or '.'}/{options['config_name'].removesuffix('.yaml')}.yaml"


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _existing(program: Program, cwd: Path, file: Path) -> Path | None:
    return next((folder / file for folder in _folders(program, cwd) if _is_small_file(folder / file)), None)


def _folders(program: Program, cwd: Path) -> list[Path]:
    """Relative to where the command runs, or to its program, as Hydra has it."""
    if program.kind == "script":
        return [cwd, (cwd / program.name).parent]
    return [cwd, cwd.joinpath(*program.name.split(".")[:-1])] if program.kind == "module" else [cwd]


def _is_small_file(file: Path) -> bool:
    try:
        return file.is_file() and file.stat().st_size <= _LARGEST_BYTES
    except OSError:
        return False


def _read(file: Path) -> Any:
    import yaml

    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError):
        return None


def _look_up(file: Path, key: list[str], depth: int) -> Any:
    data = _read(file)
    node = data
    for part in key:
        node = node.get(part) if isinstance(node, dict) else None
    if node is not None or not isinstance(data, dict) or depth == 0:
        return node
    defaults = data.get("defaults")
    for name in [defaults] if isinstance(defaults, str) else defaults if isinstance(defaults, list) else []:
        if isinstance(name, str) and name != "_self_":
            parent = file.parent / (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
            found = _look_up(parent, key, depth - 1) if parent.is_file() else None
            if found is not None:
                return found
    return None
