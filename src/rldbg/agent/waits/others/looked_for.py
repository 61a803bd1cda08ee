"""Files that loops look for until they are there, files that functions will write, and servers that loops ask again and
again: their paths and addresses, as far as the source puts them together of what is known."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..code.called import called_function, calls_ahead
from ..code.origins import given_to, last_name, own_nodes
from ..code.places import is_users
from ..code.resolving import holds, number_of, resolve, texts_of
from ..code.source import Sources, nodes_ahead
from ..reading.kernel import Facts
from ..reading.objects import Frame, is_a, path_text

_CALLED_THROUGH, _DEPTH = 2, 12
_EXISTS = frozenset({"exists", "lexists", "isfile", "is_file", "isdir", "is_dir"})
_SEARCHES = frozenset({"glob", "rglob", "iglob", "listdir", "iterdir", "scandir"})
# What makes the file that it is a method of, that it is given first, or anywhere.
_MADE = frozenset({"touch", "write_text", "write_bytes", "mkdir", "symlink_to", "hardlink_to"})
_MAKING = frozenset({"mkdir", "makedirs", "mknod", "mkfifo"})
_SAVING = frozenset(
    {"save", "savez", "dump", "save_file", "save_pretrained", "rename", "replace", "move", "copy", "copyfile"}
)
_PATHS = frozenset({"Path", "PurePath", "PosixPath", "str", "fspath", "join", "joinpath"})
_MOST = 20
_ADDRESS = re.compile(
    r"(?:[a-z][a-z+.]*://)?(?:[^/@\s]*@)?(?P<host>[\w.-]+|\[[0-9a-f:]+\]):(?P<port>\d{2,5})(?:[/?]\S*)?"
)


def awaited_files(frame: Frame, pid: int, sources: Sources) -> list[str]:
    """The paths, also with wildcards, that the loop around the line looks for until there is a file."""
    test, word = sources.polled_test(frame)
    found = _Paths(frame, sources).looked_for(test) if test is not None and word == "until" else ()
    return [_absolute(pid, path) for path in found][:_MOST]


def files_ahead(frames: Sequence[Frame], pid: int, sources: Sources) -> list[Facts]:
    """The paths that the current functions will write after the lines where they are, with these lines."""
    found: list[Facts] = []
    own = [frame for frame in frames if is_users(frame.file)]
    for frame, inner in zip(own, (None, *own), strict=False):
        passed = _branches_not_taken(frame, sources)
        for place, call in calls_ahead(frame, inner, sources):
            if id(call) in passed or (place is frame and getattr(call, "lineno", 0) <= frame.line):
                continue
            facts = {"file": place.file, "line": getattr(call, "lineno", 0), "function": place.function}
            found += [facts | {"path": _absolute(pid, path)} for path in _Paths(place, sources).written(call) if path]
    return found[:_MOST]


def asked_address(frame: Frame, sources: Sources) -> str:
    """HOST:PORT, if all calls of the loop around the line that are given an address are given the same one."""
    loops = sources.loops_around(frame)
    calls = [node for node in own_nodes(loops[-1]) if isinstance(node, ast.Call)] if loops else []
    given = [each for call in calls for each in (*call.args, *(word.value for word in call.keywords))]
    found = {address for expression in given for address in _addresses(expression, frame)}
    return found.pop() if len(found) == 1 else ""


def _addresses(expression: ast.expr, frame: Frame) -> list[str]:
    if isinstance(expression, ast.Tuple) and len(expression.elts) == 2:
        # `socket.create_connection((host, port))`
        port, hosts = number_of(expression.elts[1], frame), texts_of(expression.elts[0], frame)
        texts = [f"{host}:{int(port)}" for host in hosts] if port is not None else []
    else:
        # An operation may add the path to an address.
        parts = expression.left if isinstance(expression, ast.BinOp) else expression
        known = isinstance(parts, ast.Constant | ast.JoinedStr | ast.Name | ast.Attribute | ast.Subscript)
        texts = texts_of(parts, frame) if known else []
    matches = [_ADDRESS.fullmatch(text) for text in texts]
    return [f"{match['host'].strip('[]')}:{match['port']}" for match in matches if match]


def _absolute(pid: int, path: str) -> str:
    try:
        return path if path.startswith("/") else f"{Path(f'/proc/{pid}/cwd').readlink()}/{path}"
    except OSError:
        return path


def _branches_not_taken(frame: Frame, sources: Sources) -> set[int]:
    """What stands under conditions that do not hold with the values of now."""
    found: set[int] = set()
    for node in nodes_ahead(frame, sources):
        if isinstance(node, ast.If) and (known := holds(node.test, frame)) is not None:
            found |= {id(inner) for each in (node.orelse if known else node.body) for inner in ast.walk(each)}
    return found


@dataclass(frozen=True)
class _Paths:
    """The paths in the code of one frame."""

    frame: Frame
    sources: Sources

    def looked_for(self, test: ast.expr, depth: int = 0) -> Iterator[str]:
        for call in (node for node in ast.walk(test) if isinstance(node, ast.Call)):
            name = last_name(call.func)
            if name in _EXISTS | _SEARCHES and (path := self._asked(call)):
                yield path
            elif depth < _CALLED_THROUGH and (called := called_function(call, self.frame, self.sources)) is not None:
                returned = [node.value for node in own_nodes(called.definition) if isinstance(node, ast.Return)]
                inner = _Paths(called, self.sources)
                yield from (each for value in returned if value for each in inner.looked_for(value, depth + 1))

    def _asked(self, call: ast.Call) -> str:
        """`folder.glob(pattern)`, `folder.exists()` and `os.path.exists(path)`."""
        if isinstance(call.func, ast.Attribute) and not is_a(resolve(call.func.value, self.frame), "module"):
            parts = [self.text(each) for each in (call.func.value, *call.args[:1])]
            return "/".join(parts) if all(parts) else ""
        return self.text(call.args[0]) if call.args else ""

    def written(self, call: ast.Call) -> Iterator[str]:
        name, given = last_name(call.func), [*call.args, *(word.value for word in call.keywords)]
        if name == "open" and isinstance(call.func, ast.Name) and call.args:
            modes = [each.value for each in given[1:] if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            yield self.text(call.args[0]) if any(set(mode) & set("wax") for mode in modes) else ""
        elif name in _MADE and isinstance(call.func, ast.Attribute):
            yield self.text(call.func.value) or (self.text(call.args[0]) if call.args and name in _MAKING else "")
        elif name in _SAVING | _MAKING:
            yield from (text for each in given if "/" in (text := self.text(each)))

    def text(self, expression: ast.expr, depth: int = 0) -> str:
        """A path or a part of it; empty where something of it is not known."""
        if depth > _DEPTH:
            return ""
        if isinstance(expression, ast.Constant):
            return str(expression.value) if isinstance(expression.value, str | int) else ""
        if isinstance(expression, ast.JoinedStr):
            parts = [
                self.text(getattr(each, "value", each) if isinstance(each, ast.FormattedValue) else each, depth + 1)
                for each in expression.values
            ]
            plain = all(
                not isinstance(each, ast.FormattedValue) or each.format_spec is None for each in expression.values
            )
            return "".join(parts) if plain and all(parts) else ""
        if isinstance(expression, ast.BinOp):
            return self._combined(expression, depth)
        if isinstance(expression, ast.Call):
            owner = (
                [expression.func.value]
                if isinstance(expression.func, ast.Attribute) and last_name(expression.func) == "joinpath"
                else []
            )
            parts = [self.text(each, depth + 1) for each in (*owner, *expression.args)]
            return "/".join(parts) if last_name(expression.func) in _PATHS and parts and all(parts) else ""
        return self._named(expression, depth)

    def _combined(self, expression: ast.BinOp, depth: int) -> str:
        sides = [self.text(each, depth + 1) for each in (expression.left, expression.right)]
        if not all(sides):
            return ""
        if all(each.lstrip("-").isdigit() for each in sides) and isinstance(expression.op, ast.Add | ast.Sub):
            sign = 1 if isinstance(expression.op, ast.Add) else -1
            return str(int(sides[0]) + sign * int(sides[1]))
        return (
            {ast.Div: "/", ast.Add: ""}[type(expression.op)].join(sides)
            if isinstance(expression.op, ast.Div | ast.Add)
            else ""
        )

    def _named(self, expression: ast.expr, depth: int) -> str:
        """A variable has by then what an assignment further down gives it."""
        function = self.sources.function(self.frame)
        given = (
            list(given_to(expression.id, function)) if isinstance(expression, ast.Name) and function is not None else []
        )
        if len(given) == 1 and given[0].lineno > self.frame.line:
            return self.text(given[0], depth + 1)
        value = resolve(expression, self.frame)
        if value is None:
            return self.text(given[0], depth + 1) if len(given) == 1 else ""
        number = value.number()
        return path_text(value) or value.text() or ("" if number is None else str(number))
