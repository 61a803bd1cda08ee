"""`rldbg serve up`: starts a server's replicas, waits until they answer, prints where they are, leaves them running."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_line, print_note
from rldbg.cli.serve_backends import STARTERS, Up, home
from rldbg.core import UsageError

if TYPE_CHECKING:
    from rldbg.inference import Allocation, Server

_BACKENDS = ("transformers", "sglang", "vllm", "recording", "proxy", "train")


timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=float,
    default=120.0,
    show_default=True,
    help="Seconds to wait until all replicas answer.",
)


@verb("up", help="Start a server and return when all replicas answer.")
@click.argument("run", required=False)
@click.option("--backend", type=click.Choice(_BACKENDS), help="Backend.  [default: transformers]")
@click.option("--model", help="tiny, or a folder with a Hugging Face causal model.  [default: tiny]")
@click.option(
    "--replicas", type=click.IntRange(1, 1024), help="Number of replicas.  [default: 1, or d of the allocation mode]"
)
@click.option(
    "--allocation-mode", help="AReaL's allocation mode, for example sglang.d4p1t1; d is the number of replicas."
)
@click.option("--name", help="Name of the server, for ls, logs and down.  [default: the backend's]")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of the first replica; 0 chooses free ports."
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; any but loopback needs --token."
)
@click.option("--token", help="Bearer token that clients must send.")
@click.option("--upstream", help="proxy: engine to forward to, http://HOST:PORT.")
@click.option("--out", help="proxy: run folder to record into.  [default: a new one]")
@click.option(
    "--strict/--nearest", default=True, help="recording: refuse unknown prompts, or answer with the nearest one."
)
@click.option("--alias", multiple=True, help="Additional name of the model. Repeatable.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Type of the weights.  [default: float32; sglang and vllm choose]",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Device of the model.",
)
@click.option(
    "--threads", type=click.IntRange(0), default=0, help="CPU threads per replica; 0 divides the cores among them."
)
@click.option(
    "--max-running",
    type=click.IntRange(1, 4096),
    default=256,
    show_default=True,
    help="Maximum number of sequences in a batch.",
)
@click.option(
    "--logprobs",
    type=click.Choice(["temperature", "raw", "sampled"]),
    default="temperature",
    show_default=True,
    help="Log probs to report: after temperature, raw, or of the distribution sampled from.",
)
@click.option("--deterministic", is_flag=True, help="train: give equal requests bit-equal results.")
@timeout_option
@click.option(
    "--engine-option", "extra", multiple=True, help="sglang, vllm: additional argument of the engine. Repeatable."
)
@click.option(
    "--config", type=click.Path(path_type=Path), help="Read allocation mode and model from this AReaL configuration."
)
@click.option("--set", "overrides", multiple=True, help="With --config: override a key. Repeatable.")
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


# Options that mean something to some backends only.
_BACKENDS_OF = {
    "upstream": ("proxy",),
    "out": ("proxy",),
    "nearest": ("recording",),
    "alias": ("train",),
    "deterministic": ("train",),
    "extra": ("sglang", "vllm"),
}
_OPTION_OF = {"extra": "engine-option"}


def _refuse_options_of_others(up: Up, backend: str) -> None:
    """An option that would be ignored is an error."""
    for name, backends in _BACKENDS_OF.items():
        if getattr(up, name) and backend not in backends:
            option = f"--{_OPTION_OF.get(name, name)}"
            raise UsageError(
                f"{option} has no meaning for --backend {backend}", f"remove it, or use --backend {backends[0]}"
            )


def launch(up: Up) -> "Server":
    """Starts what is asked for and waits for it; whatever goes wrong, nothing is left behind."""
    from rldbg.inference import Registry, parse_allocation

    allocation = parse_allocation(up.allocation_mode) if up.allocation_mode else None
    backend = up.backend or _default_backend(up, allocation)
    _refuse_options_of_others(up, backend)
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
    print_note(f"{engine} is not installed: using the embedded backend, which speaks its protocol")
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
    print_note(f"  `rldbg serve logs {server.name}` shows its log, `rldbg serve down {server.name}` stops it")
