"""DebugMode: debug_mode[_step<N>][_rank<R>].txt holds the text that debug_string() returns, one operator per line.

    [nn.Mod] Model.layers.0
      aten::addmm(t: f32[3], t: f32[2, 4], t: f32[4, 3])  ->  t: f32[2, 3]  # {'hash': 2.96}

Depth is indentation; what follows `#` is there where hashes were logged.
"""

import ast
import re
from pathlib import Path
from typing import Any, NamedTuple

from rldbg.core import IncompleteDataError
from rldbg.recording import Record, Tree
from rldbg.recording.formats.malformed import Malformed, reading
from rldbg.recording.layouts.base import Entry, Layout, Listing, listing_of, matches

KIND = "operator_call"
_FILE = re.compile(
    r"(?:^|/)(?:step_?(?P<folder>\d+)/(?:.*/)?)?debug_mode(?:_step_?(?P<step>\d+))?(?:_rank_?(?P<rank>\d+))?\.(?:txt|log)$"
)
_CALL = re.compile(
    r"^(?P<depth> *)(?P<name>[A-Za-z_][\w.]*::[\w.]+)\((?P<inputs>.*?)\)"
    r"(?:  ->  (?P<outputs>.*?))?(?:  # (?P<log>\{.*\}))?$"
)
_MODULE = re.compile(r"^(?P<depth> *)\[nn\.Mod[^\]]*\] (?P<name>.+)$")
_NOT_LITERAL = re.compile(r"\b(nan|inf)\b")
_MOST_LOG = 10_000


class _Call(NamedTuple):
    name: str
    module: str
    inputs: str
    outputs: str
    log: str


class DebugModeLayout(Layout):
    name = "debug_mode"
    looks_for = "debug_mode[_step<N>][_rank<R>].txt"
    files = _FILE

    def survey(self, tree: Tree) -> Listing:
        entries = []
        for fact, found in matches(tree, _FILE):
            step, rank = int(found["step"] or found["folder"] or 0), int(found["rank"] or 0)
            try:
                count = len(_calls(tree.local(fact.name)))
            except (OSError, IncompleteDataError):
                count = 1  # listed, so that reading it says what is wrong
            entries += [Entry(KIND, step, rank, n, 0, 0, fact.name, fact.size, n, 0) for n in range(count)]
        return listing_of(tree, entries)

    def load(self, tree: Tree, file: str) -> Any:
        return _calls(tree.local(file))

    def record(self, content: Any, entry: Entry) -> Record:
        if entry.part >= len(content):
            raise Malformed("the file no longer contains the call")
        call: _Call = content[entry.part]
        fields = {"name": call.name, "module": call.module, "inputs": call.inputs, "outputs": call.outputs}
        return Record(entry.key, fields | _hashes(call.log), source=entry.file)


def _calls(path: Path) -> list[_Call]:
    """The operators, each with the innermost module around it."""
    with reading(path):
        calls: list[_Call] = []
        around: list[tuple[int, str]] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            module, call = _MODULE.match(line), _CALL.match(line)
            found = module or call
            if found is None:
                continue
            depth = len(found["depth"])
            while around and around[-1][0] >= depth:
                around.pop()
            if module is not None:
                around.append((depth, module["name"]))
            elif call is not None:
                owner = around[-1][1] if around else ""
                calls.append(_Call(call["name"], owner, call["inputs"], call["outputs"] or "", call["log"] or ""))
        if not calls:
            raise Malformed("no operators: not the text of debug_string()")
        return calls


def _hashes(log: str) -> dict[str, Any]:
    """What the log of a call says; a log that is not understood is kept as text."""
    if not log:
        return {}
    try:
        found = ast.literal_eval(_NOT_LITERAL.sub(r"'\1'", log)) if len(log) <= _MOST_LOG else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return {"log": log}
    return {str(name): _numbers(value) for name, value in found.items()}


def _numbers(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_numbers(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _numbers(item) for name, item in value.items()}
    return float(value) if value in ("nan", "inf") else value


LAYOUT = DebugModeLayout()
