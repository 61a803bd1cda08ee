"""`rldbg serve`: servers that outlive the shell. `up` starts one, the other commands manage it."""

import click

from rldbg.cli.application import verb
from rldbg.cli.groups import CommandGroup
from rldbg.cli.output import print_json, print_line, print_note, print_result, show
from rldbg.cli.serve_backends import home
from rldbg.cli.serve_up import timeout_option, up
from rldbg.core import UsageError

_NOTICED_S = 3.0


@click.group("serve", cls=CommandGroup)
def command() -> None:
    """Start and manage servers that outlive the shell: inference, recordings, proxies, training services.

    \b
    rldbg serve up --model tiny --replicas 2   start; print the addresses
    rldbg serve ls                             what runs
    rldbg serve down --all                     stop everything
    """


@verb("ls", help="List servers and their state. Exit code 1 if one crashed or does not answer.")
def ls(as_json: bool) -> int:
    from rldbg.inference import Registry

    registry = Registry(home())
    servers = registry.servers()
    states = registry.probe(servers)
    unwell = any(state in ("crashed", "not answering") for row in states for state in row)
    if as_json:
        print_json({"servers": [server.to_dict(row) for server, row in zip(servers, states, strict=True)]})
        return 1 if unwell else 0
    from rldbg.reports.servers import crash_notes, to_terminal

    if servers:
        print_result(to_terminal(servers, states))
    else:
        print_note("no servers found; start one with `rldbg serve up`")
    for line in crash_notes(servers, states):
        print_note(line)
    return 1 if unwell else 0


@verb("logs", help="Show the last lines of a server's log.")
@click.argument("name")
@click.option("--lines", "-n", type=click.IntRange(1), default=50, show_default=True, help="Number of lines.")
def logs(name: str, lines: int, as_json: bool) -> None:
    from rldbg.inference import Registry

    server = Registry(home()).find(name)
    if as_json:
        print_json({"name": name, "logs": [process.last_lines(lines) for process in server.processes]})
        return
    for number, process in enumerate(server.processes):
        if len(server.processes) > 1:
            print_note(f"replica {number} ({process.log}):")
        for line in process.last_lines(lines):
            print_line(line)


@verb("down", help="Stop servers and all their processes. Exit code 1 if one reports a problem.")
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Stop every server.")
def down(names: tuple[str, ...], everything: bool, as_json: bool) -> int:
    from rldbg.inference import Registry
    from rldbg.reports.servers import stopped_lines

    if bool(names) == everything:
        raise UsageError("no servers given", "rldbg serve down NAME ..., or rldbg serve down --all")
    registry = Registry(home())
    servers = registry.servers() if everything else [registry.find(name) for name in names]
    reports = {server.name: registry.stop(server, noticed_s=_NOTICED_S) for server in servers}
    findings = [finding for parts in reports.values() for part in parts for finding in part.get("findings", [])]
    serious = any(finding["severity"] != "info" for finding in findings)
    show({"down": list(reports), "reports": reports}, as_json, lambda: stopped_lines(reports))
    return 1 if serious else 0


@verb("restart", help="Restart a server at the same addresses.")
@click.argument("name")
@timeout_option
def restart(name: str, timeout_s: float, as_json: bool) -> None:
    from rldbg.inference import Registry

    registry = Registry(home())
    server = registry.restart(registry.find(name))
    registry.wait(server, timeout_s=timeout_s)
    said = f"{name} is running again at {','.join(server.addresses)}"
    show({"server": server.to_dict()}, as_json, lambda: [said])


for subcommand in (up, ls, logs, down, restart):
    command.add_command(subcommand)
