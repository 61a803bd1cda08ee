"""Installed libraries that do not fit whoever calls them: compiled operations with other arguments, calls that are
refused while a package is imported, shared libraries that a package asks for."""

import re
from collections.abc import Iterator, Sequence

from rldbg.doctor.logs.evidence import Failure, Hit, LogEvidence
from rldbg.doctor.logs.frames import asks, installed_package, is_standard, package_of, short

_OF_OP = re.compile(
    r"(?P<op>\w+(?:::\w+)?)\(\) (?:is missing value for argument|expected at most \d+ argument\(s\) but received \d+)"
    r"|(?P<bound>\w+)\(\): incompatible (?:function|constructor) arguments"
    r"|Mismatched number of arguments when calling: [`'\"](?P<packed>\w+)[`'\"]\. Expected \d+ but got \d+ arguments"
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
_REFUSALS = ("AttributeError", "TypeError", "ValueError")
"""Of what a library says of a call. Other kinds are about the machine."""
_IMPORTED = " in <module>"
_NO_LIBRARY = re.compile(r"(?P<file>lib[\w.+-]+\.so[\w.]*): cannot open shared object file")


def unfit_calls(evidence: LogEvidence) -> Iterator[Hit]:
    """Calls that the installed release of a library does not take."""
    for failure in evidence.failures:
        if not failure.frames or failure.known_as or failure.warned:
            continue
        if unfit_call(failure.headline, failure.frames) or _is_refused_at_import(failure):
            yield Hit(MISMATCH, failure.place, failure.headline, failure.headline)


def _is_refused_at_import(failure: Failure) -> bool:
    return failure.kind in _REFUSALS and bool(refused_at_import(failure.headline, failure.frames))


def refused_at_import(said: str, frames: Sequence[str]) -> str:
    """Which package, while it is imported, calls which other one in a way that this one refuses: no setting of the run
    has been read by then."""
    own = [frame for frame in frames if not is_standard(frame)]
    if not own or not said.startswith(_REFUSALS) or own[-1].endswith(_IMPORTED):
        return ""
    callee = installed_package(own[-1])
    calling = next((frame for frame in reversed(own) if installed_package(frame) != callee), "")
    caller = installed_package(calling)
    if not (caller and callee and calling.endswith(_IMPORTED)):
        return ""
    return (
        f"{caller} calls {callee} while it is imported ({short(calling)}), and {callee} refuses the call: the "
        f"installed releases do not fit each other; pip show {caller} {callee}, then install the {callee} that this "
        f"{caller} requires."
    )


def library_asked_for(said: str, frames: Sequence[str]) -> str:
    """Which package asks for a shared library that is not there."""
    found = _NO_LIBRARY.search(said)
    asking = next((frame for frame in reversed(frames) if not is_standard(frame)), "")
    package = installed_package(asking)
    if found is None or not package:
        return ""
    return f"{found['file']} is asked for by {package} ({short(asking)}): install the build of {package} that fits."


def unfit_call(said: str, frames: Sequence[str]) -> str:
    """Who calls which library's operation with arguments that it does not take."""
    found = _OF_OP.search(said)
    asking = next((frame for frame in reversed(frames) if asks(frame) and package_of(frame)), "")
    caller = package_of(asking)
    if found is None or not caller:
        return ""
    op = (found["op"] or found["bound"] or found["packed"]).rpartition("::")[2]
    around = " ".join((*map(short, frames), said))
    library = next((pip for name, pip in _LIBRARIES.items() if name in around), "")
    if library and _LIBRARIES.get(caller) == library:
        return (
            f"the operation {op}() in the compiled part of {caller} takes other arguments than its Python code passes "
            f"at {short(asking)}: they are of different releases; pip list | grep -i {caller} shows all its packages, "
            f"which have to be of one release (of FlashInfer also flashinfer-cubin and flashinfer-jit-cache)."
        )
    whose = f"of {library} " if library else "of a compiled library "
    return (
        f"the operation {op}() {whose}takes other arguments than {caller} passes at {short(asking)}: the installed "
        f"releases do not fit each other; pip show {' '.join(filter(None, (caller, library)))}."
    )
