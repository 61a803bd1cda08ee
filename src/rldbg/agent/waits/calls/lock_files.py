"""Files that a program waits for to be removed, because they are a lock: which one, how old, and who wrote it.

Such a file outlives a process that was killed: the kernel does not remove it, as it releases its own locks."""

import ast
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ..code.origins import own_nodes
from ..code.resolving import resolve, texts_of
from ..code.source import Sources
from ..code.ways_out import leaves_loop
from ..reading.kernel import Facts, read_text
from ..reading.objects import Frame, is_a, path_text

_EXISTS = frozenset({"exists", "lexists", "isfile", "is_file", "isdir", "is_dir"})
# Calls that fail while the file is there.
_MAKES = frozenset({"open", "mkdir", "makedirs", "touch", "link", "symlink", "symlink_to", "hardlink_to"})
_FAILS = frozenset({"FileExistsError", "OSError", "IOError"})
# File systems that other hosts write to as well.
_SHARED_SYSTEMS = re.compile(r"nfs|cifs|smb|lustre|gpfs|beegfs|ceph|fuse|9p|afs|orangefs|weka")
_PATHS = frozenset({"Path", "PurePath", "PosixPath", "str", "fspath", "join"})
_MOST_BYTES = 4096
_NAMED = re.compile(r"\A\s*(\d+)\s*$|\bpid\W{0,4}(\d+)\b", re.IGNORECASE | re.MULTILINE)
_STARTED = 19


def awaited_absence(frame: Frame, sources: Sources) -> str:
    """The path of the file whose removal a loop around the line waits for; empty when it waits for something else."""
    for loop in sources.loops_around(frame)[-1:]:
        for path in (*_looked_for(loop, frame, sources), *_made(loop, frame)):
            return path
    return ""


def _looked_for(loop: ast.AST, frame: Frame, sources: Sources) -> Iterator[str]:
    if not isinstance(loop, ast.While):
        return
    tests = [(loop.test, False)]
    tests += [(node.test, True) for node in own_nodes(loop) if isinstance(node, ast.If) and leaves_loop(node)]
    for test, leaves in tests:
        for call, negated in _existence(test, False, frame, sources):
            if negated == leaves and (path := _path_of(call, frame)):
                yield path


def _existence(test: ast.expr, negated: bool, frame: Frame, sources: Sources) -> Iterator[tuple[ast.Call, bool]]:
    """Calls in a condition that look whether a file exists, each with whether it is negated; also those that a function
    of the user returns."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _existence(test.operand, not negated, frame, sources)
    elif isinstance(test, ast.BoolOp):
        for each in test.values:
            yield from _existence(each, negated, frame, sources)
    elif isinstance(test, ast.Call):
        if isinstance(test.func, ast.Attribute) and test.func.attr in _EXISTS:
            yield test, negated
        function = sources.definition_of(resolve(test.func, frame))
        returned = [node.value for node in own_nodes(function) if isinstance(node, ast.Return)] if function else []
        if len(returned) == 1 and isinstance(returned[0], ast.Call | ast.UnaryOp):
            yield from _existence(returned[0], negated, frame, sources)


def _made(loop: ast.AST, frame: Frame) -> Iterator[str]:
    """What the loop tries to make again and again."""
    for node in own_nodes(loop):
        if not isinstance(node, ast.Try):
            continue
        caught = {name for handler in node.handlers for name in _caught(handler)}
        calls = [each for body in node.body for each in ast.walk(body) if isinstance(each, ast.Call)]
        for call in calls if caught & _FAILS else ():
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if called in _MAKES and (path := _path_of(call, frame)):
                yield path


def _caught(handler: ast.ExceptHandler) -> list[str]:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return [ast.unparse(kind) for kind in kinds if kind is not None]


def _path_of(call: ast.Call, frame: Frame) -> str:
    """The path that a call gets, or that it is a method of."""
    if isinstance(call.func, ast.Attribute) and not is_a(resolve(call.func.value, frame), "module"):
        return _path(call.func.value, frame)
    return _path(call.args[0], frame) if call.args else ""


def _path(expression: ast.expr, frame: Frame) -> str:
    """A path as the source puts it together; empty where a part of it is not plain."""
    if isinstance(expression, ast.Constant | ast.JoinedStr):
        return next(iter(texts_of(expression, frame)), "")
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Div | ast.Add):
        sides = [_path(each, frame) for each in (expression.left, expression.right)]
        return ("/" if isinstance(expression.op, ast.Div) else "").join(sides) if all(sides) else ""
    if isinstance(expression, ast.Call) and ast.unparse(expression.func).rpartition(".")[2] in _PATHS:
        parts = [_path(each, frame) for each in expression.args]
        return "/".join(parts) if all(parts) else ""
    value = resolve(expression, frame)
    return (path_text(value) or value.text() or "") if value is not None else ""


def lock_file(pid: int, path: str) -> Facts:
    """A file as a process sees it: its age, and the process that is named in it; empty when there is no such file.
    `ended` only where that is certain: the number may be one of another host."""
    full = Path(f"/proc/{pid}/root{path}" if path.startswith("/") else f"/proc/{pid}/cwd/{path}")
    try:
        facts = full.stat()
        text = full.read_bytes()[:_MOST_BYTES].decode("utf-8", "replace") if full.is_file() else ""
    except OSError:
        return {}
    found: Facts = {"path": path, "age_s": max(time.time() - facts.st_mtime, 0.0)}
    named = _NAMED.search(text)
    owner = int(named[1] or named[2]) if named is not None else 0
    if named is None or not 0 < owner <= int(read_text("/proc/sys/kernel/pid_max") or 0):
        return found
    rest = text.replace(named[0], "", 1)
    # The processes that it sees, where it is in a container.
    processes = f"/proc/{pid}/root/proc"
    here = _is_of_this_host(rest) if re.search(r"[a-z]", rest, re.I) else not _is_shared(pid, full)
    if not here or not Path(f"{processes}/self").exists():
        return found | {"pid": owner}
    started = _started(f"{processes}/{owner}/stat")
    return found | {"pid": owner, "ended": started is None or started > facts.st_mtime + 1}


def _is_of_this_host(text: str) -> bool:
    return socket.gethostname().partition(".")[0].lower() in text.lower()


def _started(stat: str) -> float | None:
    """When a process began; None when there is none of that number."""
    words = read_text(stat).rpartition(")")[2].split()
    booted = re.search(r"^btime (\d+)", read_text("/proc/stat"), re.M)
    if len(words) <= _STARTED or booted is None:
        return None
    return int(booted[1]) + int(words[_STARTED]) / os.sysconf("SC_CLK_TCK")


def _is_shared(pid: int, path: Path) -> bool:
    """Whether other hosts write to the file system of a path."""
    device = path.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    rows = [line.split() for line in read_text(f"/proc/{pid}/mountinfo").splitlines()]
    kinds = [row[row.index("-") + 1] for row in rows if "-" in row and row[2] == name]
    return any(_SHARED_SYSTEMS.search(kind) for kind in kinds)
