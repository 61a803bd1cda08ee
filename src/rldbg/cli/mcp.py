"""`rldbg mcp`: the verbs as tools for coding agents."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_line, print_note
from rldbg.core import ExitCode, UsageError


@verb("mcp", short_help="Serve the verbs as tools for coding agents (Model Context Protocol).")
@click.argument("roots", nargs=-1, metavar="[RUN|DIR|URL]...")
@click.option("--http", "with_http", is_flag=True, help="Listen on 127.0.0.1 instead of standard input and output.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="With --http: the port.  [default: a free one]")
@click.option("--allow-control", is_flag=True, help="Also offer tools that stop, resume and change processes.")
def command(roots: tuple[str, ...], with_http: bool, port: int, allow_control: bool, as_json: bool) -> int:
    """Serve the verbs as tools for coding agents, by the Model Context Protocol.

    Each argument is a run folder, a recording, a folder of them, or a URL (default: the runs of this folder). Only
    these are read, and files below this folder for `doctor`. Tools are read-only unless --allow-control is given.

    \b
    claude mcp add rldbg -- rldbg mcp runs/     register it in an agent
    rldbg mcp runs/ --http                      print an address and a token
    """
    from rldbg.mcp import Workspace, serve_http, serve_stdio

    for root in roots:
        if "://" not in root and not Path(root).expanduser().exists():
            raise UsageError(f"{root}: no such file or folder", "give a run folder, a recording, or a folder of them")
    if port and not with_http:
        raise UsageError("--port is for --http", "add --http")
    workspace = Workspace(roots, allow_control=allow_control)
    if not with_http:
        serve_stdio(workspace)
        return ExitCode.OK

    def at_start(url: str, token: str) -> None:
        if as_json:
            print_json({"url": url, "token": token})
        else:
            print_line(f"{url}\nAuthorization: Bearer {token}")
        print_note("stop with Ctrl-C")

    serve_http(workspace, port=port, at_start=at_start)
    return ExitCode.OK
