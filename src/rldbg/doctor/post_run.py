"""After a run has failed: output, Ray's logs, crash files, stacks, collective dumps and the machine as one story."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from rldbg.core import Run
from rldbg.doctor.diagnosis import Diagnosis
from rldbg.doctor.jobs import job_facts
from rldbg.doctor.library import Library
from rldbg.doctor.patterns import SearchIndex
from rldbg.doctor.pipeline import diagnose
from rldbg.doctor.probes import probe_machine

REPORT = "diagnosis.json"
_TEMPLATES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Where torch writes the flight recorder's dumps: a path to which the rank is added."""
_DEFAULT_TEMPLATES = ("/tmp/nccl_trace_rank_", "~/.cache/torch/comm_lib_trace_rank_")


def explain_failure(folder: Path, environment: Mapping[str, str]) -> Diagnosis:
    """The diagnosis of a run that has ended; it is also written to RUN/reports/."""
    run = Run(folder)
    _keep_dumps(run, environment)
    facts = job_facts([folder])
    diagnosis = diagnose(
        [folder],
        index=SearchIndex(Library.load()),
        probes=probe_machine(),
        environment=facts.environment,
        exit_code=facts.exit_code,
    )
    report = run.folder("reports") / REPORT
    report.write_text(json.dumps(diagnosis.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return diagnosis


def _keep_dumps(run: Run, environment: Mapping[str, str]) -> None:
    """Copies the dumps that torch wrote during the run into it: the next run would overwrite them."""
    began = float(run.read().get("started_at") or 0.0)
    for rank, file in _fresh_dumps(environment, began):
        kept = run.folder("logs") / "flight_recorder"
        kept.mkdir(exist_ok=True)
        shutil.copy2(file, kept / f"nccl_trace_rank_{rank}")


def _fresh_dumps(environment: Mapping[str, str], began: float) -> Iterator[tuple[int, Path]]:
    asked = [environment[name] for name in _TEMPLATES if environment.get(name)]
    for template in asked or _DEFAULT_TEMPLATES:
        start = Path(os.path.expanduser(template))  # noqa: PTH111 - a trailing separator matters here
        if not start.parent.is_dir():
            continue
        for file in sorted(start.parent.iterdir()):
            rank = re.fullmatch(re.escape(start.name) + r"(\d+)", file.name)
            if rank and file.is_file() and file.stat().st_mtime >= began and os.access(file, os.R_OK):
                yield int(rank[1]), file
