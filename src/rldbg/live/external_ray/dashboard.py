"""A Ray cluster that rldbg did not start, as its dashboard shows it over HTTP, with Ray's own token."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from rldbg.core import (
    TOKEN_HINT,
    Environment,
    PrerequisiteError,
    UnreachableError,
    bearer_header,
    dashboard_auth_mode,
    http_request,
    ray_token,
)

_OLDEST = (2, 9, 1)
_TIMEOUT_S = 10.0
_GCS = re.compile(r"--gcs[-_]address=(\S+)")


@dataclass(frozen=True, slots=True)
class PausedWorker:
    """A worker or driver that waits for a debugger, and what it was running."""

    worker_id: str
    pid: int
    ip: str
    port: int
    kind: str
    node_id: str
    task: str = ""
    actor_name: str = ""
    actor_class: str = ""


class Dashboard:
    """Reads the state API. Every failure is an error that says what to try."""

    def __init__(self, url: str, environment: Environment | None = None) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self._environment = environment or Environment()
        self._headers: dict[str, str] | None = None

    def version(self) -> str:
        """Ray's version; an error when it is too old for its debugger to be usable."""
        version = str(self._get("/api/version").get("ray_version", ""))
        numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
        if numbers and numbers < _OLDEST:
            raise PrerequisiteError(
                f"Ray {version} at {self.url} is too old: its debugger needs 2.9.1", "pip install -U 'ray[default]'"
            )
        return version

    def paused(self) -> list[PausedWorker]:
        """Workers and drivers that are paused and have no debugger attached."""
        rows = self.rows("workers", ("num_paused_threads", "!=", "0"), ("is_alive", "=", "True"))
        waiting = [row for row in rows if (row.get("num_paused_threads") or 0) > 0 and row.get("debugger_port")]
        if not waiting:
            return []
        tasks = {row.get("worker_id"): row for row in self.rows("tasks", ("state", "=", "RUNNING"))}
        actors = {row.get("actor_id"): row for row in self.rows("actors", ("state", "=", "ALIVE"))}
        return [self._worker(row, tasks.get(row["worker_id"]) or {}, actors) for row in waiting]

    def _worker(self, row: dict[str, Any], task: dict[str, Any], actors: dict[Any, dict[str, Any]]) -> PausedWorker:
        actor = actors.get(task.get("actor_id")) or next(
            (each for each in actors.values() if each.get("pid") == row.get("pid")), {}
        )
        return PausedWorker(
            worker_id=str(row["worker_id"]),
            pid=int(row.get("pid") or 0),
            ip=str(row.get("ip") or "127.0.0.1"),
            port=int(row["debugger_port"]),
            kind="driver" if row.get("worker_type") == "DRIVER" else "actor" if actor else "task",
            node_id=str(row.get("node_id") or ""),
            task=str(task.get("name") or ""),
            actor_name=str(actor.get("name") or ""),
            actor_class=str(actor.get("class_name") or ""),
        )

    def process_ids(self) -> dict[str, int]:
        """The process behind each worker id."""
        rows = self.rows("workers", ("is_alive", "=", "True"))
        return {str(row.get("worker_id")): int(row.get("pid") or 0) for row in rows}

    def gcs_address(self) -> str:
        """Where the cluster's key-value store is, from the command line of a raylet; empty when it is not shown."""
        summary = (self._get("/nodes?view=summary").get("data") or {}).get("summary") or []
        for node in summary:
            if match := _GCS.search(" ".join(map(str, node.get("cmdline") or []))):
                return match[1]
        return ""

    def token(self) -> str:
        return ray_token(self._environment)

    def rows(self, kind: str, *filters: tuple[str, str, str]) -> list[dict[str, Any]]:
        """What the state API lists: workers, tasks, actors, nodes."""
        query = [("limit", "10000"), ("timeout", "10"), ("detail", "1"), ("exclude_driver", "false")]
        for key, predicate, value in filters:
            query += [("filter_keys", key), ("filter_predicates", predicate), ("filter_values", value)]
        answer = self._get(f"/api/v0/{kind}?{urlencode(query)}")
        rows: list[dict[str, Any]] = ((answer.get("data") or {}).get("result") or {}).get("result") or []
        return rows

    def _get(self, path: str) -> dict[str, Any]:
        if self._headers is None:
            self._headers = self._authorisation()
        try:
            answer = http_request("GET", self.url + path, timeout_s=_TIMEOUT_S, headers=self._headers)
            body = answer.json() if answer.is_success else None
        except (OSError, ValueError) as error:
            raise UnreachableError(
                f"no Ray dashboard at {self.url}: {error}",
                "check the address in the job's log (`Ray cluster started at: ...`); only ray[default] has a dashboard",
            ) from error
        if not answer.is_success:
            raise self._refused(answer.status_code)
        return body if isinstance(body, dict) else {}

    def _authorisation(self) -> dict[str, str]:
        """The token is sent only to a cluster that asks for one."""
        token = self.token()
        asks = dashboard_auth_mode(self.url, _TIMEOUT_S) == "token"
        return bearer_header(token) if asks else {}

    def _refused(self, status: int) -> Exception:
        if status in (401, 403):
            have = "the token found was refused" if self._headers else "no token was found"
            return PrerequisiteError(
                f"the Ray cluster at {self.url} asks for a token ({status}): {have}",
                TOKEN_HINT,
            )
        return UnreachableError(
            f"{self.url} answered {status} to a state request", "is this the dashboard of Ray 2.9.1 or later?"
        )
