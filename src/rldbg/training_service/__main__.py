"""The service's process: `python -m rldbg.training_service`. `rldbg serve up --backend train` starts it.

It listens on loopback only, says where in the announcement file, and ends in order on SIGTERM.
"""

import argparse
import json
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from rldbg.core import Environment, RldbgError, UsageError

_SHUTDOWN_S = 2
# A trainer says nothing while it warms up or debugs; its connection must still be there afterwards.
_IDLE_S = 3600


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        _serve(options)
    except RldbgError as error:
        logging.getLogger(__name__).critical("%s (try: %s)", error.message, error.hint)
        return int(error.exit_code)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m rldbg.training_service")
    parser.add_argument("--model", required=True, help="tiny, or the folder of a Hugging Face causal model")
    parser.add_argument("--folder", type=Path, required=True, help="where snapshots are kept")
    parser.add_argument("--announce", type=Path, required=True, help="the file that will say where it listens")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--alias", action="append", default=[], help="another name clients may call the model by")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0 leaves the choice to torch")
    parser.add_argument("--deterministic", action="store_true")
    return parser


def _serve(options: argparse.Namespace) -> None:
    listener = _listen(options.port)

    import uvicorn

    from rldbg.trainer import fix_threads
    from rldbg.training_service.application import build_application
    from rldbg.training_service.bases import BaseModels
    from rldbg.training_service.service import TrainingService
    from rldbg.training_service.step_recorder import recorders_from_environment

    recorder_for = recorders_from_environment(Environment())
    threads = options.threads or (1 if options.deterministic else os.cpu_count() or 1)
    fix_threads(threads, deterministic=options.deterministic)
    bases = BaseModels(options.model, options.folder, aliases=options.alias, dtype=options.dtype, device=options.device)
    service = TrainingService(bases, options.folder, recorder_for=recorder_for, deterministic=options.deterministic)
    host, port = listener.getsockname()[:2]
    _announce(options.announce, {"pid": os.getpid(), "address": f"{host}:{port}"})
    configuration = uvicorn.Config(
        build_application(service),
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=_SHUTDOWN_S,
        timeout_keep_alive=_IDLE_S,
    )
    uvicorn.Server(configuration).run(sockets=[listener])


def _listen(port: int) -> socket.socket:
    # The protocol is named, or asyncio would leave Nagle on: 40 ms for each small answer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise UsageError(
            f"cannot listen on 127.0.0.1:{port}: {error.strerror}", "choose another with --port"
        ) from error
    listener.listen(128)
    return listener


def _announce(file: Path, facts: dict[str, int | str]) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(facts), encoding="utf-8")
    temporary.replace(file)


if __name__ == "__main__":
    sys.exit(main())
