"""Changes the arguments of the training program as it starts, when `rldbg run` asks for it (RLDBG_ARM_ARGUMENTS).

The start-up hook calls `arm_this_process` in every Python process of an armed run, before the program's first line.
The changes were determined by the dry run and are plain data, one rule per training command:

    {"rules": [{"kind": "module", "name": "my_rl.main", "arguments": [digests], "dialect": "hydra",
                "edits": [{"key": "trainer.total_epochs", "value": "1"},
                          {"key": "trainer.experiment_name", "suffix": "-Debug"}]}],
     "ray_job": {"RAY_DEBUG_POST_MORTEM": "1", ...}}

Options are only ever appended to those the user wrote: in every dialect the last one wins. What was added is noted
in the run folder, so that `rldbg run` can prove it. Applying a rule twice changes nothing more.
"""

import json
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from .arming import merged_runtime_env

ARGUMENTS_VARIABLE = "RLDBG_ARM_ARGUMENTS"
_CLOSING = "/'\""
"""Characters that may follow a name; the suffix goes before them."""
_TAKES_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_RUNTIME_ENV_OPTIONS = ("--runtime-env-json", "--runtime-env")


def arm_this_process(started: Sequence[str] = ()) -> None:
    """Applies the rule for this program, if there is one.

    A module that runs a script in its own process gives the command line that would have started the script.
    """
    text = os.environ.get(ARGUMENTS_VARIABLE, "")
    if not text:
        return
    plan: dict[str, Any] = json.loads(text)
    started = started or sys.orig_argv
    kind, name, _ = program_of(started)
    before = list(sys.argv)
    if kind == "script" and Path(name).name == "ray" and sys.argv[1:3] == ["job", "submit"]:
        sys.argv[1:] = armed_job_submission(sys.argv[1:], plan.get("ray_job", {}))
    else:
        rule = choose_rule(plan["rules"], kind, name, sys.argv[1:])
        if rule is None:
            return
        sys.argv[1:] = edited(sys.argv[1:], rule["edits"], rule["dialect"])
    _note(started, before)


def program_of(orig_argv: Sequence[str]) -> tuple[str, str, list[str]]:
    """What an interpreter was told to run: its kind, its name, its arguments."""
    at = 1
    while at < len(orig_argv):
        word = orig_argv[at]
        if not word.startswith("-") or word == "-":
            return "script", word, list(orig_argv[at + 1 :])
        bundle = re.fullmatch(r"-[bBdEiIOPqRsSuvx]*([mc])(.*)", word, re.DOTALL)
        if bundle:
            joined = [bundle[2]] if bundle[2] else []
            rest = [*joined, *orig_argv[at + 1 :]]
            return ("module" if bundle[1] == "m" else "code"), (rest[0] if rest else ""), rest[1:]
        at += 2 if word in _TAKES_VALUE else 1
    return "none", "", []


def choose_rule(
    rules: Sequence[dict[str, Any]], kind: str, name: str, arguments: Sequence[str]
) -> dict[str, Any] | None:
    """The rule for this program; of several, the one whose command had the most arguments in common."""
    mine = [rule for rule in rules if rule["kind"] == kind and _same_program(kind, rule["name"], name)]
    given = {digest(word) for word in arguments}
    return max(mine, key=lambda rule: len(given.intersection(rule["arguments"])), default=None)


