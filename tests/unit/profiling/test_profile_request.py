"""What is asked for becomes a plan: patterns, steps, the documented variables, and what is wrong with them."""

from dataclasses import replace
from pathlib import Path

import pytest

from rldbg.agent.profiling import PLAN_VARIABLE, TEXT_VARIABLE, Plan, fresh_path, nsys_options
from rldbg.cli.profile import command
from rldbg.core import Environment, UsageError
from rldbg.profiling import ProfileRequest, make_plan
from rldbg.profiling.request import read_patterns, read_steps


def plan(request: ProfileRequest, folder: Path, **variables: str) -> Plan:
    return make_plan(request, folder=folder, run=folder, environment=Environment(variables))


def test_patterns_as_documented():
    assert read_patterns(" *policy* ,, *vllm*,") == ("*policy*", "*vllm*")
    assert read_patterns("w[!a,b]x,y") == ("w[!a,b]x", "y")


@pytest.mark.parametrize(
    ("text", "steps"),
    [("3:5", (3, 5)), ("1:2", (1, 2)), ("3", (3, 4)), ("2:", (2, 2**31)), ("", None), (" 3 : 5 ", (3, 5))],
)
def test_steps(text, steps):
    assert read_steps(text, "--steps") == steps


@pytest.mark.parametrize("text", ["0:3", "5:5", "5:3", "1-10", "a:b", ":4", "-1:3", "1:2:3"])
def test_steps_that_hold_none_are_refused_with_the_rule(text):
    with pytest.raises(UsageError) as caught:
        read_steps(text, "NRL_NSYS_PROFILE_STEP_RANGE")
    assert "NRL_NSYS_PROFILE_STEP_RANGE" in caught.value.message
    assert "1-based" in caught.value.hint


def test_the_documented_variables_alone_mean_nsys(tmp_path):
    made = plan(
        ProfileRequest(),
        tmp_path,
        NRL_NSYS_WORKER_PATTERNS="*policy*",
        NRL_NSYS_PROFILE_STEP_RANGE="3:5",
        NRL_NSYS_EXTRA_OPTIONS='{"t": "cuda", "gpu-metrics-device": 0, "wait": null}',
        RAY_LOG_SYNC_FREQUENCY="30",
        SLURM_JOB_ID="12",
        SLURM_SUBMIT_DIR=str(tmp_path),
    )
    assert (made.tool, made.patterns, made.steps) == ("nsys", ("*policy*",), (3, 5))
    assert made.options == {"t": "cuda", "gpu-metrics-device": "0", "wait": None}
    assert made.sync_to == str(tmp_path / "12-logs" / "ray")


def test_the_variable_with_the_steps_is_meant_for_phases_too(tmp_path):
    assert plan(ProfileRequest(tool="phases"), tmp_path, NRL_NSYS_PROFILE_STEP_RANGE="3:5").steps == (3, 5)


def test_a_flag_wins_over_its_variable(tmp_path):
    request = ProfileRequest(workers="*vllm*", steps="1:2", tool="torch", options=("stacks=1",))
    made = plan(request, tmp_path, NRL_NSYS_WORKER_PATTERNS="*policy*", NRL_NSYS_EXTRA_OPTIONS="{}")
    assert (made.tool, made.patterns, made.steps, made.options) == ("torch", ("*vllm*",), (1, 2), {"stacks": "1"})


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_extra_options_that_are_no_object(tmp_path, text):
    with pytest.raises(UsageError):
        plan(ProfileRequest(), tmp_path, NRL_NSYS_WORKER_PATTERNS="*", NRL_NSYS_EXTRA_OPTIONS=text)


def test_nobody_named_is_an_error_unless_only_phases_are_wanted(tmp_path):
    for workers in ("", " , "):
        with pytest.raises(UsageError):
            plan(ProfileRequest(workers=workers), tmp_path)
    assert plan(ProfileRequest(tool="phases"), tmp_path).patterns == ()


def test_a_plan_is_read_from_its_file_or_where_that_is_not_seen_from_its_text(tmp_path, monkeypatch):
    made = make_plan(
        ProfileRequest(workers="a,b", steps="2:", ranks="0:8:2", delay_s=1.5),
        folder=tmp_path,
        run=tmp_path,
        environment=Environment({}),
    )
    assert any(hook.step == "state.global_step" and hook.offset == 1 for hook in made.hooks)
    monkeypatch.setenv(PLAN_VARIABLE, str(tmp_path / "plan.json"))
    with pytest.raises(FileNotFoundError):
        Plan.from_environment()
    monkeypatch.setenv(TEXT_VARIABLE, made.to_text())
    assert Plan.from_environment() == made and Path(made.state_folder).is_dir()
    (tmp_path / "plan.json").write_text(replace(made, tool="pyspy").to_text())
    assert Plan.from_environment().tool == "pyspy"


def test_an_actor_is_found_by_its_name_or_its_class(tmp_path):
    by_flag = plan(ProfileRequest(workers="*policy*"), tmp_path)
    assert by_flag.choose_actor("policy/0", "policy_actor").name == "policy/0"
    assert by_flag.choose_actor("lm-0-0", "dtensor_policy_worker").name == "dtensor_policy_worker"
    assert by_flag.choose_actor("lm-0-0", "vllm_generation_worker") is None
    documented = plan(ProfileRequest(), tmp_path, NRL_NSYS_WORKER_PATTERNS="*policy*")
    assert documented.choose_actor("lm_policy-0-0", "dtensor_policy_worker").name == "dtensor_policy_worker"
    assert plan(ProfileRequest(workers="Policy"), tmp_path).choose_actor("policy", "") is None


def test_names_of_files(tmp_path):
    whole = plan(ProfileRequest(workers="*"), tmp_path)
    assert whole.stem("dtensor_policy_worker", "%p") == "dtensor_policy_worker_%p"
    assert plan(ProfileRequest(workers="*", steps="3:5"), tmp_path).stem("policy/0", "7") == "policy_0_3:5_7"
    first = tmp_path / "a.torch.json.gz"
    first.touch()
    (tmp_path / "a.2.torch.json.gz").touch()
    assert fresh_path(first).name == "a.3.torch.json.gz"


def test_the_users_nsys_options_replace_ours_by_either_name(tmp_path):
    made = plan(ProfileRequest(workers="*", tool="nsys", options=("trace=cuda", "wait", "s=cpu")), tmp_path)
    words = nsys_options(made, "cuda")
    assert "--trace=cuda" in words and "-t" not in words
    assert "--wait" in words
    assert words[words.index("-s") + 1] == "cpu"
    assert "--capture-range=cudaProfilerApi" in words


def test_a_profile_of_nothing_says_how_to_profile_something():
    with pytest.raises(UsageError, match="nothing to profile") as caught:
        command.main([], standalone_mode=False)
    assert "rldbg profile --workers" in caught.value.hint
