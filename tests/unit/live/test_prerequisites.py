"""What is missing or too old is said in a sentence with what to do: Ray, its dashboard, its token, debugpy."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rldbg.core import PrerequisiteError, UnreachableError
from rldbg.live.external_ray.dashboard import Dashboard


class Page(BaseHTTPRequestHandler):
    """Stands where a dashboard is expected: an old Ray, one that asks for a token, or something else altogether."""

    def do_GET(self):
        status, body = self.server.pages.get(self.path, (404, b"not here"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        return


@pytest.fixture
def serve():
    servers = []

    def start(**pages):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        server.pages = {f"/api/{name}": answer for name, answer in pages.items()}
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("version", ["2.9.0", "2.8.1", "1.13.0"])
def test_an_old_ray_is_named_with_the_version_that_is_needed(serve, version):
    url = serve(version=(200, json.dumps({"ray_version": version}).encode()))
    with pytest.raises(PrerequisiteError, match=rf"Ray {version} .* is too old: its debugger needs 2.9.1") as raised:
        Dashboard(url).version()
    assert "pip install" in raised.value.hint


@pytest.mark.parametrize("version", ["2.9.1", "2.10.0", "2.60.0", "3.0.0.dev0"])
def test_a_newer_ray_will_do(serve, version):
    assert Dashboard(serve(version=(200, json.dumps({"ray_version": version}).encode()))).version() == version


def test_a_cluster_that_asks_for_a_token_nobody_has(serve, monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    url = serve(authentication_mode=(200, b'{"authentication_mode": "token"}'), version=(401, b"Unauthorized"))
    with pytest.raises(PrerequisiteError, match=r"asks for a token \(401\): no token was found") as raised:
        Dashboard(url).version()
    assert "RAY_AUTH_TOKEN" in raised.value.hint


def test_something_else_at_that_address_is_no_dashboard(serve):
    with pytest.raises(UnreachableError, match="no Ray dashboard"):
        Dashboard(serve(version=(200, b"<html>a web server</html>"))).version()
    with pytest.raises(UnreachableError, match="answered 404"):
        Dashboard(serve()).version()


def _load_debugpy(folder, fallback=""):
    code = f"""
import sys
from rldbg.agent.debugger import NoDebugger, load_debugpy
sys.path.insert(0, {str(folder)!r})
try: load_debugpy({fallback!r}); print("loaded")
except NoDebugger as error: print(error)
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_an_old_debugpy_is_named_and_so_is_a_missing_one(tmp_path):
    for name, text in (("old", "__version__ = '1.7.9'"), ("missing", "raise ImportError"), ("new", None)):
        (tmp_path / name / "debugpy").mkdir(parents=True)
        if text:
            (tmp_path / name / "debugpy" / "__init__.py").write_text(text)
    assert _load_debugpy(tmp_path / "old") == "debugpy 1.7.9 is too old: 1.8.0 is needed (pip install -U debugpy)"
    assert "debugpy is not installed in this process" in _load_debugpy(tmp_path / "missing")
    # A process without one of its own takes the one that came with rldbg, and its sys.path stays as it is.
    import debugpy

    assert _load_debugpy(tmp_path / "missing", str(debugpy.__path__[0])) == "loaded"
