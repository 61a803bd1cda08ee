"""The process of one replica: `python -m rldbg.inference.server`. `rldbg serve up` starts it.

It writes its address to the announcement file when it is ready, and shuts down on SIGTERM.
"""

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rldbg.core import RldbgError, listen, read_flags, write_whole
from rldbg.inference.settings import ServerSettings

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from rldbg.inference.backend import Backend

_SHUTDOWN_S = 2
# A client stopped in a debugger is silent for a long time; its connection must stay open.
_IDLE_S = 3600
_BACKLOG = 4096
# A recording does not know the limits of the model that made it.
_NO_LIMIT = 1 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    settings = read_flags(ServerSettings, "python -m rldbg.inference.server", arguments)
    return run_server(lambda: _application(settings), settings.announce, port=settings.port, host=settings.host)


def run_server(build: "Callable[[], Starlette]", announcement: Path, *, port: int, host: str = "127.0.0.1") -> int:
    """Serve an application until SIGTERM, with its address in the announcement file; return the process's exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_serve(build, announcement, host, port))
    except RldbgError as error:
        logging.getLogger(__name__).critical("%s (try: %s)", error.message, error.hint)
        return int(error.exit_code)
    return 0


async def _serve(build: "Callable[[], Starlette]", announcement: Path, host: str, port: int) -> None:
    listener = listen(host, port)
    import uvicorn

    configuration = uvicorn.Config(
        build(),
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=_SHUTDOWN_S,
        timeout_keep_alive=_IDLE_S,
        backlog=_BACKLOG,
    )
    announce(announcement, listener)
    await uvicorn.Server(configuration).serve(sockets=[listener])


def _application(settings: ServerSettings) -> "Starlette":
    from rldbg.inference.application import Service, build_application, token_guard

    token = settings.token_file.read_text(encoding="utf-8").strip() if settings.token_file else None
    if settings.backend == "proxy":
        from rldbg.inference.proxy.application import build_proxy
        from rldbg.inference.proxy.generation_recorder import GenerationRecorder

        assert settings.recording is not None
        recorder = GenerationRecorder(settings.recording)
        return build_proxy(
            settings.upstream,
            recorder,
            guard=token_guard(token),
            at_end=lambda: leave_report(settings.announce, recorder.report()),
        )
    service = Service(
        logprob_mode=settings.logprobs,
        token=token,
        replicas=lambda: announced(settings.announce.parent),
        at_end=lambda ended: leave_report(settings.announce, ended.report()),
    )
    return build_application(_backend(settings), service)


def _backend(settings: ServerSettings) -> "Backend":
    if settings.backend == "recording":
        return _recorded(settings)
    from rldbg.inference.embedded.loading import load_backend, tune_cpu
    from rldbg.inference.embedded.scheduler import Limits

    tune_cpu(settings.threads)
    assert settings.model is not None
    limits = Limits(running=settings.max_running)
    return load_backend(settings.model, name=settings.name, dtype=settings.dtype, device=settings.device, limits=limits)


def _recorded(settings: ServerSettings) -> "Backend":
    from rldbg.inference.backend import ModelCard
    from rldbg.inference.embedded.text import UnreadText, load_text
    from rldbg.inference.recorded.backend import RecordedBackend
    from rldbg.inference.recorded.generations import RecordedGenerations

    text, tokenizer = load_text(settings.model) if settings.model else (UnreadText(), None)
    ids = (getattr(tokenizer, name, None) for name in ("eos_token_id", "pad_token_id"))
    card = ModelCard(
        name=settings.name,
        path=str(settings.model or settings.recording),
        max_length=_NO_LIMIT,
        vocabulary_size=_NO_LIMIT,
        end_ids=frozenset(number for number in ids if number is not None),
        dtype="float32",
        text=text,
        scores_prompts=False,
    )
    assert settings.recording is not None
    return RecordedBackend(RecordedGenerations.read(settings.recording), card, nearest=settings.nearest)


def leave_report(announcement: Path, report: "Mapping[str, Any] | None") -> None:
    """What `rldbg serve down` shows of a replica that has ended."""
    if report is not None:
        file = announcement.with_suffix(".report.json")
        file.write_text(json.dumps(report), encoding="utf-8")


def announce(file: Path, listener: socket.socket) -> None:
    """Says where this process listens; the file is never seen half written."""
    host, port = listener.getsockname()[:2]
    host = own_address() if host in ("0.0.0.0", "::") else host
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    write_whole(file, json.dumps({"pid": os.getpid(), "address": address}))


def own_address() -> str:
    """The address others reach this machine by; loopback when it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: connecting only makes the kernel choose the interface.
            probe.connect(("10.255.255.255", 1))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def announced(folder: Path) -> list[str]:
    """The addresses of all replicas that have announced themselves."""
    return [json.loads(file.read_text(encoding="utf-8"))["address"] for file in sorted(folder.glob("*.ready"))]


if __name__ == "__main__":
    sys.exit(main())
