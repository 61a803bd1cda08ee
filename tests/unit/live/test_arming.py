"""The armed environment: what is added, what stays, and how it reaches Ray workers."""

import json
import os
import subprocess
import sys

import pytest

from rldbg.agent import STARTUP, Arming, Settings, armed_environment
from rldbg.agent.arming import armed_runtime_env
from rldbg.agent.imports import AfterImports


def _python(code, environment):
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_was_there_stays_behind_ours(tmp_path):
    armed = armed_environment(tmp_path, base={"PYTHONPATH": ":/mine:/yours", "RAY_RUNTIME_ENV_HOOK": "my.hook"})
    assert armed["PYTHONPATH"] == os.pathsep.join([STARTUP, "", "/mine", "/yours"])
    assert armed["RLDBG_NEXT_RAY_HOOK"] == "my.hook" and armed["RLDBG_RUN"] == str(tmp_path)
    assert "token" not in json.dumps(armed).lower()
    again = armed_environment(tmp_path, base=armed)
    assert again["PYTHONPATH"] == armed["PYTHONPATH"] and "RLDBG_NEXT_RAY_HOOK" not in again


def test_options_become_variables(tmp_path):
    armed = armed_environment(
        tmp_path,
        Arming(90, ray_breakpoints=True, redact=False, collective_timeout_s=0, pass_exceptions=("Done", "a.Late")),
        base={},
    )
    assert Settings.from_environment(armed).pass_exceptions == ("Done", "a.Late")
    assert (armed["RLDBG_POST_MORTEM"], armed["RLDBG_RAY_BREAKPOINTS"], armed["RLDBG_REDACT"]) == ("90", "1", "0")
    assert "RLDBG_COLLECTIVE_TIMEOUT_S" not in armed


def test_rays_hook_arms_workers_and_runs_the_users_own_first(tmp_path):
    (tmp_path / "users_hook.py").write_text("def hook(env):\n    return (env or {}) | {'working_dir': 'mine'}\n")
    base = {"PYTHONPATH": str(tmp_path), "RAY_RUNTIME_ENV_HOOK": "users_hook.hook", "PATH": os.environ["PATH"]}
    environment = base | armed_environment(tmp_path, base=base)
    code = "import json, rldbg_startup; print(json.dumps(rldbg_startup.runtime_env_hook({'env_vars': {'A': '1'}})))"
    armed = json.loads(_python(code, environment))
    assert armed["working_dir"] == "mine" and armed["env_vars"]["A"] == "1"
    assert armed["env_vars"]["RLDBG_RUN"] == str(tmp_path)
    assert armed["env_vars"]["PYTHONPATH"] == f"{STARTUP}{os.pathsep}${{PYTHONPATH}}"


def test_a_users_pythonpath_in_the_runtime_env_is_kept(monkeypatch):
    monkeypatch.setenv("RLDBG_RUN", "/run")
    armed = armed_runtime_env({"env_vars": {"PYTHONPATH": "/theirs", "RLDBG_RUN": "/other"}, "pip": ["x"]})
    assert armed["env_vars"] == {"PYTHONPATH": f"{STARTUP}{os.pathsep}/theirs", "RLDBG_RUN": "/other"}
    assert armed["pip"] == ["x"] and armed_runtime_env(armed)["env_vars"]["PYTHONPATH"].count(STARTUP) == 1


def test_a_process_without_a_run_gets_no_agent(tmp_path):
    environment = {"PYTHONPATH": STARTUP, "PATH": os.environ["PATH"]}
    code = "import sys, threading; print(threading.active_count(), hasattr(sys, '_rldbg_agent'), 'json' in sys.modules)"
    assert _python(code, environment).split() == ["1", "False", "False"]


def test_an_agent_brings_nothing_but_the_standard_library(tmp_path):
    environment = {"PATH": os.environ["PATH"]} | armed_environment(tmp_path, base={})
    code = """
import sys
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded - set(sys.stdlib_module_names) - {"rldbg_agent", "rldbg_startup", "sitecustomize"}))
print(hasattr(sys, "_rldbg_agent"), [path for path in sys.path if "rldbg" in path])
"""
    first, second = _python(code, environment).splitlines()
    before = eval(_python(code, {"PATH": os.environ["PATH"]}).splitlines()[0])  # what this Python loads by itself
    ours = [name for name in eval(first) if name not in before and not name.startswith("_")]
    assert ours == [] and second.startswith("True")


def test_modules_are_prepared_after_the_users_import_and_only_then(tmp_path, monkeypatch):
    (tmp_path / "watched_module.py").write_text("value = 1\n")
    (tmp_path / "other_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen = []
    AfterImports({"watched_module": lambda module: seen.append((module.__name__, module.value))}).install()
    import other_module

    assert seen == [] and other_module.value == 1
    import watched_module

    assert seen == [("watched_module", 1)]
    assert watched_module.__spec__.loader.__class__.__name__ == "SourceFileLoader"


def test_a_failing_preparation_does_not_fail_the_users_import(tmp_path, monkeypatch, capsys):
    (tmp_path / "fragile_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    AfterImports({"fragile_module": lambda module: module.missing}).install()
    import fragile_module

    assert fragile_module.value == 1 and "could not prepare fragile_module" in capsys.readouterr().err


@pytest.mark.parametrize(
    "program", [["-m", "pip", "--version"], ["-c", "from multiprocessing.resource_tracker import main"]]
)
def test_helpers_get_no_agent(tmp_path, program):
    code = "import rldbg_startup, json, sys; print(rldbg_startup._is_a_helper(json.loads(sys.argv[1])))"
    environment = {"PYTHONPATH": STARTUP, "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(["python", *program])],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"


def test_what_rays_dashboard_starts_gets_no_agent_either(tmp_path):
    program = tmp_path / "ray" / "dashboard" / "dashboard.py"
    program.parent.mkdir(parents=True)
    (tmp_path / "ray" / "_raylet.so").touch()
    program.write_text("import os\nprint(os.environ.get('RLDBG_RUN'))")
    environment = {"PYTHONPATH": STARTUP, "PATH": os.environ["PATH"], "RLDBG_RUN": str(tmp_path)}
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def test_a_chosen_breakpoint_outside_a_run_is_chosen_alike_and_stops_in_the_users_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import rldbg\nfor step in range(4):\n    rldbg.breakpoint(ranks='1', nth=2)\n    here = step\nprint('END')\n"
    )
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RLDBG_", "PYTHONBREAK"))}
    said = [
        subprocess.run(
            [sys.executable, str(script)],
            env=plain | {"RANK": rank},
            input="p step\nc\n",
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for rank in ("0", "1")
    ]
    assert said[0] == "END\n"
    line = 3 if sys.version_info >= (3, 13) else 4  # pdb stops at the breakpoint's own line since 3.13
    assert f"train.py({line})" in said[1] and "(Pdb) 1\n" in said[1] and said[1].count("(Pdb)") == 2
