"""Calls of compiled operations with arguments that the installed library does not take."""

import re
from collections.abc import Iterator, Sequence

from rldbg.doctor.evidence import Hit, LogEvidence
from rldbg.doctor.frames import asks, package_of, short

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
