"""What slime asks of its router and of a worker beyond SGLang's own routes.

One server is both: it lists itself, the replicas that were started with it, and workers that register. It answers
/generate itself; it does not hand requests on.
"""

from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from rldbg.inference.backend import Backend
from rldbg.inference.protocols.http import Json, RouteTable, body_of, fields_of
from rldbg.inference.request_error import RequestError

# Addresses of this server and its replicas, as they are known now.
Replicas = Callable[[], Sequence[str]]
_MOST_WORKERS = 4096


class Slime:
    def __init__(self, backend: Backend, replicas: Replicas) -> None:
        self._backend = backend
        self._replicas = replicas
        self._registered: dict[str, str] = {}
        self._removed: set[str] = set()

    def table(self) -> RouteTable:
        return (
            ("GET", "/workers", self.workers),
            ("POST", "/workers", self.register),
            ("DELETE", "/workers/{worker:path}", self.remove),
            ("GET", "/list_workers", self.urls),
            ("POST", "/add_worker", self.add_by_url),
            ("POST", "/remove_worker", self.remove_by_url),
            ("GET", "/v1/loads", self.loads),
            ("GET", "/get_load", self.loads),
            ("POST", "/weights_checker", self.weights_checker),
        )

    async def workers(self, _request: Request) -> Response:
        entries = [
            {"id": name, "url": url, "worker_type": "regular", "is_healthy": True}
            for name, url in self._known().items()
        ]
        return Json({"workers": entries, "total": len(entries)})

    async def urls(self, _request: Request) -> Response:
        return Json({"urls": list(self._known().values())})

    async def register(self, request: Request) -> Response:
        url = (await fields_of(request)).text("url")
        return Json({"status": "accepted", "worker_id": self._add(url), "url": url}, 202)

    async def add_by_url(self, request: Request) -> Response:
        await fields_of(request)
        self._add(request.query_params.get("url", ""))
        return Json({"message": "added"})

    async def remove(self, request: Request) -> Response:
        return self._remove(request.path_params["worker"])

    async def remove_by_url(self, request: Request) -> Response:
        await fields_of(request)
        return self._remove(request.query_params.get("url", ""))

    async def loads(self, _request: Request) -> Response:
        status = self._backend.status()
        load = {
            "dp_rank": 0,
            "num_reqs": status.running + status.waiting,
            "num_running_reqs": status.running,
            "num_waiting_reqs": status.waiting,
        }
        return Json({"loads": [load]})

    async def weights_checker(self, request: Request) -> Response:
        await body_of(request)
        raise RequestError("weights are not compared here; GET /get_weight_version returns the loaded version")

    def _known(self) -> dict[str, str]:
        own = {address: f"http://{address}" for address in self._replicas()}
        return {name: url for name, url in (own | self._registered).items() if name not in self._removed}

    def _add(self, url: str) -> str:
        if not url.startswith(("http://", "https://")) or len(self._registered) >= _MOST_WORKERS:
            raise RequestError(f"url is {url[:80]!r}; it must be an http address")
        name = url.partition("://")[2].rstrip("/")
        self._registered[name] = url.rstrip("/")
        self._removed.discard(name)
        return name

    def _remove(self, worker: str) -> Response:
        name = worker.partition("://")[2].rstrip("/") if "://" in worker else worker
        if name not in self._known():
            raise RequestError(f"no worker {name[:80]!r}; GET /workers lists them", 404)
        if name in self._registered:
            del self._registered[name]
        else:
            self._removed.add(name)
        return Json({"status": "accepted", "message": f"{name} is removed"})
