"""The broker of a run inside the job, and a run folder here that leads to it through the tunnel."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rldbg.core import Run, write_whole
from rldbg.launch.tunnel.remote import Host

_LIST = (
    'ls -t "$1"/.rldbg/runs/*/broker.json 2>/dev/null | head -5 | '
    'while read -r f; do printf "%s\\t" "$f"; tr -d "\\n" < "$f"; echo; done'
)


@dataclass(frozen=True, slots=True)
class RemoteBroker:
    """A broker as its own run folder describes it."""

    run: str
    facts: dict[str, Any]

    @property
    def host(self) -> str:
        return str(self.facts["host"])

    @property
    def port(self) -> int:
        return int(self.facts["port"])


def find_broker(login: Host, work_dir: str, run: str = "") -> RemoteBroker | None:
    """The newest broker among the runs of the job's folder, or the one of `run`."""
    folder = f"{run.rstrip('/')}/broker.json" if run else ""
    command = (
        ["sh", "-c", 'printf "%s\\t" "$1"; cat "$1"', "sh", folder] if run else ["sh", "-c", _LIST, "sh", work_dir]
    )
    if not run and not work_dir:
        return None
    text = login.try_run(command)
    for line in [text.replace("\n", "")] if run else text.splitlines():
        path, _, body = line.partition("\t")
        try:
            facts = json.loads(body)
            return RemoteBroker(str(Path(path).parent), {"host": facts["host"], "port": facts["port"]} | facts)
        except (ValueError, KeyError, TypeError):
            continue
    return None


def write_alias(broker: RemoteBroker, local_port: int, *, name: str, folder: Path | None = None) -> Path:
    """A run folder whose broker.json says 127.0.0.1 and the forwarded port; readable by its owner only."""
    run = Run.create(name=name, path=folder)
    facts = broker.facts | {"host": "127.0.0.1", "port": local_port, "node": ""}
    write_whole(run.path / "broker.json", json.dumps(facts), mode=0o600)
    return run.path
