"""What a command line starts in the end: the Python program behind any launchers, and its arguments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rldbg.launch.known_launchers import Peeled, module_that_launches, peel

_INTERPRETER = re.compile(r"(?:python|pypy)(?:\d+(?:\.\d+)*)?(?:-dbg|d|t)?$")
_DEEPEST = 12
_NO_START_UP = frozenset("IES")

ProgramKind = Literal["module", "script", "code", "stdin", "executable", "none"]


@dataclass(frozen=True, slots=True)
class Program:
    """What runs in the end. For a module or a script, `arguments` is what it finds in sys.argv[1:]."""

    kind: ProgramKind
    name: str
    arguments: tuple[str, ...] = ()
    interpreter: str = ""
    interpreter_flags: tuple[str, ...] = ()
    launchers: tuple[Peeled, ...] = ()

    @property
    def is_python(self) -> bool:
        return self.kind in ("module", "script", "code", "stdin")

    @property
    def ignores_start_up(self) -> str:
        """The interpreter flag that keeps a start-up hook on PYTHONPATH from loading, or nothing."""
        for flag in self.interpreter_flags:
            if not flag.startswith("--") and _NO_START_UP & set(flag[1:]):
                return flag
        return ""

    @property
    def words(self) -> tuple[str, ...]:
        """The name, in lower case, cut into words: my_rl.trainer.main_ppo -> my rl trainer main ppo."""
        stem = re.sub(r"\.(py|sh)$", "", self.name)
        return tuple(word for word in re.split(r"[^a-z0-9]+", stem.lower()) if word)


def is_interpreter(word: str) -> bool:
    return bool(_INTERPRETER.fullmatch(word.rsplit("/", 1)[-1]))


def understand(words: Sequence[str]) -> Program:
    """Looks through launchers (`uv run`, `torchrun`, `srun` ...) for the program that does the work."""
    launchers: list[Peeled] = []
    rest = tuple(words)
    for _ in range(_DEEPEST):
        if rest and is_interpreter(rest[0]):
            program = _python(rest)
            behind = module_that_launches(program.name) if program.kind == "module" else ()
            if not behind:
                return replace(program, launchers=tuple(launchers))
            rest = (*behind, *program.arguments)
        peeled = peel(rest)
        if peeled is None:
            break
        launchers.append(peeled)
        rest = peeled.inner
    if not rest:
        return Program("none", "", launchers=tuple(launchers))
    return Program("executable", rest[0], tuple(rest[1:]), launchers=tuple(launchers))


def _python(words: tuple[str, ...]) -> Program:
    interpreter, flags, at = words[0], [], 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        for option, kind in (("-m", "module"), ("-c", "code")):
            # `-m` may close a bundle (`-um`) and carry its value (`-mpip`).
            place = word.find(option[1]) if not word.startswith("--") else -1
            if place > 0 and not word[1:place].strip("bBdEhiIOPqRsSuvVx?"):
                name = word[place + 1 :] or (words[at + 1] if at + 1 < len(words) else "")
                rest = words[at + (1 if word[place + 1 :] else 2) :]
                if place > 1:
                    flags.append(word[:place])
                return Program(kind, name, rest, interpreter, tuple(flags))  # type: ignore[arg-type]
        flags.append(word)
        at += 2 if word in ("-X", "-W", "--check-hash-based-pycs") else 1
    if at >= len(words) or words[at] == "-":
        return Program("stdin", "-", words[at + 1 :], interpreter, tuple(flags))
    return Program("script", words[at], words[at + 1 :], interpreter, tuple(flags))
