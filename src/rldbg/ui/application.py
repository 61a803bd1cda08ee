"""The routes: the page and its assets, and JSON for each view. Answers are made by functions that need no server."""

import logging
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rldbg.core import RldbgError, SampleId, UsageError
from rldbg.reports.json_text import to_json
from rldbg.ui import compare_pages, rank_pages, run_pages, sample_view, timeline_page
from rldbg.ui.catalogue import Catalogue
from rldbg.ui.guard import Access, Guard, shown_tokens
from rldbg.ui.jobs import Jobs

_STATUS = {"usage": 400, "incomplete": 422, "prerequisite": 424, "unreachable": 502, "refused": 403}
_LOG = logging.getLogger(__name__)

JsonHandler = Callable[[Request], Any]


def build_application(catalogue: Catalogue, access: Access | None = None) -> Starlette:
    """The application over what was opened; `access` says where it listens and which token its URL carries."""
    access = access or Access()
    jobs = Jobs()
    run_of = partial(_run, catalogue)

    def _csv(request: Request) -> Response:
        run = run_of(request)
        lines = run_pages.samples_csv(run, **_selection(request))
        first = next(lines)  # errors of the filter are raised before the answer has begun
        name = f'attachment; filename="{run.name}-samples.csv"'
        return StreamingResponse(
            (line for part in ([first], lines) for line in part),
            media_type="text/csv",
            headers={"content-disposition": name},
        )

    def _trace(request: Request) -> Response:
        run = run_of(request)
        folder = tempfile.TemporaryDirectory(prefix="rldbg-trace-")
        with ExitStack() as undo:
            undo.callback(folder.cleanup)
            path = timeline_page.trace_file(run, Path(folder.name))
            undo.pop_all()
        return FileResponse(
            path,
            media_type="application/gzip",
            filename=f"{run.name}-trace.json.gz",
            background=BackgroundTask(folder.cleanup),
        )

    async def _debug(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise UsageError("debug actions are JSON", "content-type: application/json")
        try:
            body = await request.json()
        except ValueError:
            raise UsageError("the body is not valid JSON") from None
        work = partial(rank_pages.debug_action, run_of(request), body, shown_tokens(request.scope), access)
        return json_response(await run_in_threadpool(work))

    @asynccontextmanager
    async def lifespan(_application: Starlette) -> Any:
        yield
        jobs.close()

    return Starlette(
        routes=[
            Route("/", lambda request: FileResponse(compare_pages.STATIC / "index.html")),
            Route("/api/runs/{run}/samples.csv", _csv),
            Route("/api/runs/{run}/trace.json.gz", _trace),
            Route("/api/runs/{run}/debug", _debug, methods=["POST"]),
            *(Route(f"/api{path}", _json(answer)) for path, answer in _answers(catalogue, jobs).items()),
            Mount("/static", StaticFiles(directory=compare_pages.STATIC)),
        ],
        middleware=[Middleware(Guard, access=access), Middleware(GZipMiddleware, minimum_size=2000, compresslevel=1)],
        exception_handlers={RldbgError: _explained, HTTPException: _no_page, Exception: _bug},
        lifespan=lifespan,
    )


def _answers(catalogue: Catalogue, jobs: Jobs) -> dict[str, JsonHandler]:
    """What is asked by GET, by its path below /api."""
    run_of = partial(_run, catalogue)
    return {
        "/runs": lambda request: run_pages.runs_page(catalogue, jobs, begin_checks=bool(_number(request, "check", 0))),
        "/runs/{run}": lambda request: run_pages.overview_page(run_of(request)),
        "/runs/{run}/check": lambda request: run_pages.check_page(run_of(request), jobs),
        "/runs/{run}/metrics": lambda request: run_pages.metrics_page(run_of(request), jobs),
        "/runs/{run}/mismatch": lambda request: run_pages.mismatch_page(run_of(request), jobs),
        "/runs/{run}/weights": lambda request: run_pages.weights_page(run_of(request), jobs),
        "/runs/{run}/template": lambda request: run_pages.template_page(run_of(request), jobs),
        "/runs/{run}/step/{step:int}": lambda r: run_pages.step_page(run_of(r), jobs, r.path_params["step"]),
        "/runs/{run}/samples": lambda request: run_pages.samples_page(
            run_of(request),
            **_selection(request),
            offset=_number(request, "offset", 0),
            limit=_number(request, "limit", 100),
        ),
        "/runs/{run}/sample": lambda request: sample_view.sample_view(
            run_of(request), SampleId.parse(request.query_params.get("sample", "")), _number(request, "step")
        ),
        "/runs/{run}/group": lambda request: sample_view.group_view(
            run_of(request), request.query_params.get("group", ""), _number(request, "step", 0)
        ),
        "/runs/{run}/ranks": lambda request: rank_pages.ranks_page(run_of(request)),
        "/runs/{run}/stacks": lambda request: rank_pages.stacks_page(
            run_of(request), jobs, _number(request, "look", 0)
        ),
        "/runs/{run}/timeline": lambda r: timeline_page.timeline_page(run_of(r), jobs, _number(r, "step")),
        "/runs/{run}/doctor": lambda request: rank_pages.doctor_page(run_of(request), jobs),
        "/compare": lambda request: compare_pages.compare_page(
            [catalogue.run(name) for name in request.query_params.getlist("run")], jobs
        ),
    }


def _run(catalogue: Catalogue, request: Request) -> Any:
    return catalogue.run(request.path_params["run"])


def _json(answer: JsonHandler) -> Callable[[Request], Response]:
    return lambda request: json_response(answer(request))


def json_response(body: Any, status: int = 200) -> Response:
    return Response(to_json(body), status, media_type="application/json")


def _explained(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RldbgError)
    return json_response({"error": error.to_dict()}, _STATUS.get(error.kind, 422))


def _no_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = {"kind": "usage", "message": f"{request.url.path}: {error.detail}", "hint": "go back to the list of runs"}
    return json_response({"error": body}, error.status_code)


def _bug(_request: Request, error: Exception) -> Response:
    # A border: what is wrong with one request must not end the server.
    _LOG.exception("a request failed", exc_info=error)
    body = {
        "kind": "internal",
        "message": f"a bug in rldbg: {type(error).__name__}: {error}",
        "hint": "please report it",
    }
    return json_response({"error": body}, 500)


def _selection(request: Request) -> dict[str, Any]:
    query = request.query_params
    return {
        "filter": query.get("filter", ""),
        "sort": query.get("sort", ""),
        "descending": query.get("order") == "down",
    }


def _number(request: Request, name: str, default: int | None = None) -> Any:
    text = request.query_params.get(name)
    if text in (None, ""):
        return default
    try:
        return int(str(text))
    except ValueError:
        raise UsageError(f"invalid {name}: {text[:40]!r} (expected an integer)") from None
