"""How places, source, breakpoints and the prompt's own words are written."""

import ast
import re
import shlex

from rldbg.agent import Message

HELP = """\
n s r c          next, step into, return, continue      unt [LINE]  until a later line     j LINE  jump
u d [N]  f N     up, down, frame                        w           where                  threads, thread N
tasks, task N    list asyncio tasks, look at task N
l [A,B]  ll      list source                            p pp EXPR   print                  whatis EXPR
a  locals        arguments, local variables             display [EXPR], undisplay EXPR     exc  the exception
b [WHERE[, IF]]  breakpoint (FILE:LINE, LINE, FUNCTION) tbreak      once                   cl [N]  condition N EXPR
!STATEMENT       run a statement                        interact    a Python prompt        q  leave; it stays stopped
ranks [WHO]      list processes, switch to WHO          all CMD     run CMD in all stopped processes"""


def break_text(each: Message) -> str:
    """One breakpoint on one line."""
    place = f"{each['file']}:{each['line']}" if each.get("file") else f"on {each['on_exception']} exception"
    extras = [f"if {each['if']}"] if each.get("if") else []
    extras += [f"log {shlex.quote(each['log'])}"] if each.get("log") else []
    extras += ["once"] if each.get("once") else []
    extras += [f"stops at line {each['stops_at'][0]}"] if each.get("stops_at") else []
    hits = sum((each.get("hits") or {}).values())
    unset = [who for who, ok in (each.get("set_in") or {}).items() if not ok]
    extras += [f"hit {hits} times"] if hits else []
    extras += [f"NOT SET in {', '.join(unset)}"] if unset else []
    failures = each.get("condition_fails") or {}
    extras += [f"THE CONDITION FAILS in {', '.join(failures)}: {next(iter(failures.values()))}"] if failures else []
    return " ".join([f"{each['id']}", place, f"ranks {each['ranks']}", *extras])


def unset_text(each: Message) -> str:
    """Why a breakpoint is set in no process yet, and what to do."""
    file = each["file"]
    return f"no file {file} is loaded or in the working directory there: set once it is; to remove it: cl {each['id']}"


def frame_path(frame: Message) -> str:
    return str((frame.get("source") or {}).get("path") or "")


def frame_place(frame: Message) -> str:
    return f"{frame_path(frame)}({frame['line']}){frame['name']}()"


def numbered(lines: list[str], first: int, current: int) -> str:
    return "\n".join(f"{n:>4} {'->' if n == current else '  '} {line}" for n, line in enumerate(lines, first))


def function_at(lines: list[str], name: str, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function of that name around a line."""
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return None
    plain = re.split(r"[ .]", name)[-1]
    found: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != plain:
            continue
        if node.lineno <= line <= (node.end_lineno or line):
            found = node
    return found
