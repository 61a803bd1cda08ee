"""`rldbg run` for real: what the interpreter receives, exit codes, signals, the run folder."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import command_line
import pytest

TRAIN = """\
import json, os, signal, sys
with open(os.environ["SEEN"], "a") as seen:
    post_mortem = os.environ.get("RAY_DEBUG_POST_MORTEM")
    seen.write(json.dumps({"orig": sys.orig_argv, "argv": sys.argv[1:], "post_mortem": post_mortem}) + "\\n")
if "wait=1" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
    print("ready", flush=True)
    signal.pause()
if "die=1" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
if "read=1" in sys.argv:
    print("read:" + sys.stdin.readline().strip())
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def project(tmp_path: Path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "main_ppo.py").write_text(TRAIN)
    return tmp_path


def rldbg(project: Path, *words: str, **more: str):
    return command_line.rldbg(project, *words, SEEN=str(project / "seen"), **more)


def seen(project: Path) -> list[dict]:
    return [json.loads(line) for line in (project / "seen").read_text().splitlines()]


def script(project: Path, text: str, name: str = "train.sh") -> str:
    (project / name).write_text(text)
    return name


SHAPES = """\
#!/usr/bin/env bash
set -xeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./names.sh
ARGS=(
  actor_rollout_ref.model.path=m   # the model
  trainer.experiment_name="${exp_name}"
  'data.files=["a b.parquet","c"]'
)
PY=$(command -v python3)
python3 -m pkg.main_ppo shape=array "${ARGS[@]}" $@ 2>&1 | tee log.txt
CMD="python3 -u -m pkg.main_ppo shape=string ${ARGS[0]} trainer.experiment_name=$exp_name"
$CMD
eval "$CMD shape.evaluated='x y'"
read -r -d '' TEXT <<EOF || true
pkg.main_ppo shape=heredoc \\
   ${ARGS[0]}
EOF
env EXTRA=1 python3 -m $TEXT
$PY -m pkg.main_ppo shape=absolute ${ARGS[0]}
for n in 1 2; do OMP_NUM_THREADS=1 python3 pkg/main_ppo.py shape=loop$n ${ARGS[0]}; done
bash -c "python3 -m pkg.main_ppo shape=nested ${ARGS[0]}"
export PYTHONPATH=/replaced
python3 -m pkg.main_ppo shape=replaced ${ARGS[0]} name=$(printf 'w\\xc3\\xa4r\\nlines')
PYTHONPATH=/in/front python -m pkg.main_ppo shape=in_front ${ARGS[0]}
"""


def test_the_argv_shown_is_the_argv_received_plus_the_changes_listed(project):
    (project / "names.sh").write_text("exp_name='Demo-1.5B'\n")
    name = script(project, SHAPES)

    dry = rldbg(project, "run", "--dry-run", "--json", name, "cli=last")
    assert dry.returncode == 0, dry.stderr
    assert not (project / "seen").exists()
    assert not (project / "log.txt").exists()
    real = rldbg(project, "run", name, "cli=last")
    assert real.returncode == 0, real.stderr

    shown = [command for command in json.loads(dry.stdout)["commands"] if command["kind"] == "training"]
    received = seen(project)
    assert [command["argv"] for command in shown] == [process["orig"] for process in received]
    assert [command["armed_arguments"] for command in shown] == [process["argv"] for process in received]
    for process in received:
        assert "++trainer.total_epochs=1" in process["argv"]
        assert process["post_mortem"] == "1"
    assert "++trainer.experiment_name=Demo-1.5B-Debug" in received[0]["argv"]
    assert [command["line"] for command in shown][:3] == [11, 13, 14]
    assert "launch.not-armed" not in real.stderr


