"""Launch scripts in the shapes found in the wild: each is explained right, and none is harmed or harms."""

import hashlib
import os
import random
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from rldbg.core import RldbgError
from rldbg.launch import Request, explain, resolve_command

FOLDER = Path(__file__).parents[1] / "launch_scripts"
EXPECTED = yaml.safe_load((FOLDER / "expected.yaml").read_text())
SAMPLE = random.Random(20261115).sample(sorted(EXPECTED), 10)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    copy = tmp_path_factory.mktemp("corpus") / "launch_scripts"
    shutil.copytree(FOLDER, copy)
    return copy


def test_every_script_is_expected():
    libraries = {"models/tiny.sh", "scripts/inner.sh"}
    scripts = {
        str(file.relative_to(FOLDER)) for suffix in ("sh", "slurm", "sub") for file in FOLDER.rglob(f"*.{suffix}")
    }

    assert scripts - libraries == set(EXPECTED)


def contents(folder: Path) -> dict[str, str]:
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.rglob("*") if file.is_file()}


def explain_script(corpus: Path, name: str, arguments):
    kept = {key: value for key, value in os.environ.items() if key in ("HOME", "LANG", "TMPDIR")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    argv, script = resolve_command([str(corpus / name), *arguments])
    request = Request(argv, script, corpus, kept | {"PATH": path})
    return explain(request, corpus / "run")


def check(corpus: Path, name: str, monkeypatch) -> None:
    monkeypatch.chdir(corpus)
    wanted = EXPECTED[name]
    before = contents(corpus)
    if "error" in wanted:
        with pytest.raises(RldbgError) as caught:
            explain_script(corpus, name, wanted.get("arguments", []))
        assert wanted["error"] in caught.value.hint
        return
    found = explain_script(corpus, name, wanted.get("arguments", []))

    assert contents(corpus) == before
    assert found.framework == wanted["framework"]
    assert found.stopped.endswith(wanted.get("stopped", "")) and bool(found.stopped) == ("stopped" in wanted)
    assert len(found.trainings) == len(wanted["trainings"])
    for training, expectation in zip(found.trainings, wanted["trainings"], strict=True):
        check_training(training, expectation)
    others = [explained.command.program.name for explained in found.commands if explained.command.kind == "other"]
    assert set(wanted.get("others", [])) <= set(others)
    # The corpus holds scripts, not the programs that they start.
    ids = {hazard.id for hazard in found.hazards}
    ids -= {"launch.not-installed", "launch.program-missing", "launch.module-missing"}
    assert ids - {"launch.kills-processes"} == set(wanted.get("hazards", []))


def test_programs_that_a_script_writes_exist(corpus):
    found = explain_script(corpus, "writes_its_program.sh", [])
    assert not {"launch.program-missing", "launch.module-missing"} & {hazard.id for hazard in found.hazards}


@pytest.mark.parametrize(
    "prefix",
    [
        "nohup",
        "setsid",
        "nice -n 5",
        "stdbuf -oL",
        "env A=1",
        "timeout 5m",
        "time",
        "srun -N 1",
        "nohup env A=1 nice",
        "A=1",
    ],
)
def test_a_program_that_is_not_installed_is_seen_behind_others(tmp_path, prefix):
    script = tmp_path / "s.sh"
    script.write_text(f"{prefix} trl grpo --config x.yaml --output_dir o > train.log 2>&1 & wait\n")
    found = explain_script(tmp_path, "s.sh", [])
    assert [(each.command.program.name, each.command.profile.name) for each in found.trainings] == [("trl", "trl")]


def test_an_evaluation_that_a_variable_names_is_no_training_that_was_missed(tmp_path):
    (tmp_path / "eval_embodied_agent.py").touch()
    script = tmp_path / "run_train_eval.sh"
    script.write_text("SRC=eval_embodied_agent.py\nrun() { python ${SRC} runner.logger.log_path=x; }\nrun\n")
    assert [hazard.id for hazard in explain_script(tmp_path, script.name, []).hazards] == ["launch.no-training"]


def check_training(training, expectation) -> None:
    body = training.to_dict()
    changes = [f"{change['what']}={change['value']}" for change in body["changes"]]
    assert set(expectation.get("has", [])) <= set(changes)
    assert body["line"] == expectation.get("line", body["line"])
    assert body["program"]["name"] == expectation.get("program", body["program"]["name"])
    assert body["argv"][0] == expectation.get("first", body["argv"][0])
    assert body["argv"][-1] == expectation.get("last", body["argv"][-1])
    assert expectation.get("contains", body["argv"][0]) in body["argv"]
    assert expectation.get("via", "") in "\n".join(body["via"])
    assert expectation.get("method", "") in (body["changes"][0]["method"] if body["changes"] else "")
    assert bool(body["changes"]) == expectation.get("reached", True)
    assert body["changes"] or body["unreached"]


@pytest.mark.parametrize("name", SAMPLE)
def test_script_is_explained(corpus, name, monkeypatch):
    check(corpus, name, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(set(EXPECTED) - set(SAMPLE)))
def test_every_other_script_is_explained(corpus, name, monkeypatch):
    check(corpus, name, monkeypatch)
