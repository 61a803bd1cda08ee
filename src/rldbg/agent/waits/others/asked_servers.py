"""The server that a loop asks again and again, as far as its address is written where it asks."""

import ast
import re

from ..code.origins import own_nodes
from ..code.resolving import number_of, texts_of
from ..code.source import Sources
from ..reading.objects import Frame

_ADDRESS = re.compile(
    r"(?:[a-z][a-z+.]*://)?(?:[^/@\s]*@)?(?P<host>[\w.-]+|\[[0-9a-f:]+\]):(?P<port>\d{2,5})(?:[/?]\S*)?"
)


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
