"""Since and until which release a package has a name, a module, an argument or an attribute: what an error about one of
them says about the installed release.

The facts are in `releases/<package>.txt.gz`, of the tagged releases of each package, only of what was added or taken
away between the first and the last of them. A line is `kind symbol since until new-place`:

    n quilt.utils:open_port - 0.11.1 quilt.utils.network
    a EngineArgs.__init__:worker_extension_cls 0.7.3 - -
"""

import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from rldbg.doctor.clues.interfaces import owner_of
from rldbg.doctor.clues.releases import as_numbers
from rldbg.doctor.logs.frames import is_standard, package_of, short

_FOLDER = Path(__file__).parent / "releases"
_ARGUMENT = re.compile(
    r"(?P<callee>[A-Za-z_]\w*(?:\.\w+)?)\(\) (?:got an unexpected keyword argument ['\"](?P<extra>\w+)['\"]"
    r"|missing \d+ required (?:positional|keyword-only) arguments?: ['\"](?P<missing>\w+)['\"](?! and|,))"
)
_IMPORT = re.compile(r"cannot import name ['\"](?P<name>\w+)['\"] from ['\"](?P<owner>[\w.]+)['\"]")
_MODULE = re.compile(r"No module named ['\"](?P<owner>\w+(?:\.\w+)+)['\"]")
_OF_MODULE = re.compile(r"module ['\"](?P<owner>[\w.]+)['\"] has no attribute ['\"](?P<name>\w+)['\"]")
_OF_OBJECT = re.compile(
    r"(?:type object )?['\"](?P<owner>[A-Z]\w+)['\"](?: object)? has no attribute ['\"](?P<name>\w+)['\"]"
)
_PACKAGES = {"megatron": "megatron-core"}
"""Modules whose package is called otherwise."""


class _Query(NamedTuple):
    kind: str
    symbol: str
    is_lacking: bool = True
    """Whether the installed release does not have it; an argument that is missing in a call it does have."""


class Change(NamedTuple):
    """When a package got a symbol and when it lost it again; empty where that was before or after the known
    releases."""

    package: str
    since: str
    until: str
    place: str
    """The module that has the name since then."""

    def fits(self, query: _Query, installed: str) -> bool:
        """Whether an error can come from this release of the package."""
        if not installed:
            return True
        has = as_numbers(self.since) <= as_numbers(installed) and (
            not self.until or as_numbers(installed) < as_numbers(self.until)
        )
        return has is not query.is_lacking


class ReleaseVerdict(NamedTuple):
    """What the history says of an error."""

    words: str
    fix: str


def asked_package(said: str) -> str:
    """The package that an error says lacks something, as far as its words or its history name it."""
    query = next(_queries(said), None)
    if query is None:
        return ""
    named = {change.package for change in _changes(query)}
    root = query.symbol.partition(":")[0].partition(".")[0]
    return _PACKAGES.get(root, root) if query.kind in "mn" else next(iter(named)) if len(named) == 1 else ""


def told_by_history(said: str, frames: Sequence[str], releases: Mapping[str, str]) -> ReleaseVerdict | None:
    """Which package is too old or too new, where an error is about a thing that it has not had in all releases."""
    query = next(_queries(said), None)
    if query is None:
        return None
    around = {_PACKAGES.get(name, name) for frame in frames if (name := package_of(frame))}
    root = query.symbol.partition(":")[0].partition(".")[0]
    around |= {_PACKAGES.get(root, root), owner_of(root)}
    changes = [change for change in _changes(query) if change.package in around]
    if len(changes) != 1 or not changes[0].fits(query, releases.get(changes[0].package, "")):
        return None
    return _verdict(changes[0], query, frames, releases.get(changes[0].package, ""))


def _queries(said: str) -> Iterator[_Query]:
    if found := _ARGUMENT.search(said):
        name = found["extra"] or found["missing"]
        yield _Query("a", f"{found['callee']}:{name}", bool(found["extra"]))
    elif found := _IMPORT.search(said):
        yield _Query("n", f"{found['owner']}:{found['name']}")
    elif found := _MODULE.search(said):
        yield _Query("m", found["owner"])
    elif found := _OF_MODULE.search(said):
        yield _Query("n", f"{found['owner']}:{found['name']}")
    elif found := _OF_OBJECT.search(said):
        yield _Query("t", f"{found['owner']}:{found['name']}")


def _verdict(change: Change, query: _Query, frames: Sequence[str], installed: str) -> ReleaseVerdict:
    package, since, until, place = change
    caller = _caller(frames, package)
    here = f" ({installed} in this log)" if installed else ""
    if not query.is_lacking:
        words = f"{package} asks for it since {since}, and {caller} was written for an older one"
        return ReleaseVerdict(words, f"pip install '{package}<{since}'; or a newer release of {caller}")
    is_older = bool(since) and (not until or (bool(installed) and as_numbers(installed) < as_numbers(since)))
    is_newer = bool(until) and (not since or (bool(installed) and not is_older))
    if is_older:
        words = f"{package} has it since {since}, so the installed one{here} is older than {caller} needs"
        return ReleaseVerdict(
            words, f"pip install -U '{package}>={since}'; or the release of {caller} for the installed one"
        )
    moved = f" (it is in {place} now)" if place else ""
    if is_newer:
        words = (
            f"{package} has not had it since {until}{moved}, so the installed one{here} is newer than {caller} knows"
        )
        return ReleaseVerdict(words, f"pip install '{package}<{until}'; or a newer release of {caller}")
    words = f"{package} has it from {since} to before {until}{moved}, so the installed one is newer or older than that"
    return ReleaseVerdict(words, f"pip install '{package}>={since},<{until}'; or a newer release of {caller}")


def _caller(frames: Sequence[str], package: str) -> str:
    """Whose code asks: the innermost package of the traceback that is not the one asked."""
    for frame in reversed(frames):
        name = _PACKAGES.get(package_of(frame), package_of(frame))
        if not is_standard(frame) and name != package:
            return name or f"your code ({short(frame).rpartition(' in ')[0].rpartition('/')[2]})"
    return "what calls it"


def _changes(query: _Query) -> list[Change]:
    asked = f"\n{query.kind} {query.symbol} ".encode()
    found = []
    for package, table in _tables().items():
        at = table.find(asked)
        if at >= 0:
            words = table[at + len(asked) : table.index(b"\n", at + 1)].decode().split(" ")
            found.append(Change(package, *("" if word == "-" else word for word in words)))
        elif since := _moved_here(query, table):
            found.append(Change(package, since, "", ""))
    return found


def _moved_here(query: _Query, table: bytes) -> str:
    """Since when a module has a name that was in others before; where these lost it at several times, nothing."""
    owner, _, name = query.symbol.partition(":")
    if query.kind != "n" or not name:
        return ""
    moves = re.findall(rf"\nn [\w.]+:{re.escape(name)} \S+ (\S+) {re.escape(owner)}(?=\n)".encode(), table)
    return moves[0].decode() if len(set(moves)) == 1 else ""


@lru_cache(maxsize=1)
def _tables() -> Mapping[str, bytes]:
    """The lines of each package; read only when an error about an interface was found."""
    files = sorted(_FOLDER.glob("*.txt.gz"))
    return {file.name.removesuffix(".txt.gz"): b"\n" + gzip.decompress(file.read_bytes()) for file in files}
