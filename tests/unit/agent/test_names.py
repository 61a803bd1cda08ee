"""Names of processes, wherever the user's folders lie and whatever they are called."""

import sys
from types import SimpleNamespace

import pytest

from rldbg.agent.identity import without_rank
from rldbg.agent.post_mortem import has_users_code
from rldbg.agent.ray_process import is_rays_own
from rldbg.agent.stacks import is_tool_file
from rldbg.agent.startup.rldbg_startup import _is_a_helper


@pytest.mark.parametrize(
    ("role", "rank", "named"),
    [
        ("policy_1", 1, "policy"),
        ("policy-1", 1, "policy"),
        ("policy_11", 1, "policy_11"),
        ("policy_1", 0, "policy_1"),
        ("policy_1", None, "policy_1"),
        ("policy", 1, "policy"),
    ],
)
def test_a_rank_is_said_once(role, rank, named):
    assert without_rank(role, rank) == named


def test_folders_called_ray_or_debugpy_are_the_users(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(__file__="/venv/site-packages/ray/__init__.py"))
    assert is_rays_own("/venv/site-packages/ray/_private/worker.py") and is_rays_own("python/ray/_raylet.pyx")
    assert not is_rays_own("/home/me/ray/train.py") and not is_rays_own("/venv/site-packages/rayleigh/a.py")
    assert is_tool_file("/venv/site-packages/debugpy/_vendored/pydevd/pydevd.py")
    assert not is_tool_file("/home/me/debugpy/train.py") and not is_tool_file("/home/me/pydevd_notes/train.py")


def test_scripts_in_folders_called_like_rays_are_armed(tmp_path):
    script = tmp_path / "ray" / "autoscaler" / "train.py"
    script.parent.mkdir(parents=True)
    assert not _is_a_helper(["python", str(script)])
    (tmp_path / "ray" / "_raylet.so").touch()
    assert _is_a_helper(["python", str(script)])
    assert _is_a_helper(["python", "-c", "from multiprocessing.resource_tracker import main"])


def test_an_error_of_a_library_alone_has_no_code_of_the_user():
    def raised(code, file):
        try:
            exec(compile(code, file, "exec"), {})
        except ZeroDivisionError as error:
            # Without this test's own frame, which would count.
            return error.with_traceback(error.__traceback__.tb_next)
        return None

    assert has_users_code(raised("1 / 0", "/home/me/ray/train.py"))
    assert not has_users_code(raised("1 / 0", "python/ray/_raylet.pyx"))