STARTERS = f"""\
#!/usr/bin/env bash
PY={sys.executable}
exec > log.txt 2>&1
nohup $PY -m pkg.main_ppo started=nohup
env -i PATH="$PATH" EXTRA=1 "$PY" -m pkg.main_ppo started=env
timeout 1h nice -n 5 setsid --wait $PY -m pkg.main_ppo started=nice
command "$PY" -m pkg.main_ppo started=command
command -v "$PY" > where
(exec "$PY" -m pkg.main_ppo started=subshell)
bash -c "exec $PY -m pkg.main_ppo started=shell"
echo started=xargs | xargs -n 1 $PY -m pkg.main_ppo
find . -name train.sh -exec "$PY" -m pkg.main_ppo started=find \\;
flock lock $PY -m pkg.main_ppo started=flock
printf '#!/bin/sh\n%s -m pkg.main_ppo $1\n' "$PY" > inner && chmod +x inner
./inner started=posix
/bin/sh inner started=sh
nohup ./inner started=behind
printf 'all:\n\t%s -m pkg.main_ppo started=make\n' "$PY" | make -f -
A=1 exec -a trainer "$PY" -m pkg.main_ppo started=exec
"""


def test_an_interpreter_that_another_word_starts_by_its_path_does_not_run_in_a_dry_run(project):
    name = script(project, STARTERS)
    dry = rldbg(project, "run", "--dry-run", "--json", name)
    assert dry.returncode == 0, dry.stderr
    assert not (project / "seen").exists()
    shown = [command["argv"][-1] for command in json.loads(dry.stdout)["commands"] if command["kind"] == "training"]
    words = "nohup env nice command subshell shell xargs find flock posix sh behind make exec"
    assert shown == [f"started={word}" for word in words.split()]


@pytest.mark.parametrize("code", ["0", "7"])
def test_exit_code_passes_through(project, code):
    result = rldbg(project, "run", "--", "python", "-m", "pkg.main_ppo", "actor_rollout_ref.x=1", CODE=code)

    assert result.returncode == int(code)
    (run,) = (project / ".rldbg" / "runs").iterdir()
    facts = json.loads((run / "run.json").read_text())
    assert facts["exit_code"] == int(code)
    assert facts["command"][0] == "python"
    assert facts["framework"] == "verl"
    assert len(list((run / "armed").glob("*.json"))) == 1


def test_a_command_that_is_named_runs_whatever_it_is(project):
    own = rldbg(project, "run", "--no-doctor", "--", "python3", "-c", "import sys; print('ran'); sys.exit(5)")
    shell = rldbg(project, "run", "--no-doctor", "--", "bash", "-c", "echo ran; exit 6")

    assert [(done.returncode, done.stdout) for done in (own, shell)] == [(5, "ran\n"), (6, "ran\n")]
    assert "launch.no-training" in own.stderr


def test_death_by_a_signal_shows_as_in_a_shell(project):
    assert rldbg(project, "run", "--", "python", "pkg/main_ppo.py", "die=1").returncode == 128 + signal.SIGKILL


