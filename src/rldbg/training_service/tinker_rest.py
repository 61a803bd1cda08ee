"""Tinker's REST routes: what sessions, training runs and checkpoints there are. A training run is a model id."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rldbg.training_service.errors import ServiceRequestError
from rldbg.training_service.routing import Handlers, ServiceTable
from rldbg.training_service.service import ModelEntry
from rldbg.training_service.snapshots import ModelSnapshot
from rldbg.training_service.tinker_training import lora_facts

_MOST = 1000
_TYPES = {"weights": "training", "sampler": "sampler"}


class TinkerRest(Handlers):
    def table(self) -> ServiceTable:
        return (
            ("GET", "/training_runs", self.training_runs),
            ("GET", "/training_runs/{run}", self.training_run),
            ("GET", "/training_runs/{run}/checkpoints", self.checkpoints_of_run),
            ("DELETE", "/training_runs/{run}/checkpoints/{checkpoint:path}", self.delete_checkpoint),
            ("GET", "/checkpoints", self.checkpoints),
            ("GET", "/sessions", self.sessions),
        )

    async def training_runs(self, request: Request) -> Response:
        runs = [self._run(entry) for entry in self._service.models]
        return JSONResponse(_page(request, "training_runs", runs))

    async def training_run(self, request: Request) -> Response:
        return JSONResponse(self._run(self._service.model(request.path_params["run"])))

    async def checkpoints_of_run(self, request: Request) -> Response:
        snapshots = self._snapshots(request.path_params["run"])
        return JSONResponse({"checkpoints": [_checkpoint(item) for item in snapshots], "cursor": None})

    async def checkpoints(self, request: Request) -> Response:
        found = [item for entry in self._service.models for item in self._snapshots(entry.model_id)]
        newest = sorted(found, key=lambda item: -item.created_at)
        return JSONResponse(_page(request, "checkpoints", [_checkpoint(item) for item in newest]))

    async def delete_checkpoint(self, request: Request) -> Response:
        run, name = request.path_params["run"], request.path_params["checkpoint"]
        if name.endswith(("/publish", "/ttl")):
            raise ServiceRequestError("checkpoints are not published here; they are files in the service's folder")
        self._service.snapshots.remove(self._service.snapshots.find(f"tinker://{run}/{name}"))
        return Response(status_code=204)

    async def sessions(self, request: Request) -> Response:
        start, limit = _window(request)
        return JSONResponse({"sessions": self._service.sessions()[start : start + limit]})

    def _snapshots(self, model_id: str) -> list[ModelSnapshot]:
        self._service.model(model_id)
        return [item for item in self._service.snapshots.of_model(model_id) if not item.ephemeral]

    def _run(self, entry: ModelEntry) -> dict[str, Any]:
        snapshots = self._snapshots(entry.model_id)
        last: dict[str, Any] = {item.purpose: _checkpoint(item) for item in snapshots}
        return {
            "training_run_id": entry.model_id,
            "base_model": entry.base_model,
            "model_owner": "local",
            **lora_facts(entry.lora),
            "corrupted": False,
            "last_request_time": _time(self._service.last_seen(entry)),
            "last_checkpoint": last.get("weights"),
            "last_sampler_checkpoint": last.get("sampler"),
            "user_metadata": entry.metadata,
        }


def _checkpoint(snapshot: ModelSnapshot) -> dict[str, Any]:
    path = snapshot.path("tinker")
    return {
        "checkpoint_id": path.removeprefix(f"tinker://{snapshot.model_id}/"),
        "checkpoint_type": _TYPES[snapshot.purpose],
        "time": _time(snapshot.created_at),
        "tinker_path": path,
        "size_bytes": None,
        "public": False,
        "expires_at": None if snapshot.expires_at is None else _time(snapshot.expires_at),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _window(request: Request) -> tuple[int, int]:
    """The page that `offset` and `limit` ask for; any other parameter is refused."""
    known = {"offset", "limit", "access_scope"}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        raise ServiceRequestError(f"query parameter {unknown[0]} is not supported here; {', '.join(sorted(known))} are")
    numbers = []
    for name, default, most in (("offset", 0, 1 << 31), ("limit", 20, _MOST)):
        text = request.query_params.get(name, str(default))
        if not text.isdigit() or int(text) > most:
            raise ServiceRequestError(f"{name} is {text[:40]!r}; it must be an integer up to {most}")
        numbers.append(int(text))
    return numbers[0], numbers[1]


def _page(request: Request, name: str, items: Sequence[Any]) -> dict[str, Any]:
    start, limit = _window(request)
    cursor = {"offset": start, "limit": limit, "total_count": len(items)}
    return {name: list(items[start : start + limit]), "cursor": cursor}
