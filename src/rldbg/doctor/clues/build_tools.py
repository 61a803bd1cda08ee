"""A compiler that crashed or was killed: which tool of which release, and what it compiled for which card."""

import re
import signal
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import PurePosixPath

from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.evidence import Hit
from rldbg.doctor.logs.sources import LogSource

ENTRY = "compiler-crashed"
_COMMAND = re.compile(
    r"(?:^|[\s'\"\]])(?P<tool>(?:/\S{0,200}/)?(?:nvcc|hipcc|cicc|ptxas|g\+\+|gcc|c\+\+|cc|clang(?:\+\+)?)(?:-\d+)?)"
    r" +-\S"
)
_TOOL_SAID = re.compile(
    r"'(?P<tool>cicc|ptxas|cudafe\+\+|nvlink|fatbinary)'|program (?P<program>cc1plus|cc1|lto1|collect2)"
)
_TOOLKIT = re.compile(r"/(?P<name>cuda|rocm)-(?P<version>\d+(?:\.\d+){0,2})/")
_SOURCE = re.compile(r"(?:^|\s)-c +(?P<file>\S{1,400}\.(?:cu|cuh|hip|cpp|cc|cxx|c))\b")
_ARCHITECTURE = re.compile(
    r"code=\[?(?:compute_\w+,)?(?P<name>sm_\w+)|(?:-arch=?|offload-arch=)(?P<arch>sm_\w+|gfx\w+)"
)
_CODE = re.compile(r"(?:code|status|signal)[ =:]{1,3}\(?(?P<code>-?\d{1,3})\b")
_ABOVE, _BELOW = 40, 40
_SHELL = 128


def told_of_build(hits: Sequence[Hit], sources: Sequence[LogSource]) -> CauseWords | None:
    """The command around the lines in words, and the steps that fit it."""
    texts = [hit.text for hit in hits]
    number = next((code for text in texts if (code := _signal_of(text))), 0)
    command = next(chain((text for text in texts if _COMMAND.search(text)), _commands(hits, sources)), "")
    called = _COMMAND.search(command)
    path = called["tool"] if called else ""
    inner = next((found["tool"] or found["program"] for text in texts if (found := _TOOL_SAID.search(text))), "")
    name = inner or PurePosixPath(path).name
    if not name and not number:
        return None
    kit = _TOOLKIT.search(path)
    toolkit = f" of {kit['name'].upper()} {kit['version']}" if kit else ""
    source = _SOURCE.search(command)
    file = source["file"] if source else ""
    what = f" while it compiled {_in_short(file)}" if file else ""
    card = _ARCHITECTURE.search(command)
    what += f" for {card['name'] or card['arch']}" if card else ""
    ended = f"ended by signal {number} ({signal.Signals(number).name})" if number else "crashed"
    detail = f"{name or 'the compiler'}{toolkit}{f' ({path})' if path and path != name else ''} {ended}{what}."
    return CauseWords(detail, fix=tuple(_steps(number, f"{name}{toolkit}", file, has_kit=kit is not None)))


def _steps(number: int, tool: str, file: str, *, has_kit: bool) -> Iterator[str]:
    if number == signal.SIGKILL:
        return
    if has_kit:
        yield (
            f"Compile with another release than {tool}: export CUDA_HOME=<another toolkit>, its bin first in PATH "
            "(nvcc --version), or an image with another one; a release of the package whose kernel is written "
            "differently also avoids it"
        )
    if file.startswith("/") and ".cache" in file:
        yield f"Then delete what is half built: rm -rf {PurePosixPath(file).parent}"


def _signal_of(text: str) -> int:
    """The signal that an exit code in a line stands for; 0 without one."""
    for found in _CODE.finditer(text):
        code = int(found["code"])
        number = -code if code < 0 else code - _SHELL if code > _SHELL else code if "signal" in found[0] else 0
        if number in {each.value for each in signal.Signals}:
            return number
    return signal.SIGKILL if "Killed signal" in text else signal.SIGSEGV if "Segmentation fault" in text else 0


def _commands(hits: Sequence[Hit], sources: Sequence[LogSource]) -> Iterator[str]:
    """The lines around the hits that call a compiler, the nearest first."""
    for hit in hits:
        source = next((each for each in sources if each.name == hit.place.file), None)
        rows = rows_of(source) if source is not None else []
        near = range(max(0, hit.place.line - _ABOVE), min(len(rows), hit.place.line + _BELOW))
        for number in sorted(near, key=lambda at: abs(at + 1 - hit.place.line)):
            text = clean(rows[number]).text
            if _COMMAND.search(text) and _SOURCE.search(text):
                yield text


def _in_short(file: str) -> str:
    """A source with its folder, which is named after the kernel where one is written at run time."""
    path = PurePosixPath(file)
    return "/".join(path.parts[-2:]) if len(path.parts) > 1 else file
