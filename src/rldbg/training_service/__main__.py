"""The service's process: `python -m rldbg.training_service`. `rldbg serve up --backend train` starts it.

It listens on loopback only, writes its address to the announcement file, and shuts down on SIGTERM.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rldbg.core import Environment, read_flags
from rldbg.inference import run_server
from rldbg.training_service.settings import ServiceSettings

if TYPE_CHECKING:
    from starlette.applications import Starlette


def main(arguments: Sequence[str] | None = None) -> int:
    settings = read_flags(ServiceSettings, "python -m rldbg.training_service", arguments)
    return run_server(lambda: _application(settings), settings.announce, port=settings.port)


def _application(settings: ServiceSettings) -> "Starlette":
    from rldbg.trainer import fix_threads
    from rldbg.training_service.application import build_application
    from rldbg.training_service.bases import BaseModels
    from rldbg.training_service.service import TrainingService
    from rldbg.training_service.step_recorder import recorders_from_environment

    recorder_for = recorders_from_environment(Environment())
    threads = settings.threads or (1 if settings.deterministic else os.cpu_count() or 1)
    fix_threads(threads, deterministic=settings.deterministic)
    bases = BaseModels(
        settings.model, settings.folder, aliases=settings.alias, dtype=settings.dtype, device=settings.device
    )
    service = TrainingService(bases, settings.folder, recorder_for=recorder_for, deterministic=settings.deterministic)
    return build_application(service)


if __name__ == "__main__":
    sys.exit(main())
