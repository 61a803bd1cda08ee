"""Whose code a frame of a traceback is: of Python, of a library that serves anybody, of a framework, of the user."""

import re
from collections.abc import Sequence
from itertools import pairwise

from rldbg.doctor.logs.cleaning import without_environment
from rldbg.doctor.logs.evidence import Failure
from rldbg.frameworks import frameworks

_INSTALLED = re.compile(r"/(?:site|dist)-packages/(?P<package>[A-Za-z]\w*)")
_STANDARD = re.compile(r"/lib(?:64)?/python[\d.]+/(?!(?:site|dist)-packages)|^<|^uvloop/|^python/ray/|\.pyx:")
CALLS_THROUGH = frozenset(
    {"torch", "hydra", "ray", "rldbg", "uvloop", "pydantic", "fire", "click", "typer", "omegaconf", "wrapt"}
)
"""Packages that call what they are given: a call through them is of whoever called them."""
_SERVES_ANY = CALLS_THROUGH | {
    *("numpy", "pandas", "pyarrow", "sentencepiece", "tokenizers", "safetensors", "tensordict", "triton", "jinja2"),
    *("httpx", "httpcore", "requests", "urllib3", "aiohttp", "anyio", "openai", "starlette", "fastapi", "uvicorn"),
    *("tenacity", "zmq", "grpc", "msgspec", "joblib", "cloudpickle", "tqdm", "multiprocess", "contextlib2"),
}
"""Libraries of general use: what they raise is mostly about what they were given."""

_GO_BETWEEN = re.compile(
    r" in __(?:getattr|getattribute|setattr|delattr)__$"
    r"|(?:^|/)ray/(?:_private/(?:client_mode_hook|auto_init_hook|worker)|util/tracing/tracing_helper|remote_function|"
    r"actor)\.py:"
    r"|/rldbg/(?:agent|recording|frameworks|live|profiling|tripwire)/"
)
_WAITS_FOR_ANOTHER = re.compile(
    r"(?:^|/)ray/(?:_private/worker|util/client/\w+)\.py:\d+ in _?get(?:_objects)?$"
    r"|(?:^|/)concurrent/futures/_base\.py:\d+ in (?:result|__get_result)$"
    r"|(?:^|/)asyncio/(?:futures|tasks|runners|base_events|queues)\.py:\d+ in "
    r"(?:result|wait_for|run|run_until_complete|_wakeup)$"
    r"|(?:^|/)multiprocess(?:ing)?/pool\.py:\d+ in (?:get|_?map|next)$"
)
_FOLDERS = 4


def is_standard(frame: str) -> bool:
    """Whether a frame is of Python itself, or of compiled code."""
    return bool(_STANDARD.search(frame))


def is_go_between(frame: str) -> bool:
    """Whether a frame only looks a name up for whoever asks, or is of Ray while it waits for another process."""
    return bool(_GO_BETWEEN.search(frame))


def is_passed_on(frames: Sequence[str]) -> bool:
    """Whether the innermost frame only waited for another process or task, whose exception it raises again: who raised
    it, and who called that, is not among the frames."""
    return bool(frames) and bool(_WAITS_FOR_ANOTHER.search(frames[-1]))


def is_own_code(frame: str) -> bool:
    """Whether a frame is of no package and not of the standard library."""
    return not package_of(frame) and not is_standard(frame)


def decider(failure: Failure) -> str:
    """The package to ask about an exception: the innermost one that is no library of general use; such a library where
    the user's own code called it."""
    frames = [frame for frame in reversed(failure.frames) if not (is_standard(frame) or is_go_between(frame))]
    inner = [(package_of(frame), frame) for frame in frames]
    for package, _frame in inner:
        if not package:
            break
        if package not in _SERVES_ANY:
            return package
    return next((package for package, _frame in inner if package), "")


def asks(frame: str) -> bool:
    """Whether a frame is of a program, and not of Python or a library of general use."""
    return not is_standard(frame) and package_of(frame) not in _SERVES_ANY


def raising_frames(frames: Sequence[str]) -> list[str]:
    """The frames that tell where an exception was raised, the innermost first: those of Python and of libraries, and
    the one of a framework or of the user's that called them."""
    inner = list(reversed(frames))
    first = next((depth for depth, frame in enumerate(inner) if is_of_program(frame)), len(inner))
    return inner[: first + 1]


def is_of_program(frame: str) -> bool:
    """Whether a frame is of the user's code, of a framework or of an engine, and not of a library that these use."""
    installed = _INSTALLED.search(frame)
    is_library = installed and not any(installed["package"] == framework.name for framework in frameworks())
    return not is_standard(frame) and not is_library


def story(failure: Failure) -> str:
    """In which function of a program an exception was raised, and from which file that was called: what the program was
    doing; empty without frames."""
    steps = [frame for frame in reversed(failure.frames) if asks(frame)]
    raised = next((frame for frame in reversed(failure.frames) if not is_go_between(frame)), "")
    verb = "passed on" if failure.is_carried else "raised"
    if failure.ends_open and raised:
        return f"last frame shown: {_function_of(raised)}"
    by = "" if not raised or asks(raised) or not package_of(raised) else f"{verb} by {_function_of(raised)}"
    if not steps:
        return by
    file = steps[0].partition(".py:")[0]
    caller = next((frame for frame in steps[1:] if frame.partition(".py:")[0] != file), "")
    return (
        (f"{by} " if by else "")
        + f"in {_function_of(steps[0])}"
        + (f", called by {_function_of(caller)}" if caller else "")
    )


def _function_of(frame: str) -> str:
    place, _in, function = short(frame).rpartition(" in ")
    file = place.rpartition(":")[0] or place
    return f"{function} ({'/'.join(file.split('/')[-_FOLDERS:])})"


def installed_package(frame: str) -> str:
    """The package of a frame that pip installed, or nothing."""
    found = _INSTALLED.search(frame)
    return found["package"] if found else ""


def package_of(frame: str) -> str:
    """The package whose code a frame is, or nothing for code of the user and of Python itself."""
    if installed := installed_package(frame):
        return installed
    parts = without_environment(frame).replace("-", "_").split("/")[:-1]
    folders = {part.lower() for part in parts}
    known = next((framework.name for framework in frameworks() if framework.name in folders), "")
    return known or _checked_out(parts)


def _checked_out(folders: Sequence[str]) -> str:
    """The package in a checkout of its sources: a folder in one that is called like it (`megatron_lm/megatron`), or in
    the folder for sources of that."""
    inner = [folder for folder in folders if folder not in ("src", "python")]
    pairs = ((repository.lower(), package) for repository, package in pairwise(inner))
    return next((package for repository, package in pairs if len(package) > 2 and repository.startswith(package)), "")


def short(frame: str) -> str:
    """A frame without the folders above its package."""
    found = _INSTALLED.search(frame)
    return frame[found.start("package") :] if found else frame
