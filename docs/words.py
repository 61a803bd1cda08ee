"""Every string that a user can see, with its place: `make words`. For reviewing all of them in one sitting.

Help texts, errors with their hints, findings, notes and lines of reports, by file and line; a placeholder stands for
what is filled in. Knowledge and rules in YAML come last.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

SOURCE = Path(__file__).parents[1] / "src" / "rldbg"
# Calls whose texts are shown: errors, findings, what prints, options and arguments of verbs.
_SHOWN = {"Finding", "Check", "Explanation", "Alarm", "Rule", "Verb", "Stop", "Answer", "Text", "Table", "table"}
_SHOWN |= {"print_line", "print_note", "explained_as", "problem", "echo", "confirm", "say", "UsageError", "Field"}
_HELP = {"help", "short_help", "metavar", "epilog", "summary", "title", "cause", "fix", "story", "description"}
_YAML = {"title", "cause", "fix", "text", "meaning", "what", "message", "say", "look"}


def words() -> Iterator[tuple[str, int, str]]:
    """File, line and text, in the order of the source."""
    for file in sorted(SOURCE.rglob("*.py")):
        name = str(file.relative_to(SOURCE))
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found = {(node.lineno, node.col_offset): text for node, text in _texts(tree, is_report="reports" in file.parts)}
        yield from ((name, line, text) for (line, _), text in sorted(found.items()) if _is_language(text))
    for file in sorted(SOURCE.rglob("*.yaml")):
        document = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        yield from ((str(file.relative_to(SOURCE)), 0, text) for text in _yaml_texts(document, ""))


def _texts(tree: ast.Module, *, is_report: bool) -> Iterator[tuple[ast.expr, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _SHOWN or name.endswith("Error"):
                yield from _strings(*node.args, *(keyword.value for keyword in node.keywords))
            else:
                yield from _strings(*(keyword.value for keyword in node.keywords if keyword.arg in _HELP))
        elif isinstance(node, ast.FunctionDef) and any(
            isinstance(each, ast.Call) and getattr(each.func, "id", "") == "verb" for each in node.decorator_list
        ):
            body = node.body[0]
            if isinstance(body, ast.Expr):
                yield from _strings(body.value)
        elif is_report and isinstance(node, ast.Yield) and node.value is not None:
            yield from _strings(node.value)


def _strings(*nodes: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Texts in a value: plain, joined, formatted, or inside of tuples, lists and conditions."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node, "".join(map(str, parts))
        elif isinstance(node, ast.BinOp):
            yield from _strings(node.left, node.right)
        elif isinstance(node, ast.IfExp):
            yield from _strings(node.body, node.orelse)
        elif isinstance(node, ast.Tuple | ast.List):
            yield from _strings(*node.elts)


def _is_language(text: str) -> bool:
    """Two words at least: identifiers, file names and formats are no language."""
    return len([word for word in text.split() if any(char.isalpha() for char in word)]) >= 2


def _yaml_texts(value: object, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _yaml_texts(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _yaml_texts(item, key)
    elif isinstance(value, str) and key in _YAML and _is_language(value):
        yield value


def main() -> int:
    for file, line, text in words():
        sys.stdout.write(
            f"{file}:{line}: {' '.join(text.split())}\n" if line else f"{file}: {' '.join(text.split())}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
