"""An attribute that a class's own code asks for, or that is asked for in a process whose frames are not shown: nobody
in the log is the caller of another release."""

import re

from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.clues.interfaces import PASSED_ON, find_class, owner_of
from rldbg.doctor.logs.evidence import Failure
from rldbg.doctor.logs.frames import is_go_between, is_passed_on, is_standard, package_of, short

ENTRY = "interface-mismatch"
"""The entry of things that a called object or function does not have."""

_ATTRIBUTE = re.compile(r"AttributeError: '(?P<owner>[A-Z_]\w*)' object has no attribute '(?P<name>\w+)'")
_OF_SETTINGS = re.compile(r"(?:Config|Args|Arguments|Namespace|ActorHandle|Proxy)$")
"""Objects whose attributes others set, or that hand them on."""


def told_of_attribute(failure: Failure) -> CauseWords | None:
    found = _ATTRIBUTE.search(failure.headline)
    if found is None or _OF_SETTINGS.search(found["owner"]) or not failure.frames:
        return None
    owner, name = found["owner"], found["name"]
    if is_passed_on(failure.frames):
        return _passed_on(owner, name)
    inner = next((frame for frame in reversed(failure.frames) if not is_go_between(frame)), "")
    package = "" if is_standard(inner) else package_of(inner)
    if not package or not re.search(rf"\bself\.{name}\b", failure.code):
        return None
    return _own(owner, name, package, short(inner))


def _own(owner: str, name: str, package: str, place: str) -> CauseWords:
    known = owner_of(owner)
    derived = (
        ""
        if known == package
        else f" If {owner} is a class of your own that is derived from one of {package}, it has to set {name}: "
        "see that its __init__ calls super().__init__()."
    )
    return CauseWords(
        title=f"{owner} does not have its own attribute {name}",
        title_zh=f"{owner} 缺少自身的属性 {name}",
        detail=f"{package} asks for self.{name} at {place}; what sets it did not run with these settings",
        cause=f"Code of the class asks for its own attribute, so caller and class are both of {package}: likely a "
        f"fault of this release of {package}, mostly an attribute that only one mode or setting sets.{derived}",
        fix=(
            f'See where it is set, and under which condition: grep -rn "self.{name}" $(python -c "import {package}; '
            f'print({package}.__path__[0])")',
            f"Use another release of {package} (pip show {package}; its issues name {name}), or the mode that sets it",
        ),
        is_whole=True,
    )


def _passed_on(owner: str, name: str) -> CauseWords:
    package = owner_of(owner)
    of_package = f"of {package} " if package else ""
    return CauseWords(
        detail=f"{owner} has no {name}; {PASSED_ON}",
        cause="Which code asked for it is not shown: the traceback ends where a process waited for another one. "
        f"Possible: code {of_package}asks a class {of_package}for an attribute that this release sets in one mode "
        "only, or does not set (a fault of that release); or caller and class are of releases that do not fit.",
        fix=(
            f"Find the frames of the process that raised it (Ray: grep -rn '{name}' /tmp/ray/session_latest/logs/)",
            f"See where {name} is set, in {find_class(owner).removesuffix('; ')}",
            f"If {package or 'that package'} asks for it itself: another release of it, or the mode that sets {name}",
        ),
        is_whole=True,
    )
