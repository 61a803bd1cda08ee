"""Functions of client libraries that wait: for messages, file locks, connections, and to try again."""

from collections.abc import Sequence

from ..reading.objects import Frame, Object, exception_text, is_a
from .looking import Looking, Wait, WaitRules, file_key, locked_path

_LOCK_FILES = ("canonical", "lock_filename")
_POOLS = (
    ("httpcore/_sync/connection_pool.py", frozenset({"wait_for_connection"})),
    ("httpcore/_async/connection_pool.py", frozenset({"wait_for_connection"})),
    ("aiohttp/connector.py", frozenset({"_wait_for_available_connection"})),
    ("urllib3/connectionpool.py", frozenset({"_get_conn"})),
)
_GRPC = ("grpc/_channel.py", "grpc/aio/_call.py")
_LIMITS = ("_max_connections", "_limit", "maxsize")


def _message(frame: Frame, looking: Looking) -> Wait:
    return {"kind": "message", "name": looking.name(frame.variable("self"), frame.function.rpartition(".")[2])}


def _file_lock(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    locals_of = (each.variable(name) for each in looking.frames[: looking.user] for name in _LOCK_FILES)
    texts = (value.text() for value in locals_of if value is not None)
    file = locked_path(value) or next(filter(None, texts), "")
    if is_a(value, "SoftFileLock"):
        return _until_removed("filelock", file)
    name = looking.name(value, "acquire")
    return {"kind": "file_lock", "path": file, "name": name} | {
        "choices": [{"name": name, "key": file_key(file), "owner": None}] if file else []
    }


def _baton(frame: Frame, looking: Looking) -> Wait:
    """Who compiles an extension of torch keeps this file; who comes second waits until it is removed."""
    value = frame.variable("self")
    return _until_removed("torch", _first_text([value] if value is not None else [], "lock_file_path"))


def _until_removed(package: str, file: str) -> Wait:
    return {"kind": "sleep", "polls": f"in {package} until {file or 'a file'} is removed", "absence_of": file}


def _urllib3_retry(frame: Frame, looking: Looking) -> Wait:
    value = frame.variable("self")
    history = value.get("history") if value is not None else None
    tries = history.elements() if history is not None else []
    last = tries[-1].elements() if tries else []
    url, status = (last[1].text() or "", last[3].number()) if len(last) > 3 else ("", None)
    answers = f": {len(tries)} times so far" + (f", the last answer was status {status}" if status else "")
    return {"kind": "sleep", "polls": f"in urllib3 that asks {url or 'a server'} again{answers}"}


def _tenacity(frame: Frame, looking: Looking) -> Wait:
    state = frame.variable("retry_state")
    number, outcome = (state.get("attempt_number"), state.get("outcome")) if state is not None else (None, None)
    error = outcome.get("_exception") if outcome is not None else None
    raised = f", the last time it raised {exception_text(error)}" if is_a(error, "BaseException") and error else ""
    times = f": {number.number()} times so far" if number is not None else ""
    return {"kind": "sleep", "polls": f"in tenacity that tries again{times}{raised}"}


def _rpc(frame: Frame, looking: Looking) -> Wait:
    return rpc_wait(looking.frames[: looking.user]) or {"kind": "unknown"}


def rpc_wait(frames: Sequence[Frame]) -> Wait | None:
    """A call of gRPC that waits for its answer."""
    own = [frame for frame in frames if frame.file.endswith(_GRPC)]
    owners = [value for frame in own if (value := frame.variable("self")) is not None]
    # A call in progress keeps them in its state; those of asyncio keep them in C.
    owners += [state for value in owners if (state := value.get("_state")) is not None]
    told = {name: _first_text(owners, name, f"_{name}") for name in ("method", "target")}
    return {"kind": "stream", "rpc": told["method"], "address": told["target"]} if own else None


def _first_text(owners: Sequence[Object], *names: str) -> str:
    texts = (value.text() for owner in owners for name in names if (value := owner.get(name)) is not None)
    return next(filter(None, texts), "")


def _connection_pool(frame: Frame, looking: Looking) -> Wait:
    return pool_wait(looking.frames[: looking.user]) or {"kind": "unknown"}


def pool_wait(frames: Sequence[Frame]) -> Wait | None:
    """A request of an HTTP client that waits until another one gives its connection back."""
    if not any(
        frame.file.endswith(f) and frame.function.rpartition(".")[2] in n for frame in frames for f, n in _POOLS
    ):
        return None
    owners = [value for frame in frames if (value := frame.variable("self")) is not None]
    limits = [limit.number() for value in owners for name in _LIMITS if (limit := value.get(name)) is not None]
    return {"kind": "connection_pool", "limit": next((limit for limit in limits if limit), None)}


CLIENT_RULES: WaitRules = (
    *((file, functions, _connection_pool) for file, functions in _POOLS),
    ("grpc/_channel.py", frozenset({"_blocking", "result", "_next", "_next_response"}), _rpc),
    ("zmq/sugar/socket.py", frozenset({"recv", "recv_multipart", "recv_pyobj", "recv_json", "poll"}), _message),
    ("zmq/sugar/poll.py", frozenset({"poll"}), _message),
    ("filelock/_api.py", frozenset({"acquire", "__enter__"}), _file_lock),
    ("torch/utils/file_baton.py", frozenset({"wait"}), _baton),
    ("urllib3/util/retry.py", frozenset({"sleep"}), _urllib3_retry),
    ("tenacity/__init__.py", frozenset({"__call__"}), _tenacity),
)
