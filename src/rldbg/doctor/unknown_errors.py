"""What can be said of an exception that no entry knows: whose code raised it, who called it, and what to try first."""

import re
from collections.abc import Iterator

from rldbg.doctor.evidence import Failure

_INSTALLED = re.compile(r"/(?:site|dist)-packages/(?P<package>[\w-]+)")
_STANDARD = re.compile(r"/lib(?:64)?/python[\d.]+/(?!(?:site|dist)-packages)|^<|^uvloop/|^python/ray/")
_HINTS = (
    (r"^KeyError", "print the keys that are there at that line; compare their names with the one that is missing"),
    (r"'NoneType' object", "find what returns None in that line: a lookup without a match, or a step that was skipped"),
    (
        r"has no attribute|unexpected keyword|positional argument",
        "compare the releases of both packages at that line",
    ),
    (r"^(?:Index|Zero\w*)Error", "print the lengths at that line: an empty batch, list or group is the usual reason"),
    (r"^(?:FileNotFound|NotADirectory)Error", "check the path on the node that raised it, inside its container"),
    (r"(?i)shape|size|dimension|broadcast", "print the shapes at that line on every rank"),
    (r"^AssertionError", "read the condition at that line; print both sides of it"),
    (r"(?i)cuda|cublas|cudnn|hip ", "export CUDA_LAUNCH_BLOCKING=1 and run again: the trace then names the call"),
    (
        r"^\w*(?:JSONDecode|Unicode\w+|Parser?)Error",
        "look at the text that was parsed: it may be empty or a page",
    ),
)


def reading(failure: Failure) -> Iterator[str]:
    """Steps in the order in which they are worth trying; nothing where the traceback says nothing."""
    raised = failure.frames[-1] if failure.frames else ""
    own = next((frame for frame in reversed(failure.frames) if is_own_code(frame)), "")
    installed = next((found for frame in reversed(failure.frames) if (found := _INSTALLED.search(frame))), None)
    if raised and own == raised:
        yield f"it was raised in code that is not installed as a package: {own}"
    elif raised:
        package = f" by {installed['package']}" if installed and not is_own_code(raised) else ""
        yield f"it was raised{package} at {raised}" + (f"; your code called it at {own}" if own else "")
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, failure.headline)), None)
    if hint and raised:
        yield hint
    if installed:
        yield f"search the issues of {installed['package']} for: {search_words(failure)}"


def is_own_code(frame: str) -> bool:
    """Whether a frame is neither an installed package nor the standard library."""
    return not _INSTALLED.search(frame) and not _STANDARD.search(frame)


def search_words(failure: Failure) -> str:
    """The message without what differs from run to run."""
    kind = failure.kind.rpartition(".")[2]
    words = re.sub(r"0x[0-9a-f]+|\b\d[\d.]*\b|/[^\s:]{2,}|[\[{].{40,}", " ", failure.message)
    return f'"{" ".join(f"{kind} {words}".split()[:12])}"'