def digest(word: str) -> str:
    """A digest of an argument: others may be able to read the rules, and arguments may be secrets."""
    return blake2b(word.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()


def _same_program(kind: str, expected: str, name: str) -> bool:
    if expected == name:
        return True
    if kind != "script":
        return False
    one, other = Path(expected), Path(name)
    if one.is_absolute() and other.is_absolute() and one.exists() and other.exists():
        return one.resolve() == other.resolve()
    shorter, longer = sorted((one.parts, other.parts), key=len)
    # A console script (`rl`) or a relative path may have been installed or copied to another folder.
    return longer[len(longer) - len(shorter) :] == shorter


def option_values(arguments: Sequence[str], dialect: str) -> dict[str, str]:
    """The options on a command line with their values, as written; of a repeated one the last."""
    values: dict[str, str] = {}
    if dialect == "flags":
        for at, word in enumerate(arguments):
            if not word.startswith("--") or word == "--":
                continue
            name, equals, value = word.partition("=")
            following = arguments[at + 1] if at + 1 < len(arguments) else ""
            values[name] = value if equals else "" if following.startswith("--") else following
        return values
    for word in arguments:
        match = re.fullmatch(r"\+{0,2}([A-Za-z_][\w./@:-]*)=(.*)", word, re.DOTALL)
        if match:
            values[match[1]] = match[2]
    return values


def edited(arguments: Sequence[str], edits: Sequence[Mapping[str, str]], dialect: str) -> list[str]:
    """The arguments with all edits appended."""
    result = list(arguments)
    for edit in edits:
        value = edit_value(edit, option_values(result, dialect))
        if value is not None:
            result += written(edit["key"], value, dialect)
    return result


def edit_value(edit: Mapping[str, str], given: Mapping[str, str]) -> str | None:
    """The value that an edit gives to its option; None when the option already has it or has none to build on."""
    now = given.get(edit["key"])
    if "suffix" not in edit:
        return None if now == edit["value"] else edit["value"]
    base = now or edit.get("base", "")
    bare = base.rstrip(_CLOSING).removesuffix(edit.get("extension", ""))
    if not bare or (now and bare.endswith(edit["suffix"])):
        return None
    return bare + edit["suffix"] + base[len(bare) :]


def written(key: str, value: str, dialect: str) -> list[str]:
    """An option in a framework's own dialect. `++` adds a key or changes it, whichever is needed."""
    if dialect == "flags":
        return [key, value] if value else [key]
    return [f"{'++' if dialect == 'hydra' else ''}{key}={value}"]


def armed_job_submission(arguments: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """`ray job submit` with variables added to its runtime environment; what the user put there stays."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    runtime_env: dict[str, Any] = {}
    at = 2
    while at < end and words[at].startswith("-"):
        option, equals, value = words[at].partition("=")
        if option not in _RUNTIME_ENV_OPTIONS:
            at += 1 if equals or at + 1 >= end or words[at + 1].startswith("-") or option == "--no-wait" else 2
            continue
        length = 1 if equals else 2
        value = value if equals else words[at + 1]
        runtime_env = json.loads(value) if option == "--runtime-env-json" else _read_yaml(value)
        del words[at : at + length]
        end -= length
    merged = merged_runtime_env(runtime_env, variables)
    return [*words[:2], f"--runtime-env-json={json.dumps(merged)}", *words[2:]]


def _read_yaml(path: str) -> dict[str, Any]:
    # Ray itself needs PyYAML to read this file, so where it is missing the submission fails in Ray's own words.
    import yaml

    data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    return data if isinstance(data, dict) else {}


def _note(started: Sequence[str], before: Sequence[str]) -> None:
    """The proof: what this process was started with, and what it finds in sys.argv."""
    run = os.environ.get("RLDBG_RUN", "")
    if not run:
        return
    from .redaction import load_redact

    body = {"orig_argv": list(started), "before": list(before), "argv": sys.argv, "pid": os.getpid()}
    redact = load_redact() if os.environ.get("RLDBG_REDACT", "1") != "0" else None
    if redact is not None:
        body = redact(body, "")
    folder = Path(run) / "armed"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        part = folder / f".{socket.gethostname()}-{os.getpid()}"
        part.write_text(json.dumps(body), encoding="utf-8")
        part.rename(folder / f"{socket.gethostname()}-{os.getpid()}.json")
    except OSError:
        # The run folder is not on this machine: the missing note is what tells `rldbg run` so.
        return
