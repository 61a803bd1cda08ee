"""Ray clusters that rldbg did not start: whether one answers, whether it demands a token, and where that token is.

A cluster demands a token when RAY_AUTH_MODE was `token` where it started; since Ray 2.60 `ray.init()` sets that by
itself and leaves a token in ~/.ray/auth_token, and `ray start` follows where it finds one. A client sends its token
only if RAY_AUTH_MODE was `token` before it imported Ray. For a cluster given by its address Ray never sets that: the
client is refused for 20 s and then told nothing of tokens. So the cluster is asked first, and it is asked without the
token, which goes only to a cluster that demands one.
"""

import importlib
import re
import socket
import sys
from pathlib import Path
from typing import Any

from rldbg.core.environment import Environment
from rldbg.core.errors import PrerequisiteError, UnreachableError, explained_as
from rldbg.core.http import http_request

TOKEN_HINT = "set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to the token file (~/.ray/auth_token on the head node)"
_INSTALL = "pip install 'rldbg[ray]'"
_ANSWER_S = 20.0
_FAILED_AT = re.compile(r"Ray cluster at (\S+:\d+)")


def ray_token(environment: Environment) -> str:
    """Ray's token, looked for where Ray looks for it; empty when there is none."""
    if given := environment.text("RAY_AUTH_TOKEN").strip():
        return given
    home = environment.everything().get("HOME") or Path.home()
    path = environment.text("RAY_AUTH_TOKEN_PATH") or Path(home) / ".ray" / "auth_token"
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def ray_access(address: str, environment: Environment) -> dict[str, str]:
    """The environment variables that a client of this cluster must set in addition.

    Raises UnreachableError when nothing answers there, PrerequisiteError when the cluster demands a token and would
    refuse the one there is.
    """
    token = ray_token(environment)
    mode = environment.text("RAY_AUTH_MODE").lower()
    if mode == "token" and not token:
        raise PrerequisiteError("RAY_AUTH_MODE=token, but no token was found", f"unset RAY_AUTH_MODE, or {TOKEN_HINT}")
    where = environment.text("RAY_ADDRESS") if address == "auto" else address
    if not where or where == "auto" or environment.flag("RAY_USE_TLS"):
        # On this machine, or behind TLS, the token may be sent even if the cluster does not demand one.
        return {"RAY_AUTH_MODE": "token"} if token else {}
    if not demands_token(where):
        return {}
    if not token:
        raise PrerequisiteError(f"the Ray cluster at {where} requires a token, and none was found", TOKEN_HINT)
    if environment.is_set("RAY_AUTH_MODE") and mode != "token":
        raise PrerequisiteError(
            f"the Ray cluster at {where} requires a token, and RAY_AUTH_MODE={mode} prevents sending it",
            "unset RAY_AUTH_MODE",
        )
    if demands_token(where, token):
        raise PrerequisiteError(f"the Ray cluster at {where} refuses the token that was found", TOKEN_HINT)
    return {"RAY_AUTH_MODE": "token"}


def demands_token(address: str, token: str = "", *, timeout_s: float = _ANSWER_S) -> bool:
    """Whether the cluster at HOST:PORT or ray://HOST:PORT refuses a call that carries this token.

    Raises UnreachableError when there is no answer.
    """
    message = "reaching a Ray cluster needs grpc, which is not installed"
    with explained_as(PrerequisiteError, ImportError, message, _INSTALL):
        grpc = importlib.import_module("grpc")
    client = address.startswith("ray://")
    method = "/ray.rpc.RayletDriver/ClusterInfo" if client else "/ray.rpc.NodeInfoGcsService/CheckAlive"
    headers = [("authorization", f"Bearer {token}")] if token else []
    # As Ray's own clients do: no proxy between nodes.
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address.removeprefix("ray://").partition("/")[0], options) as channel:
        call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        try:
            call(b"", timeout=timeout_s, metadata=headers)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise _silent(address, str(error.details())) from error
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False


def dashboard_auth_mode(url: str, timeout_s: float = 2.0) -> str:
    """The dashboard's authentication mode, "token" or "disabled"; empty when it does not answer or is an older
    version."""
    try:
        answer = http_request("GET", f"{url.rstrip('/')}/api/authentication_mode", timeout_s=timeout_s)
        mode = answer.json().get("authentication_mode") if answer.is_success else ""
    except (OSError, ValueError, AttributeError):
        return ""
    return str(mode) if mode in ("token", "disabled") else ""


def join_ray(address: str, *, otherwise: str, **arguments: Any) -> Any:
    """Ray, connected to a running cluster: HOST:PORT, ray://HOST:PORT, or "auto" for RAY_ADDRESS or this machine's own.

    What `ray_access` finds stays in the environment, because Ray and its children read it there. `otherwise` says what
    the user can do without the cluster.
    """
    try:
        return _join(address, arguments)
    except UnreachableError as error:
        raise UnreachableError(error.message, f"check the address, or {otherwise}") from error


def _join(address: str, arguments: dict[str, Any]) -> Any:
    environment = Environment()
    access = ray_access(address, environment)
    for name, value in access.items():
        environment.export(name, value)
    has_read_mode = "ray" in sys.modules
    with explained_as(PrerequisiteError, ImportError, "Ray is not installed", _INSTALL):
        import ray
    if access and has_read_mode:
        importlib.import_module("ray._raylet").Config.initialize("")
    try:
        if not address.startswith("ray://"):
            _choose_own_address(address)
        ray.init(address=address, **arguments)
    except UnreachableError:
        raise
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if found := _FAILED_AT.search(str(error)):
            # A cluster that Ray found by itself was not checked above: its token may be wrong.
            ray_access(found[1], environment)
        raise _silent(address, next(iter(str(error).strip().splitlines()), type(error).__name__)) from error
    return ray


def _choose_own_address(address: str) -> None:
    """Ray replaces a loopback address by that of this host, unless RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0. A cluster that
    started with this setting listens on loopback only: a client without it waits minutes for an answer."""
    services = importlib.import_module("ray._private.services")
    where = services.canonicalize_bootstrap_address(address)
    if where is None or _accepts(where):
        return
    if not _accepts(f"127.0.0.1:{where.rpartition(':')[2]}"):
        raise _silent(where, "nothing listens there")
    constants: Any = importlib.import_module("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = False


def _accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S / 2).close()
    except OSError:
        return False
    return True


def _silent(address: str, reason: str) -> UnreachableError:
    return UnreachableError(f"no Ray cluster answers at {address}: {reason}", "`ray start --head` starts a cluster")