def test_signals_and_stdin_reach_the_command(project):
    assert "read:hello" in rldbg(project, "run", "--", "python", "pkg/main_ppo.py", "read=1", stdin="hello\n").stdout
    with subprocess.Popen(
        [*command_line.RLDBG, "run", "--", "python", "pkg/main_ppo.py", "wait=1"],
        cwd=project,
        env=command_line.clean_environment(SEEN=str(project / "seen")),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 42


def test_json_is_alone_on_stdout(project):
    result = rldbg(
        project, "run", "--json", "--run", "here", "--", "python", "pkg/main_ppo.py", "read=1", stdin="x\n", CODE="3"
    )

    body = json.loads(result.stdout)
    assert result.returncode == body["exit_code"] == 3
    assert body["schema_version"] == 1
    # A process this short-lived may end before its agent has said hello.
    assert isinstance(body["processes"], list)
    assert (project / "here" / "run.json").exists()
    assert "read:x" in result.stderr


def test_interpreter_without_start_up_gets_its_options_by_the_script_s_arguments(project):
    name = script(project, 'python3 -I pkg/main_ppo.py actor_rollout_ref.x=1 trainer.experiment_name=e "$@"\n')

    result = rldbg(project, "run", name)

    assert seen(project)[0]["argv"][2:4] == ["++trainer.experiment_name=e-Debug", "++trainer.total_epochs=1"]
    assert "-I, which ignores PYTHONPATH" in result.stderr


def test_own_options_win_and_secrets_stay_out_of_the_run_folder(project):
    result = rldbg(
        project,
        "run",
        *("--set", "trainer.total_epochs=5", "--set", "a.b=c", "--name-suffix", "", "--env", "MINE=1"),
        *("--", "python", "pkg/main_ppo.py", "actor_rollout_ref.x=1", "trainer.wandb_api_key=verysecretvalue"),
    )

    assert result.returncode == 0, result.stderr
    assert seen(project)[0]["argv"][2:] == [
        "++actor_rollout_ref.nccl_timeout=86400",
        "++trainer.total_epochs=5",
        "++a.b=c",
    ]
    written = [file for file in (project / ".rldbg").rglob("*") if file.is_file()]
    assert not [file for file in written if "verysecretvalue" in file.read_text(errors="replace")]


@pytest.mark.parametrize("flag", ["--skip-kills", "--tame"])
def test_kills_of_the_script_are_skipped_under_both_names_of_the_flag(project, flag):
    name = script(
        project, "pkill -9 -f pkg.nosuch python\nray stop --force\npython -m pkg.main_ppo actor_rollout_ref.x=1\n"
    )

    result = rldbg(project, "run", flag, name)

    assert result.returncode == 0
    assert "skipped: pkill -9 -f pkg.nosuch python" in result.stderr
    assert "skipped: ray stop --force" in result.stderr
    assert "launch.kills-python" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["missing.sh"], 2, "script not found"),
        (["broken.sh"], 2, "fill in its placeholders"),
        (["nothing.sh"], 2, "no training command"),
        (["asks.sh"], 2, "MODEL"),
        (["--framework", "verll", "ok.sh"], 2, "did you mean 'verl'"),
        (["--set", "a=1", "--set", "a=2", "ok.sh"], 2, "conflicting values"),
        (["--steps", "1", "--epochs", "1", "ok.sh"], 2, "one of them"),
        (["--set", "nonsense", "ok.sh"], 2, "NAME=VALUE"),
        (["--break", "nowhere", "ok.sh"], 2, "FILE:LINE"),
        (["--", "nosuchcommand"], 3, "command not found"),
        ([], 2, "nothing to run"),
    ],
)
def test_bad_input_is_refused_with_a_hint(project, words, code, says):
    script(project, "P=<PATH>\n", "broken.sh")
    script(project, "echo hi\n", "nothing.sh")
    script(project, 'set -u\necho "$MODEL"\npython -m pkg.main_ppo m=$MODEL\n', "asks.sh")
    script(project, "python -m pkg.main_ppo actor_rollout_ref.x=1\n", "ok.sh")

    result = rldbg(project, "run", *words)

    assert result.returncode == code, result.stderr
    assert says in result.stderr
    assert "try:" in result.stderr
    assert not (project / "seen").exists()


def test_the_guide_s_launcher(project):
    missing = subprocess.run(
        [sys.executable, "-m", "rldbg.debug_ray_dapo"],
        cwd=project,
        env=command_line.clean_environment(SEEN=str(project / "seen")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert missing.returncode == 2
    assert "script not found: scripts/train/run_archer_qwen2.5_1.5b_code_single.sh" in missing.stderr

    folder = project / "scripts" / "train"
    folder.mkdir(parents=True)
    (folder / "run_archer_qwen2.5_1.5b_code_single.sh").write_text(
        "exp_name='Archer-Qwen2.5-1.5B-Single'\n"
        'python -m pkg.main_ppo actor_rollout_ref.x=1 trainer.experiment_name="$exp_name" trainer.total_epochs=10\n'
    )
    result = subprocess.run(
        [sys.executable, "-m", "rldbg.debug_ray_dapo"],
        cwd=project,
        env=command_line.clean_environment(SEEN=str(project / "seen"), CODE="5"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 5
    assert result.stdout.splitlines()[:2] == [
        "🚀 Creating Ray DAPO debugging script...",
        "📝 This will run the training with Ray debugging enabled",
    ]
    (process,) = seen(project)
    assert process["post_mortem"] == "1"
    assert "++trainer.experiment_name=Archer-Qwen2.5-1.5B-Single-Debug" in process["argv"]
    assert "++trainer.total_epochs=1" in process["argv"]
