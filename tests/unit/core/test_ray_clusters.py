import os
import socket
import subprocess
import sys

import pytest

from rldbg.core import Environment, PrerequisiteError, UnreachableError, demands_token, ray_access, ray_token


def test_the_token_is_found_where_ray_looks_for_it(tmp_path):
    assert ray_token(Environment({"HOME": str(tmp_path)})) == ""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("of the home\n")
    (tmp_path / "named").write_text("of the file\n")
    variables = {"HOME": str(tmp_path)}
    assert ray_token(Environment(variables)) == "of the home"
    variables["RAY_AUTH_TOKEN_PATH"] = str(tmp_path / "named")
    assert ray_token(Environment(variables)) == "of the file"
    assert ray_token(Environment(variables | {"RAY_AUTH_TOKEN": "given"})) == "given"
    assert ray_token(Environment(variables | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")})) == ""


def test_token_mode_without_a_token_is_an_error_before_ray_is_asked(tmp_path):
    with pytest.raises(PrerequisiteError, match="no token was found"):
        ray_access("127.0.0.1:1", Environment({"HOME": str(tmp_path), "RAY_AUTH_MODE": "token"}))


def test_a_cluster_that_ray_finds_by_itself_gets_the_token_that_is_there(tmp_path):
    variables = {"HOME": str(tmp_path)}
    assert ray_access("auto", Environment(variables)) == {}
    assert ray_access("auto", Environment(variables | {"RAY_AUTH_TOKEN": "t"})) == {"RAY_AUTH_MODE": "token"}


def test_a_port_that_says_nothing_is_not_waited_for_long():
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UnreachableError, match="no Ray cluster"):
        demands_token(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3)


def test_a_recorded_cluster_that_has_ended_is_an_error_at_once():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        where = f"127.0.0.1:{closed.getsockname()[1]}"
    code = "from rldbg.core import join_ray; join_ray('auto', otherwise='start one')"
    # What Ray finds for `auto` is not asked for a token first.
    variables = {**os.environ, "RAY_ADDRESS": where, "RAY_USE_TLS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=30, check=False
    )
    assert "UnreachableError: no Ray cluster answers at" in done.stderr and "nothing listens there" in done.stderr


def test_nothing_heavy_is_loaded_to_find_the_token():
    code = "import sys, rldbg.core.ray_clusters; print({'ray', 'grpc'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
