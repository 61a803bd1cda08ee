"""A script that would not reach its training is told what it lacks, and what to try."""

import os
import sys
from pathlib import Path

import pytest

from rldbg.core import UsageError
from rldbg.launch import Request, explain, resolve_command
from rldbg.launch.plan import refuse_unarmable

TRAIN = "python train_ppo.py --run_name x\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    repository = tmp_path / "repository"
    (repository / "models").mkdir(parents=True)
    (repository / "train_ppo.py").touch()
    (repository / "models" / "tiny.sh").write_text("LAYERS=2\n")
    return repository


def explained(folder: Path, text: str, *arguments: str, **environment: str):
    script = folder / "run.sh"
    script.write_text(text)
    argv, found = resolve_command([str(script), *arguments])
    kept = {key: value for key, value in os.environ.items() if key in ("HOME", "LANG", "TMPDIR")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return explain(Request(argv, found, folder, kept | {"PATH": path} | environment), folder / "out")


def steps(folder: Path, text: str, *arguments: str, **environment: str) -> str:
    """What to try, of every finding that says why the training does not start."""
    found = explained(folder, text, *arguments, **environment).hazards
    why = ("launch.stops-early", "launch.training-not-reached", "launch.program-missing")
    text = "\n".join(step for hazard in found if hazard.id in why for step in hazard.fix)
    return text.replace(str(folder), "HERE")


@pytest.mark.parametrize(
    "check",
    [
        'if [ -z "${BASE}" ]; then\n  echo "BASE is not set"\n  exit 1\nfi\n',
        'die() { echo "$1"; exit 2; }\n[[ -n ${BASE:-} ]] || die "no base"\n',
        ": ${BASE:?must be set}\n",
        "set -u\nROOT=$BASE/x\n",
        'BASE=${BASE:-}\nif [[ "$BASE" == "" ]]; then exit 1; fi\n',
        'BASE="${BASE:-/path/to/base}"\nif [ "$BASE" = /path/to/base ]; then exit 1; fi\n',
    ],
)
def test_the_variable_that_it_asks_for_is_named(folder, check):
    assert steps(folder, check + TRAIN) == "set BASE: rldbg run --env BASE=VALUE HERE/run.sh"
    assert not steps(folder, check + TRAIN, BASE="/base")


def test_all_variables_that_it_demands_are_named_at_once(folder):
    names = [f"V{number}" for number in range(8)]
    demands = "".join(f': "${{{name}:?{name} is required}}"\n' for name in names)
    demands += 'if [ "$V0" = other ]; then\n  : "${OTHER:?is required}"\nfi\n'
    options = " ".join(f"--env {name}=VALUE" for name in names[1:])
    assert f"rldbg run {options} HERE/run.sh" in steps(folder, demands + TRAIN, V0="given")
    assert [each.command.program.name for each in explained(folder, demands + TRAIN).trainings] == ["train_ppo.py"]


def test_an_argument_is_told_from_a_variable(folder):
    usage = 'if [ $# -lt 1 ]; then echo "usage: run.sh NAME"; exit 1; fi\n'
    assert steps(folder, usage + TRAIN) == "give it its arguments: rldbg run HERE/run.sh ARGUMENT ..."
    by_name = 'NAME=$1\nif [ -z "$NAME" ]; then exit 1; fi\n'
    assert steps(folder, by_name + TRAIN) == "give it its arguments: rldbg run HERE/run.sh ARGUMENT ..."
    assert not steps(folder, by_name + TRAIN, "tiny")


def test_a_command_that_fails_is_shown(folder):
    text = "set -e\nrun() {\n  \"$@\" | awk '{print $NF, $1}'\n  false\n}\nrun date\n" + TRAIN
    found = explained(folder, text).hazards
    early = next(hazard for hazard in found if hazard.id == "launch.stops-early")
    assert early.fix == ("see why this fails here: false",)


def test_a_repository_that_is_expected_elsewhere_is_named(folder):
    found = steps(folder, "set -e\nsource /nowhere/repo/models/tiny.sh\n" + TRAIN)
    assert found.startswith("run it where /nowhere/repo is this folder (ln -s HERE /nowhere/repo)")
    found = steps(folder, f"set -e\nsource {folder}/scripts/models/tiny.sh\n" + TRAIN)
    assert found.endswith("does not exist, models/tiny.sh does")
    assert "provide HERE/gone.sh" in steps(folder, f"set -e\nsource {folder}/gone.sh\n" + TRAIN)


def test_a_program_below_a_variable_without_value_names_it(folder):
    text = 'SOURCE=${REPO}/examples/train_ppo.py\nCMD="python $SOURCE --run_name x"\n$CMD\n'
    assert steps(folder, text) == "set REPO: rldbg run --env REPO=VALUE HERE/run.sh"
    assert steps(folder, TRAIN.replace("train_ppo", "gone")).startswith("check the path")


def test_a_placeholder_that_the_shell_takes_for_a_file_is_named(folder):
    text = "python train_ppo.py --run_name <your experiment name> --lr 1\n"
    assert steps(folder, text) == "replace <your experiment name> in the script"


def test_what_pip_is_asked_is_answered(folder):
    text = """set -eo pipefail
VERSION=$(python -m pip --version | awk '{print $2}')
LISTED="$(pip list | awk '/^pip / {print $NF}')"
pip install --quiet something
python train_ppo.py --run_name "v$VERSION" --listed "v$LISTED"
"""
    (training,) = explained(folder, text).trainings
    words = training.command.call.argv
    assert [word[:1] for word in words[3::2]] == ["v", "v"] and "v" not in words


def test_what_the_script_has_matched_is_kept(folder):
    text = '[[ model-7B =~ ([0-9]+)B ]]\necho "$HOME" >/dev/null\nSIZE=${BASH_REMATCH[1]}\n'
    (training,) = explained(folder, text + "python train_ppo.py --size $SIZE\n").trainings
    assert training.command.call.argv[-1] == "7"


def test_a_real_run_is_refused_with_what_to_try(folder):
    with pytest.raises(UsageError) as refused:
        refuse_unarmable(explained(folder, ": ${BASE:?must be set}\n" + TRAIN))
    assert f"rldbg run --env BASE=VALUE {folder}/run.sh" in refused.value.hint
    with pytest.raises(UsageError) as refused:
        refuse_unarmable(explained(folder, "exit 3\n"))
    assert refused.value.hint


def test_programs_that_do_not_train_are_named(folder):
    found = explained(folder, "python build_index.py\npython eval_embodied_agent.py\n").hazards
    (nothing,) = [hazard for hazard in found if hazard.id == "launch.no-training"]
    assert nothing.evidence == (
        "it starts build_index.py: its name does not say that it trains",
        "it starts eval_embodied_agent.py: a program of RLinf that does not train",
    )


def test_a_script_that_fails_after_a_program_that_does_not_train_has_no_training(folder):
    (folder / "run_eval.py").touch()
    found = explained(folder, "set -e\nuv run run_eval.py > log\ngrep score log\n").hazards
    assert [hazard.id for hazard in found if hazard.id.startswith("launch.training")] == []
    (nothing,) = [hazard for hazard in found if hazard.id == "launch.no-training"]
    assert nothing.evidence[0] == "it starts run_eval.py: a program of NeMo RL that does not train"


def test_a_trap_that_runs_as_the_script_ends_is_not_where_it_ended(folder):
    trap = "set -u\nclean() {\n  rm -rf out\n}\ntrap 'clean' EXIT\n"
    for check in ('if [ -z "${BASE:-}" ]; then\n  exit 1\nfi\n', 'ROOT="$BASE/x"\n'):
        found = explained(folder, trap + check + TRAIN).hazards
        (early,) = [hazard for hazard in found if hazard.id == "launch.stops-early"]
        assert early.where.endswith(":7" if "exit" in check else ":6")
        assert early.fix == (f"set BASE: rldbg run --env BASE=VALUE {folder}/run.sh",)


def test_a_file_that_the_script_goes_on_without_is_named(folder):
    """The training command is made of what a file of another folder sets."""
    for text in ("torchrun --nproc_per_node 8 -m $command\n", 'srun bash -c "torchrun -m $command"\n'):
        (why,) = explained(folder, f"source ./commands.sh\n{text}echo done\necho well done\necho\n").hazards
        assert any("commands.sh: No such file or directory" in line for line in why.evidence)


def test_a_batch_script_ends_where_it_ends(folder):
    script = folder / "job.slurm"
    script.write_text(f"#!/bin/bash\n#SBATCH -N 1\nset -u\nROOT=$BASE/x\nsrun {TRAIN}")
    kept = {"HOME": str(folder), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    found = explain(Request(("sbatch", str(script)), None, folder, kept), folder / "out")
    (early,) = [hazard for hazard in found.hazards if hazard.id == "launch.stops-early"]
    assert early.where == f"{script}:4"
    assert [each.command.program.name for each in found.trainings] == ["train_ppo.py"]


def test_a_command_of_several_lines_begins_where_its_first_one_is(folder):
    text = 'PY="python train_ppo.py"\n$PY \\\n  --run_name x \\\n  --lr 1 2>&1 | tee log\n'
    found = explained(folder, text)
    assert [each.command.call.line for each in found.trainings] == [2]
    assert {"launch.shared-log", "launch.exit-status-lost"} <= {hazard.id for hazard in found.hazards}


def test_a_program_that_a_variable_names_which_nobody_sets_is_named(folder):
    asks = "set -u\n$COMMAND \\\n  --run_name x\n"
    assert steps(folder, asks) == "set COMMAND: rldbg run --env COMMAND=VALUE HERE/run.sh"
