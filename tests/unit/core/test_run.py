import json
import stat

import pytest

from rldbg.core import Environment, IncompleteDataError, Run, UsageError


def test_a_new_run_folder_is_private_and_never_shared(tmp_path):
    environment = Environment({"RLDBG_HOME": str(tmp_path)})
    first = Run.create(name="my train!", environment=environment)
    second = Run.create(name="my train!", environment=environment)
    assert first.path != second.path and first.path.parent == tmp_path / "runs"
    assert first.path.name.endswith("-my-train")
    assert Run.create(name="x" * 400, environment=environment).path.is_dir()
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o700


def test_a_verb_inside_a_run_joins_it(tmp_path):
    environment = Environment({"RLDBG_RUN": str(tmp_path / "outer")})
    assert Run.create(name="inner", environment=environment).path == tmp_path / "outer"


def test_facts_accumulate_and_are_redacted(tmp_path):
    run = Run(tmp_path)
    run.start(command=["train", "--token", "abc"], config={"wandb_api_key": "k"})
    run.update(armed=["x"])
    run.finish(3)
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["command"] == ["train", "--token", "***redacted***"]
    assert facts["config"] == {"wandb_api_key": "***redacted***"}
    assert facts["armed"] == ["x"] and facts["exit_code"] == 3 and facts["schema_version"] == 1
    assert facts["versions"]["python"] and facts["ended_at"] >= facts["started_at"]
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_a_damaged_run_json_is_named(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(IncompleteDataError, match=r"run\.json"):
        Run(tmp_path).read()


def test_a_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot create the run folder"):
        Run.create(name="x", path=tmp_path / "file" / "run")
    # AND so where the folder of all runs cannot be made: the current one may be read-only
    with pytest.raises(UsageError, match="cannot create the run folder under ") as caught:
        Run.create(name="x", environment=Environment({"RLDBG_HOME": str(tmp_path / "file")}))
    assert "set RLDBG_HOME" in caught.value.hint
