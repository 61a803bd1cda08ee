"""show, verify and convert as a user runs them: real processes, exit codes, JSON, terminals and pipes."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rldbg
from rldbg.core import Identity

_RLDBG = [sys.executable, "-c", "from rldbg.cli import main; main()"]


def run(*arguments, **environment):
    return subprocess.run(
        [*_RLDBG, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


@pytest.fixture
def recording(tmp_path) -> Path:
    root = tmp_path / "recording"
    recorder = rldbg.Recorder(root, identity=Identity(rank=0))
    for step in range(2):
        samples = [("g/0", 0), ("g/0", 1)]
        recorder.record(
            "trajectory",
            step=step,
            samples=samples,
            tokens=[[11, 12, 13, 14], [11, 12, 15]],
            loss_mask=[[0, 0, 1, 1], [0, 0, 1]],
            logprobs=[[0.0, 0.0, -0.25, -0.5], [0.0, 0.0, -1.5]],
            reward=[1.0, float("nan")],
        )
        recorder.record(
            "forward_data",
            step=step,
            micro=0,
            samples=samples,
            log_probs=np.array([[-0.25, -0.5], [-1.5, 0]], np.float32),
            entropy=np.ones((2, 2), np.float32),
            response_mask=np.array([[1, 1], [1, 0]]),
        )
    assert recorder.close()
    return root


def test_show_json_has_the_promised_shape(recording):
    done = run("show", recording, "--json")
    assert done.returncode == 0
    body = json.loads(done.stdout)
    assert set(body) == {"schema_version", "layout", "kinds", "samples", "health"}
    assert (body["schema_version"], body["layout"], body["samples"], body["health"]) == (1, "rldbg", 4, [])
    assert set(body["kinds"]) == {"trajectory", "forward_data"}
    assert set(body["kinds"]["trajectory"]) == {"steps", "ranks", "micros", "records", "bytes", "parts"}
    assert body["kinds"]["trajectory"]["steps"] == [0, 1]


def test_show_for_people_is_a_table_without_escapes_in_a_pipe(recording):
    done = run("show", recording)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "forward_data" in done.stdout
    assert "no problems found" in done.stdout


def test_show_in_a_terminal_has_colour_unless_it_is_switched_off(recording):
    def in_terminal(**environment):
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            [*_RLDBG, "show", str(recording)], stdout=follower, stderr=follower, env={**os.environ, **environment}
        )
        os.close(follower)
        output = b""
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:
                break
            if not chunk:
                break
            output += chunk
        os.close(leader)
        assert process.wait(timeout=60) == 0
        return output

    assert b"\x1b[36m" in in_terminal(TERM="xterm", COLUMNS="100")
    assert b"\x1b[" not in in_terminal(TERM="xterm", NO_COLOR="1")


def test_show_fields_of_records(recording):
    done = run("show", recording, "--step", 1, "--kind", "trajectory", "--rank", 0)
    assert done.returncode == 0
    assert "2×(3–4)" in done.stdout
    assert "1 NaN" in done.stdout
    body = json.loads(run("show", recording, "--step", 1, "--kind", "trajectory", "--json").stdout)
    fields = {field["name"]: field for field in body["records"][0]["fields"]}
    assert (fields["reward"]["nan"], fields["reward"]["max"]) == (1, 1.0)
    absent = run("show", recording, "--step", 7)
    assert absent.returncode == 4
    assert "trajectory" in absent.stderr


def test_show_one_sample_token_by_token(recording):
    done = run("show", recording, "--sample", "g/0/1", "--step", 1)
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert rows == [["0", "11", "0"], ["1", "12", "0"], ["2", "15", "●", "-1.5", "-1.5", "1"]]
    body = json.loads(run("show", recording, "--sample", "g/0/1", "--step", 1, "--json").stdout)
    assert body["tokens"] == [11, 12, 15]
    assert body["trained"] == [False, False, True]
    assert body["columns"]["log_probs"] == [None, None, -1.5]
    assert run("show", recording, "--sample", "g/0/1").returncode == 2, "it is in two steps"
    assert run("show", recording, "--sample", "nonsense").returncode == 2
    assert run("show", recording, "--sample", "g9/9", "--step", 0).returncode == 4


def test_show_lets_no_file_drive_the_terminal(tmp_path):
    row = {"input": "a\x1b[31mred", "output": "b\x1b]0;title\x07 \u3000\xa0ü", "score": 1.0, "uid": "u\x1b[2J"}
    (tmp_path / "1.jsonl").write_text(json.dumps(row) + "\n")
    for arguments in ([], ["--step", "1"], ["--sample", "u\x1b[2J/0"]):
        done = run("show", tmp_path, *arguments)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout
        assert "\x07" not in done.stdout
    assert "a\\x1b[31mred" in done.stdout


def test_show_tokens_as_text(recording, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {f"word{number}\x1b": number for number in range(20)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="word0\x1b")).save(
        str(tmp_path / "tokenizer.json")
    )
    done = run("show", recording, "--sample", "g/0/0", "--step", 0, "--tokenizer", tmp_path)
    assert done.returncode == 0
    assert "word13" in done.stdout
    assert "\x1b" not in done.stdout, "a token cannot drive the terminal"


def test_show_a_closed_pipe_is_no_error(recording):
    command = " ".join([*(f"'{part}'" for part in _RLDBG), "show", str(recording), "| true"])
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr


def test_verify_clean_broken_and_nothing(recording, tmp_path):
    clean = run("verify", recording, "--json")
    assert clean.returncode == 0
    assert json.loads(clean.stdout) == {"schema_version": 1, "ok": True, "findings": []}
    assert "all complete" in run("verify", recording).stdout
    path = recording / "trajectory" / "step_000001.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    broken = run("verify", recording, "--json")
    assert broken.returncode == 1
    body = json.loads(broken.stdout)
    assert body["ok"] is False
    assert [finding["id"] for finding in body["findings"]] == ["truncated-file"]
    assert set(body["findings"][0]) == {"id", "severity", "where", "evidence", "cause", "fix"}
    assert run("show", recording).returncode == 1
    text = run("verify", recording)
    assert "truncated-file" in text.stdout
    assert "→" in text.stdout
    (tmp_path / "empty").mkdir()
    nothing = run("verify", tmp_path / "empty", "--json")
    assert nothing.returncode == 4
    assert json.loads(nothing.stdout)["error"]["kind"] == "incomplete"


def test_verify_when_not_one_record_reads(recording):
    for path in (*recording.glob("*/*.safetensors"),):
        path.write_bytes(b"")
    assert run("verify", recording).returncode == 4


def test_convert_there_and_back(recording, tmp_path):
    done = run("convert", recording, tmp_path / "pt", "--to", "nexrl-pt")
    assert done.returncode == 0
    assert "4 records in 4 files" in done.stdout
    assert (tmp_path / "pt" / "forward_data" / "step_000001_rank0_micro0.pt").is_file()
    back = run("convert", tmp_path / "pt", tmp_path / "back", "--to", "safetensors", "--kind", "trajectory", "--json")
    assert json.loads(back.stdout)["records"] == 2
    assert run("verify", tmp_path / "back").returncode == 0
    again = run("convert", recording, tmp_path / "pt", "--to", "nexrl-pt")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert run("convert", recording, tmp_path / "pt", "--to", "parquet", "--overwrite").returncode == 0
    assert run("convert", recording, tmp_path / "x", "--to", "xml").returncode == 2


def test_a_recording_is_read_without_torch(recording):
    code = (
        "import sys, rldbg; r = rldbg.open(sys.argv[1]); list(r.records()); r.verify(); r.summary();"
        "print([m for m in ('torch', 'pandas', 'transformers', 'ray', 'pyarrow', 'fsspec') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(recording)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"
