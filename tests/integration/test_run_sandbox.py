"""The sandbox of a dry run: scripts that try to do harm, under each isolation that this machine offers."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from rldbg.launch.dry_run import execution
from rldbg.launch.dry_run.execution import METHODS, execute

HARMFUL = """\
set -u
echo written > "$VICTIM/by_redirect"
touch "$VICTIM/by_touch"
/usr/bin/env touch "$VICTIM/by_path"
cp "$0" "$VICTIM/by_cp"
rm -rf "$VICTIM/precious"
/bin/rm -rf "$VICTIM/precious"
mv "$VICTIM/precious" "$VICTIM/moved"
python3 -c "open('$VICTIM/by_python', 'w')"
python3 - <<EOF
import os
os.mkdir('$VICTIM/by_stdin')
EOF
kill -9 $BYSTANDER
(exec 3<>/dev/tcp/127.0.0.1/$PORT) && echo connected > "$RLDBG_DRY_RESULTS/connected"
python3 -c "import socket; socket.create_connection(('127.0.0.1', $PORT)); open('$RLDBG_DRY_RESULTS/connected', 'w')"
python train.py --done
"""


@pytest.fixture
def bystander():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.send_signal(signal.SIGTERM)
    process.wait()


@pytest.fixture
def listener():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def run_harmful(tmp_path: Path, bystander, listener, methods, argv=("bash",)):
    victim = tmp_path / "victim"
    (victim / "precious").mkdir(parents=True)
    (victim / "precious" / "data").write_text("x")
    script = tmp_path / "harm.sh"
    script.write_text(HARMFUL)
    environment = dict(os.environ) | {
        "VICTIM": str(victim),
        "BYSTANDER": str(bystander.pid),
        "PORT": str(listener.getsockname()[1]),
    }
    result = execute([*argv, str(script)], cwd=tmp_path, script=script, environment=environment, methods=methods)
    return result, victim


@pytest.mark.parametrize("method", METHODS[:2])
def test_nothing_outside_changes(tmp_path, bystander, listener, method):
    result, victim = run_harmful(tmp_path, bystander, listener, [method])
    if result.isolation != method:
        pytest.skip(f"not allowed on this machine: {dict(result.failures)}")

    assert [path.name for path in victim.iterdir()] == ["precious"]
    assert (victim / "precious" / "data").read_text() == "x"
    assert bystander.poll() is None
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert ("python", "train.py", "--done") in [call.argv for call in result.calls]


def test_the_script_sees_what_it_wrote_itself(tmp_path):
    script = tmp_path / "s.sh"
    script.write_text('mkdir -p out/deep && echo arg > out/deep/f && cd out/deep && python train.py "$(cat f)"\n')

    result = execute(
        ["bash", str(script)], cwd=tmp_path, script=script, environment=dict(os.environ), methods=["namespaces"]
    )

    if result.isolation == "none":
        pytest.skip("no namespaces on this machine")
    (call,) = result.calls
    assert call.argv == ("python", "train.py", "arg")
    assert call.cwd == str(tmp_path / "out" / "deep")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_plain_user_has_the_same_sandbox(tmp_path_factory):
    """As a user without any privilege, with files of others in the way."""
    folder = tmp_path_factory.mktemp("plain")
    for parent in (folder, *folder.parents):
        if parent.owner() == "root" and parent != Path("/") and not parent.stat().st_mode & 0o005:
            parent.chmod(parent.stat().st_mode | 0o055)
    shutil.chown(folder, 65534, 65534)
    script = folder / "s.sh"
    script.write_text(
        "echo x > /tmp/rldbg-left-behind; echo y > here; python train.py $(cat here /tmp/rldbg-left-behind)\n"
    )
    script.chmod(0o644)
    program = (
        "import os, sys\nos.setgid(65534); os.setuid(65534)\nsys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\nfrom rldbg.launch.dry_run.execution import execute\n"
        "s = Path(sys.argv[2])\n"
        "e = {'PATH': '/usr/bin:/bin', 'HOME': '/nonexistent'}\n"
        "r = execute(['bash', str(s)], cwd=s.parent, script=s, environment=e)\n"
        "print(r.isolation, [c.argv for c in r.calls])\n"
    )
    source = str(Path(__file__).parents[2] / "src")

    # The system's own Python, because the plain user may not read the one of this environment.
    system = "/usr/bin/python3"
    if not Path(system).exists():
        pytest.skip("no system Python")
    answer = subprocess.run(
        [system, "-c", program, source, str(script)], capture_output=True, text=True, timeout=60, check=False
    )

    if "namespaces" not in answer.stdout:
        pytest.skip(f"plain users have no namespaces here: {answer.stdout} {answer.stderr[-300:]}")
    assert answer.stdout.strip() == "namespaces [('python', 'train.py', 'y', 'x')]"
    assert not Path("/tmp/rldbg-left-behind").exists()
    assert not (folder / "here").exists()


def test_limits_that_the_user_may_raise_are_no_reason_to_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "may_raise_limits", lambda: True)
    script = tmp_path / "train.sh"
    script.write_text("set -e\nulimit -Sn 500\nulimit -Hn 1000\nulimit -n 2000\npython train.py $(ulimit -Sn)\n")
    done = execute(["bash", str(script)], cwd=tmp_path, script=script, environment=dict(os.environ))
    assert [call.argv[1:2] for call in done.calls] == [("train.py",)]


def test_where_no_sandbox_is_to_be_had_nothing_is_started(tmp_path):
    script = tmp_path / "s.sh"
    script.write_text(f"touch {tmp_path}/started\n")

    result = execute(["bash", str(script)], cwd=tmp_path, script=script, environment=dict(os.environ), methods=[])

    assert result.isolation == "none"
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("loop", "ended"),
    [
        ("while :; do sleep 5; done", "waiting"),
        # The folder of the stubs is in PATH several times then.
        ("for i in 1 2 3 4; do PATH=/$i:$PATH; done; while :; do PATH=/5:$PATH sleep 5; done", "waiting"),
        ("while :; do :; done", "too long"),
        ("mkfifo never; read line < never", "too long"),
    ],
)
def test_a_script_that_never_ends_is_ended(tmp_path, loop, ended):
    script = tmp_path / "s.sh"
    script.write_text(f"python train.py\n{loop}\n")

    result = execute(
        ["bash", str(script)],
        cwd=tmp_path,
        script=script,
        environment=dict(os.environ),
        limit_s=12 if ended == "waiting" else 1.5,
    )

    assert result.ended == ended
    assert result.calls


WORKS_ON = (
    "sleep infinity &\nend=$((SECONDS + 2))\nuntil ((SECONDS >= end)); do :; done\npython train.py --done\nwait\n"
)
TURNS_ON = "sleep infinity &\nfor i in 1 2 3; do sleep 60; done\npython train.py --done\nwait\n"
IDLES = "(while :; do sleep 60; done) &\npython train.py --done\nsleep infinity\n"


@pytest.mark.parametrize("script", [WORKS_ON, TURNS_ON, IDLES])
def test_what_a_script_starts_after_others_sleep_for_ever_is_seen(tmp_path: Path, script: str) -> None:
    file = tmp_path / "train.sh"
    file.write_text(script)
    done = execute(["bash", str(file)], cwd=tmp_path, script=file, environment=os.environ, limit_s=120.0)
    if done.isolation == "none":
        pytest.skip("this machine allows no sandbox")
    assert ("train.py", "--done") in [call.argv[1:] for call in done.calls]
    assert done.ended == "waiting"
