"""Which of two packages is too old or too new for the other, as the releases that the log prints and the history of
their interfaces tell."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rldbg.doctor.api_history import asked_package, told_by_history
from rldbg.doctor.evidence import Failure, Hit, LogEvidence
from rldbg.doctor.frames import asks, package_of, short
from rldbg.doctor.releases import printed_releases
from rldbg.doctor.sources import LogSource

_OF_INTERFACE = re.compile(
    r"unexpected keyword argument|missing \d+ required (?:positional|keyword-only)|cannot import name|No module named|"
    r"has no attribute"
)
_COMPARED = re.compile(r"pip show ((?:[a-z][\w-]*(?: (?=[a-z]))?)+)")


_OF_OP = re.compile(
    r"(?P<op>\w+(?:::\w+)?)\(\) (?:is missing value for argument|expected at most \d+ argument\(s\) but received \d+)"
    r"|(?P<bound>\w+)\(\): incompatible (?:function|constructor) arguments"
)
_LIBRARIES = {
    "flashinfer": "flashinfer-python",
    "flash_attn": "flash-attn",
    "sgl_kernel": "sgl-kernel",
    "deep_gemm": "deep-gemm",
    "deep_ep": "deep-ep",
    "flash_mla": "flash-mla",
    "transformer_engine": "transformer-engine",
    "xformers": "xformers",
    "triton": "triton",
    "apex": "apex",
    "tensorrt": "tensorrt",
    "cutlass": "nvidia-cutlass-dsl",
    "mooncake": "mooncake-transfer-engine",
}
"""Libraries of compiled operations, and what pip calls them."""
MISMATCH = "interface-mismatch"


def unfit_calls(evidence: LogEvidence) -> Iterator[Hit]:
    """Calls of compiled operations with arguments that the installed library does not take."""
    for failure in evidence.failures:
        if failure.frames and not (failure.known_as or failure.warned) and unfit_call(failure.headline, failure.frames):
            yield Hit(MISMATCH, failure.place, failure.headline, failure.headline)


def unfit_call(said: str, frames: Sequence[str]) -> str:
    """Who calls which library's operation with arguments that it does not take."""
    found = _OF_OP.search(said)
    asking = next((frame for frame in reversed(frames) if asks(frame)), "")
    caller = package_of(asking)
    if found is None or not caller:
        return ""
    op = (found["op"] or found["bound"]).rpartition("::")[2]
    around = " ".join((*map(short, frames), said))
    library = next((pip for name, pip in _LIBRARIES.items() if name in around), "")
    whose = f"of {library} " if library else "of a compiled library "
    return (
        f"the operation {op}() {whose}takes other arguments than {caller} passes at {short(asking)}: the installed "
        f"releases do not fit each other; pip show {' '.join(filter(None, (caller, library)))}."
    )


class ReleaseFit(NamedTuple):
    """The detail of a cause with the releases in it, and what to install."""

    detail: str
    fix: tuple[str, ...]


def told_by_releases(failure: Failure, detail: str, sources: Sequence[LogSource]) -> ReleaseFit | None:
    """What the releases say of an exception about something that another package does not have."""
    said = failure.headline
    if not _OF_INTERFACE.search(said):
        return None
    compared = [name for found in _COMPARED.findall(detail) for name in found.split()]
    packages = dict.fromkeys((asked_package(said), *compared))
    printed = printed_releases(packages, sources)
    verdict = told_by_history(said, failure.frames, printed)
    if not (printed or verdict):
        return None
    head, semicolon, rest = (detail or said).rstrip(".").partition("; ")
    words = f"{head}: {verdict.words}" if verdict else head
    shown = ", ".join(f"{name} {release}" for name, release in printed.items())
    ends = f"; this log prints {shown}" if shown else ""
    return ReleaseFit(f"{words}{semicolon}{rest}{ends}.", (verdict.fix,) if verdict else ())
