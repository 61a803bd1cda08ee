"""Which library the stack of a crash blames: the first one that is neither C's runtime nor Python.

Native stacks name libraries or their sources, some only functions. Python's own handler of faults prints Python frames,
the innermost first: the first one of a package is where the native code was called.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.evidence import Hit
from rldbg.doctor.logs.sources import LogSource

_LIBRARY = re.compile(r"(?:^|[\s/\"'(])(?P<name>[\w+-]{2,60}\.so)(?:\.[\d.]+)?(?![\w])")
_NATIVE_FILE = re.compile(r"File \"(?P<path>[^\"]*)\", line \d+, in (?P<function>[\w:~]+)")
_PYTHON_FRAME = re.compile(
    r"File \"[^\"]*/(?:site|dist)-packages/(?P<package>[A-Za-z]\w*)[^\"]*\.py\", line \d+ in (?P<function>[\w<>]+)"
)
"""As `faulthandler` prints it; a traceback has a comma before the function."""
_SYMBOL = re.compile(r"(?:\bin |\+0x[0-9a-f]+ |\(unknown\) +|^#\d+ +)(?P<function>[A-Za-z_][\w:]{3,120})")
_OF_RUNTIME = re.compile(
    r"(?:lib(?:c|m|dl|rt|util|pthread|stdc\+\+|gcc_s|asan|tsan|SegFault|python[\d.]*)|ld-linux[\w-]*|python[\d.]*|linux-vdso)\.so"
)
_OF_FUNCTIONS = (
    (re.compile(r"cu[A-Z]\w+$"), "CUDA's driver"),
    (re.compile(r"cuda[A-Z]\w+$"), "CUDA's runtime"),
    (re.compile(r"(?:p?nccl[A-Z]\w+)$"), "NCCL"),
    (re.compile(r"(?:at|c10|c10d|torch)::"), "torch"),
)
_FRAME = re.compile(r"\s*(?:File \"|#\d+ |frame #\d+|@ |\[?0x[0-9a-f]|/\S+\.so|Binary file|PC: @|\*\*\*)")
_ROWS = 60


def crashed_library(hits: Sequence[Hit], sources: Sequence[LogSource]) -> str:
    """The library and the function that the stack under one of the lines names first; empty without such."""
    for hit in hits:
        source = next((each for each in sources if each.name == hit.place.file), None)
        rows = rows_of(source)[hit.place.line - 1 :] if source is not None else []
        frames = (text for raw in islice(rows, 1, _ROWS) if _FRAME.match(text := clean(raw).text))
        if named := next((told for told in map(_blamed, frames) if told), ""):
            return named
    return ""


def _blamed(frame: str) -> str:
    """The library of one frame with the function in it; empty where it is of the runtime or says nothing."""
    if called := _PYTHON_FRAME.search(frame):
        return f"{called['package']} ({called['function']})"
    file = _NATIVE_FILE.search(frame)
    function = file["function"] if file else next(_functions(frame), "")
    library = next((found["name"] for found in _LIBRARY.finditer(frame)), "")
    if not library and file and file["path"].startswith("/") and not file["path"].endswith(".py"):
        library = file["path"].split("/")[1]  # a library built with its sources' paths: /libvgpu/src/...
    if library and not _OF_RUNTIME.fullmatch(library):
        return f"{library} ({function})" if function else library
    owner = next((name for shape, name in _OF_FUNCTIONS if shape.match(function)), "") if not library else ""
    return f"{owner} ({function})" if owner else ""


def _functions(frame: str) -> Iterator[str]:
    return (found["function"] for found in _SYMBOL.finditer(frame))
