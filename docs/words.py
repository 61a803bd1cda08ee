"""Every string that a user can see, with its place: `make words`. For reviewing all of them in one sitting.

Nothing is chosen by where a text is used: each string of the sources that is language is listed, once per file, with
`{}` for what is filled in. Docstrings are left out, but for those that `--help` and the tools of agents show. Texts of
the pages follow, then knowledge and rules in YAML.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

SOURCE = Path(__file__).parents[1] / "src" / "rldbg"
_YAML = {"title", "cause", "fix", "text", "meaning", "what", "message", "say", "look", "story"}
# A string of JavaScript, or what stands between two tags.
_PAGE_TEXT = re.compile(r""""([^"\n]*)"|'([^'\n]*)'|`([^`]*)`|>([^<>{}\n]+)<""")
_TAG = re.compile(r"</\w+>|<\w+( [^>]*)?>(?=.*</)|<\w+ [^>]*=[^>]*>")
_CODE = re.compile(r"\(\?[:P=!]|\\[bdsSw]|=>|^#!|^import |^use strict$|[{;]--?\w+:")
_WORD = re.compile(r"[\"'(\[*`]*[A-Za-z][a-z'’-]*[\"'`)\]*]*[.,:;!?…]*")


def words() -> Iterator[tuple[str, int, str]]:
    """File, line and text, in the order of the source."""
    for file in sorted(SOURCE.rglob("*.py")):
        yield from _each_once(file, _python_texts(file))
    for file in sorted((SOURCE / "ui" / "static").iterdir()):
        if file.suffix in (".js", ".html"):
            yield from _each_once(file, _page_texts(file.read_text(encoding="utf-8")))
    for file in sorted(SOURCE.rglob("*.yaml")):
        document = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        yield from _each_once(file, ((0, text) for text in _yaml_texts(document, "")))


def _each_once(file: Path, texts: Iterator[tuple[int, str]]) -> Iterator[tuple[str, int, str]]:
    seen = set()
    for line, text in texts:
        if (text := " ".join(_TAG.sub(" ", text).split())) not in seen and is_language(text):
            seen.add(text)
            yield str(file.relative_to(SOURCE)), line, text


def is_language(text: str) -> bool:
    """Two plain words at least, and they are the larger part: identifiers, patterns, markup and code are not."""
    parts = text.split()
    plain = [part for part in parts if _WORD.fullmatch(part)]
    return len(plain) >= 2 and len(plain) * 3 >= len(parts) and not _CODE.search(text)


def _python_texts(file: Path) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    left_out: set[int] = set()
    shown: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr):
            left_out.add(id(node.value))
        elif isinstance(node, ast.arg | ast.AnnAssign):
            left_out.add(id(node.annotation))
        elif isinstance(node, ast.JoinedStr):
            left_out.update(map(id, node.values))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            left_out.add(id(node.returns))
            if _is_described_by_docstring(file, node) and isinstance(node.body[0], ast.Expr):
                shown.add(id(node.body[0].value))
    texts = [(node, _text(node)) for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)]
    yield from sorted((node.lineno, text) for node, text in texts if id(node) not in left_out - shown)


def _is_described_by_docstring(file: Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A verb, a tool of `rldbg mcp`, or a bug of the zoo."""
    is_tool = file.name.endswith("_tools.py") and not function.name.startswith("_")
    return bool(function.decorator_list) if file.parent.name in ("cli", "zoo") else is_tool


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node.value, str) else ""


def _page_texts(source: str) -> Iterator[tuple[int, str]]:
    without_comments = re.sub(r"(?m)^\s*(//|\*|/\*).*$", "", source)
    for found in _PAGE_TEXT.finditer(without_comments):
        text = next(group for group in found.groups() if group is not None)
        yield without_comments.count("\n", 0, found.start()) + 1, re.sub(r"\$\{[^}]*\}", "{}", text)


def _yaml_texts(value: object, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _yaml_texts(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _yaml_texts(item, key)
    elif isinstance(value, str) and key in _YAML:
        yield value


def main() -> int:
    for file, line, text in words():
        sys.stdout.write(f"{file}:{line}: {text}\n" if line else f"{file}: {text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
