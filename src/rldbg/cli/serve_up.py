"""`rldbg serve up`: starts a server's replicas, waits until they answer, prints where they are, leaves them running."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_line, print_note
from rldbg.cli.serve_backends import STARTERS, Up, home

if TYPE_CHECKING:
    from rldbg.inference import Allocation, Server

_BACKENDS = ("transformers", "sglang", "vllm", "recording", "proxy", "train")


@verb("up", help="Start a server; returns when all replicas answer and leaves them running.")
@click.argument("run", required=False)
@click.option("--backend", type=click.Choice(_BACKENDS), help="What generates.  [default: transformers]")
@click.option("--model", help="tiny, or the folder of a Hugging Face causal model.  [default: tiny]")
@click.option("--replicas", type=click.IntRange(1, 1024), help="Processes to start.  [default: 1, or the mode's d]")
@click.option("--allocation-mode", help="AReaL's: sglang.d4p1t1 or sglang:d4t1. d is the number of replicas.")
@click.option("--name", help="Name of the server, for ls, logs and down.  [default: the backend's]")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the first replica; 0 takes free ones.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Any other than loopback needs --token.")
@click.option("--token", help="Clients must show it as a bearer token.")
@click.option("--upstream", help="proxy: the engine to stand before, http://HOST:PORT.")
@click.option("--out", help="proxy: the run folder to record into.  [default: a new one]")
@click.option("--strict/--nearest", default=True, help="recording: an unknown prompt is an error or takes the nearest.")
@click.option("--alias", multiple=True, help="Another name clients may call the model by; may be repeated.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Of the weights.  [default: float32; sglang and vllm choose]",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(0), default=0, help="Of each replica; 0 shares the cores among them.")
@click.option("--max-running", type=click.IntRange(1, 4096), default=256, show_default=True, help="Sequences at once.")
@click.option(
    "--logprobs",
    type=click.Choice(["temperature", "raw", "sampled"]),
    default="temperature",
    show_default=True,
    help="Which log probs are answered: after the temperature, the model's own, or after top-k and top-p too.",
)
@click.option("--deterministic", is_flag=True, help="train: the same requests give the same bits.")
@click.option(
    "--timeout", "timeout_s", type=float, default=120.0, show_default=True, help="Seconds until all must answer."
)
@click.option("--engine-option", "extra", multiple=True, help="sglang, vllm: one more argument; may be repeated.")
@click.option("--config", type=click.Path(path_type=Path), help="An AReaL configuration to take mode and model from.")
@click.option("--set", "overrides", multiple=True, help="With --config: key=value over the file's; may be repeated.")
def up(
    as_json: bool,
    host: str,
    port: int,
    token: str | None,
    strict: bool,
    config: Path | None,
    overrides: tuple[str, ...],
    **options: Any,
) -> None:
    from rldbg.inference import Listening, read_areal_configuration

    if config is not None:
        found = read_areal_configuration(config, overrides)
        options["allocation_mode"] = options["allocation_mode"] or found.allocation_mode
        options["model"] = options["model"] or found.model
        options["settings"] = found.settings
    wanted = Up(listening=Listening(host, port, token), nearest=not strict, **options)
    wanted.listening.check()
    server = launch(wanted)
    if as_json:
        print_json({"server": server.to_dict()})
        return
    _say(server)


def launch(up: Up) -> "Server":
    """Starts what is asked for and waits for it; whatever goes wrong, nothing is left behind."""
    from rldbg.inference import Registry, parse_allocation

    allocation = parse_allocation(up.allocation_mode) if up.allocation_mode else None
    backend = up.backend or _default_backend(up, allocation)
    registry = Registry(home())
    server = STARTERS[backend](up, registry, allocation)
    try:
        registry.wait(server, timeout_s=up.timeout_s)
    except BaseException:
        registry.stop(server)
        raise
    return server


def _default_backend(up: Up, allocation: "Allocation | None") -> str:
    """The engine the mode names where it is installed; else the embedded one, which speaks its protocol."""
    import importlib.util

    engine = allocation.engine if allocation else None
    if up.upstream:
        return "proxy"
    if up.run:
        return "recording"
    if engine is None or up.model in (None, "tiny"):
        return "transformers"
    if importlib.util.find_spec(engine) is not None:
        return engine
    print_note(f"{engine} is not installed here: the embedded backend answers its protocol")
    return "transformers"


def _say(server: "Server") -> None:
    if server.backend == "train":
        address = server.addresses[0]
        print_line(f"training service {server.name} launched at: http://{address}")
        print_note(f"  TINKER_BASE_URL=http://{address} TINKER_API_KEY=tml-local")
        print_note(f"  WEAVER_BASE_URL=http://{address} WEAVER_API_KEY=sk-local")
    else:
        print_line(f"LLM inference server launched at: AREAL_LLM_SERVER_ADDRS={','.join(server.addresses)}")
        print_note(f"  OPENAI_BASE_URL=http://{server.addresses[0]}/v1 OPENAI_API_KEY=none")
    print_note(f"  `rldbg serve logs {server.name}` shows its log, `rldbg serve down {server.name}` ends it")
