"""The service's process: `python -m rldbg.training_service`. `rldbg serve up --backend train` starts it.

It listens on loopback only, says where in the announcement file, and ends in order on SIGTERM.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rldbg.core import Environment
from rldbg.inference import run_server

if TYPE_CHECKING:
    from starlette.applications import Starlette


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return run_server(lambda: _application(options), options.announce, port=options.port)


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


def _application(options: argparse.Namespace) -> "Starlette":
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
    return build_application(service)


if __name__ == "__main__":
    sys.exit(main())
