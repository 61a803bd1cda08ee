"""`rldbg doctor` as a user types it."""

import json
import re

import pytest

from rldbg.cli.application import run

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


@pytest.fixture
def doctor(capsys):
    def call(*words):
        code = run(["doctor", *map(str, words)])
        output = capsys.readouterr()
        return code, output.out, output.err

    return call


def test_a_found_cause_is_exit_1_with_evidence_and_fix(doctor, tmp_path):
    (tmp_path / "a.log").write_text("fine\n" + OOM)
    code, out, _err = doctor(tmp_path / "a.log", "--json")
    body = json.loads(out)
    assert (code, body["schema_version"], body["verdict"]) == (1, 1, "found")
    first = body["root_causes"][0]
    assert first["id"] == "torch-cuda-oom"
    assert first["evidence"][0] | {"text": OOM.strip()} == {
        "file": str(tmp_path / "a.log"),
        "line": 2,
        "text": OOM.strip(),
    }
    assert first["fix"]
    assert set(body) >= {"fallout", "probes", "next"}
    code, out, _err = doctor(tmp_path / "a.log")
    assert code == 1
    assert "root cause: PyTorch ran out of GPU memory (torch-cuda-oom)" in out


def test_healthy_is_exit_0_and_unknown_exit_1(doctor, tmp_path):
    (tmp_path / "a.log").write_text("all is well\n")
    assert doctor(tmp_path / "a.log")[0] == 0
    (tmp_path / "empty.log").touch()
    code, out, _err = doctor(tmp_path / "empty.log")
    assert (code, "nothing was read" in out) == (4, True)
    (tmp_path / "b.log").write_text("SomeOddException x\nValueError: odd thing\n")
    code, out, _err = doctor(tmp_path / "b.log")
    assert code == 1
    assert "the failure begins with ValueError: odd thing; no known failure matches it" in out
    (tmp_path / "c.log").write_text("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing it\n")
    assert "the cause is not in these logs" in doctor(tmp_path / "c.log")[1]


def test_a_log_cannot_drive_the_terminal(doctor, tmp_path):
    (tmp_path / "a.log").write_text("\x1b]0;owned\x07\x1b[2J[bold]" + OOM)
    _code, out, _err = doctor(tmp_path / "a.log")
    assert "\x1b]0" not in out
    assert "[bold]" in out


def test_secrets_in_quoted_lines_are_redacted(doctor, tmp_path):
    (tmp_path / "a.log").write_text(f"HF_TOKEN=hf_{'a' * 30} {OOM}")
    assert "hf_aaaa" not in doctor(tmp_path / "a.log", "--json")[1]


def test_nothing_to_read_is_an_error_with_a_hint(doctor, tmp_path):
    code, out, _err = doctor(tmp_path / "nothing.log", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (4, "incomplete")
    (tmp_path / "empty.log").touch()
    assert doctor(tmp_path / "empty.log")[0] == 4
    assert doctor("--watch")[0] == 2


def test_list_explain_and_an_unknown_id(doctor):
    code, out, _err = doctor("--list", "--json")
    assert code == 0
    assert len(json.loads(out)["entries"]) > 150
    code, out, _err = doctor("--explain", "gloo-recv-timeout")
    assert (code, "unbound_buffer.cc" in out) == (0, True)
    assert "limits the rate" in doctor("--explain", "hf-hub-unreachable")[1]
    code, _out, err = doctor("--explain", "gloo-recv-timeouts")
    assert (code, "gloo-recv-timeout" in err) == (2, True)


def test_a_fix_is_shown_and_only_made_with_yes(doctor, tmp_path, monkeypatch):
    monkeypatch.setenv("RLDBG_HOME", str(tmp_path / "home"))
    code, out, _err = doctor("--fix", "too-many-open-files")
    assert (code, "raise the soft limits" in out, (tmp_path / "home").exists()) == (0, True, False)
    assert doctor("--fix", "too-many-open-files", "--yes")[0] == 0
    assert json.loads((tmp_path / "home" / "run_settings.json").read_text())["raise_limits"] is True
    code, _out, err = doctor("--fix", "gpu-ecc")
    assert (code, "by hand" in err) == (2, True)


def test_the_machine_is_probed(doctor):
    code, out, _err = doctor("--no-nodes", "--json")
    assert code in (0, 1)
    assert len(json.loads(out)["probes"]) > 30


def test_every_check_is_counted_also_one_that_does_not_apply(doctor):
    probes = json.loads(doctor("--no-nodes", "--json")[1])["probes"]
    skipped = sum(probe["status"] == "skip" for probe in probes)
    last = doctor("--no-nodes")[1].strip().splitlines()[-1]
    passed, total, bad = map(int, re.findall(r"\d+", last)[:3])
    assert total == passed + bad + skipped
    assert f"{skipped} do not apply here" in last or not skipped


def test_entries_of_ones_own_are_used(doctor, tmp_path):
    log = tmp_path / "odd.log"
    log.write_text(
        'Traceback (most recent call last):\n  File "/a.py", line 1, in f\nOddError: the moon is full today\n'
    )
    code, out, _err = doctor("--new-entry", log)
    assert code == 0
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "own.yaml").write_text(out)
    code, out, _err = doctor(log, "--knowledge", tmp_path / "k", "--json")
    assert json.loads(out)["root_causes"][0]["id"].startswith("odderror")
