"""`rldbg serve`: servers that stay when the shell is gone. `up` starts one, `ls`, `logs` and `down` look after it."""

import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_line, print_note, print_result
from rldbg.core import Environment, PrerequisiteError, UsageError

_NEEDED = ("starlette", "uvicorn", "torch", "transformers", "zstandard")


@click.group("serve")
def command() -> None:
    """Servers that outlive the shell: training services to debug against."""


@verb("up", help="Start a server; returns when it answers and leaves it running.")
@click.option("--backend", type=click.Choice(["train"]), required=True, help="What to serve.")
@click.option("--model", default="tiny", show_default=True, help="tiny, or the folder of a Hugging Face causal model.")
@click.option("--name", help="Name of the server, for ls, logs and down.  [default: the backend's]")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 takes a free one.")
@click.option("--alias", multiple=True, help="Another name clients may call the model by; may be repeated.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(0), default=0, help="Threads to compute with; 0 is one a core.")
@click.option("--deterministic", is_flag=True, help="The same requests give the same bits: one thread, fixed seeds.")
@click.option(
    "--timeout", "timeout_s", type=float, default=120.0, show_default=True, help="Seconds until it must answer."
)
def up(
    backend: str,
    model: str,
    name: str | None,
    port: int,
    alias: tuple[str, ...],
    dtype: str,
    device: str,
    threads: int,
    deterministic: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    from rldbg.inference import Registry

    _check_prerequisites(model)
    registry = Registry(_home())
    options = ["--port", str(port), "--dtype", dtype, "--device", device, "--threads", str(threads)]
    options += [item for other in alias for item in ("--alias", other)]
    options += ["--deterministic"] if deterministic else []

    def training_service(_number: int, ready: Path) -> Sequence[str]:
        own = ["--model", model, "--folder", str(ready.parent), "--announce", str(ready)]
        return [sys.executable, "-m", "rldbg.training_service", *own, *options]

    server = registry.start(name or registry.free_name(backend), backend=backend, model=model, command=training_service)
    try:
        registry.wait(server, health="/api/v1/healthz", timeout_s=timeout_s)
    except BaseException:
        registry.stop(server)
        raise
    if as_json:
        print_json({"server": server.to_dict()})
        return
    address = server.addresses[0]
    print_line(f"training service {server.name} launched at: http://{address}")
    print_note(f"  TINKER_BASE_URL=http://{address} TINKER_API_KEY=tml-local")
    print_note(f"  WEAVER_BASE_URL=http://{address} WEAVER_API_KEY=sk-local")
    print_note(f"  `rldbg serve logs {server.name}` shows its log, `rldbg serve down {server.name}` ends it")


@verb("ls", help="The servers there are, and whether they are well. Exit code 1 when one has crashed.")
def ls(as_json: bool) -> int:
    from rldbg.inference import Registry

    servers = Registry(_home()).servers()
    crashed = [server for server in servers if server.state == "crashed"]
    if as_json:
        print_json({"servers": [server.to_dict() for server in servers]})
        return 1 if crashed else 0
    from rich.table import Table

    table = Table("name", "backend", "model", "state", "address", "pid", "up")
    for server in servers:
        age = f"{(time.time() - server.started_at) / 60:.0f} min"
        pids = ", ".join(str(process.pid) for process in server.processes)
        table.add_row(server.name, server.backend, server.model, server.state, ", ".join(server.addresses), pids, age)
    print_result(table)
    for server in crashed:
        for process in (process for process in server.processes if process.state == "crashed"):
            print_note(f"{server.name} (pid {process.pid}) crashed; its last lines, of {process.log}:")
            print_note("\n".join(f"  {line}" for line in process.last_lines(5)) or "  none")
    return 1 if crashed else 0


@verb("logs", help="The last lines a server printed.")
@click.argument("name")
@click.option("--lines", "-n", type=click.IntRange(1), default=50, show_default=True)
def logs(name: str, lines: int, as_json: bool) -> None:
    from rldbg.inference import Registry

    server = Registry(_home()).find(name)
    if as_json:
        print_json({"name": name, "logs": [process.last_lines(lines) for process in server.processes]})
        return
    for process in server.processes:
        for line in process.last_lines(lines):
            print_line(line)


@verb("down", help="End servers and all their processes.")
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every server there is.")
def down(names: tuple[str, ...], everything: bool, as_json: bool) -> None:
    from rldbg.inference import Registry

    if bool(names) == everything:
        raise UsageError("say which servers to end", "rldbg serve down NAME ..., or rldbg serve down --all")
    registry = Registry(_home())
    servers = registry.servers() if everything else [registry.find(name) for name in names]
    for server in servers:
        registry.stop(server)
        if not as_json:
            print_line(f"{server.name} is down")
    if as_json:
        print_json({"down": [server.name for server in servers]})


def _home() -> Path:
    return Path(Environment().text("RLDBG_HOME"))


def _check_prerequisites(model: str) -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise PrerequisiteError(f"the training service needs {missing[0]}", "pip install 'rldbg[serve,train]'")
    if model != "tiny" and not (Path(model) / "config.json").is_file():
        raise UsageError(f"no model at {model!r}: there is no config.json", "--model tiny, or a Hugging Face folder")


for subcommand in (up, ls, logs, down):
    command.add_command(subcommand)
