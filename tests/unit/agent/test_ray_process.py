"""What a worker of Ray is called by what its main thread does; its frames are of files that lie where Ray's do."""

import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest

from rldbg.agent import ray_process

RAY = "/env/ray/__init__.py"
LOOP = "def main_loop(act): return act()"
LOADS = "def get_execution_info(act, function_descriptor): return act()"
IMPORTS = "def _find_and_load(act): return act()"
RUNS = "def refill(act): return act()"


def _function(source, file, name):
    scope = {}
    exec(compile(source, file, "exec"), scope)
    return scope[name]


@pytest.fixture(autouse=True)
def _ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    sys.modules["ray"].__file__ = RAY


def test_a_task_has_the_name_of_its_function_while_that_is_loaded():
    loop = _function(LOOP, "/env/ray/_private/worker.py", "main_loop")
    loads = _function(LOADS, "/env/ray/_private/function_manager.py", "get_execution_info")
    imports = _function(IMPORTS, "<frozen importlib._bootstrap>", "_find_and_load")
    descriptor = SimpleNamespace(function_name="Trainer.setup.<locals>.refill")
    assert loop(partial(loads, partial(imports, ray_process._running_task), descriptor)) == "refill"


def test_a_task_has_the_name_of_its_function_while_it_runs():
    loop = _function(LOOP, "/env/ray/_private/worker.py", "main_loop")
    refill = _function(RUNS, "/home/me/ray/train.py", "refill")
    assert loop(partial(refill, ray_process._running_task)) == "refill"
