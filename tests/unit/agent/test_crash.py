"""Crash files and the dead frames behind them: the chain, the locals, no secrets, any Python version."""

import json
import os
import stat

import pytest

from rldbg.agent import snake_case
from rldbg.agent.crash import crash_record, is_told_by_child, write_crash
from rldbg.agent.post_mortem_adapter import PostMortemAdapter
from rldbg.agent.redaction import load_redact
from rldbg.core import redaction


def _inner(numerator, denominators):
    api_key = "sk-aaaaaaaaaaaaaaaaaaaaaaaa"
    config = {"learning_rate": 0.1, "hf_token": "hf_bbbbbbbbbbbbbbbbbbbbbbbb", "layers": [1, 2]}
    global_step = 12
    return [numerator / d for d in denominators if (api_key, config, global_step)]


def _middle(batch):
    try:
        return _inner(batch, [1, 0])
    except ZeroDivisionError as error:
        wrapped = "middle"
        raise RuntimeError(f"step failed after {wrapped} with token=hf_cccccccccccccccccccccccc") from error


def _raise():
    outermost = [1, 2, 3]
    try:
        _middle(len(outermost))
    except RuntimeError as error:
        return error


def _record(**options):
    return crash_record(_raise(), who={"role": "policy", "rank": 3, "pid": 1}, where="task", **options)


def test_a_record_holds_chain_frames_source_and_locals():
    record = _record(redact=load_redact())
    raised, cause = record["exceptions"]
    assert (raised["type"], raised["relation"]) == ("RuntimeError", "raised")
    assert (cause["type"], cause["relation"]) == ("ZeroDivisionError", "cause")
    assert record["step"] is None or record["step"] == 12
    inner = next(frame for frame in cause["frames"] if frame["function"].endswith("_inner"))
    assert inner["locals"]["numerator"]["text"] == "3"
    assert inner["locals"]["config"]["text"].startswith("{'learning_rate': 0.1")
    assert any("for d in denominators" in line for line in inner["source"]["lines"])
    assert [f["function"].rpartition(".")[2] for f in raised["frames"]] == ["_middle", "_raise"]


def test_secrets_are_redacted_by_the_one_set_of_rules():
    text = json.dumps(_record(redact=load_redact()))
    assert "sk-aaaa" not in text and "hf_bbbb" not in text and "hf_cccc" not in text
    assert redaction.REDACTED in text
    assert "sk-aaaa" in json.dumps(_record(redact=None))


def test_without_rules_no_values_are_written():
    record = _record(redact=None, keep_values=False)
    assert "withheld" in record
    assert all(not frame["locals"] for error in record["exceptions"] for frame in error["frames"])


def test_the_file_is_private_complete_and_named(tmp_path):
    path = write_crash(tmp_path / "crashes", _record(redact=None), 1)
    assert json.loads(path.read_text())["schema_version"] == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "policy-3" in path.name and str(os.getpid()) in path.name
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def _ask(adapter, command, **arguments):
    return adapter.handle({"seq": 7, "type": "request", "command": command, "arguments": arguments})


def test_dead_frames_answer_like_a_debug_adapter():
    adapter = PostMortemAdapter(_raise())
    assert [m.get("event") for m in _ask(adapter, "attach")][1] == "initialized"
    response, stopped = _ask(adapter, "configurationDone")
    assert response["success"] and stopped["event"] == "stopped" and stopped["body"]["reason"] == "exception"
    frames = _ask(adapter, "stackTrace", threadId=1)[0]["body"]["stackFrames"]
    names = [frame["name"].rpartition(".")[2] for frame in frames]
    assert names[0] == "_middle" and frames[0]["line"] > 0
    cause = next(frame for frame in frames if frame["name"].endswith("_inner") and "ZeroDivisionError" in frame["name"])
    value = _ask(adapter, "evaluate", expression="[numerator * n for n in denominators]", frameId=cause["id"])
    assert value[0]["body"]["result"] == "[3, 0]"
    names = {v["name"] for v in _ask(adapter, "variables", variablesReference=cause["id"])[0]["body"]["variables"]}
    assert {"numerator", "denominators", "config"} <= names
    assert not _ask(adapter, "evaluate", expression="nope", frameId=1)[0]["success"]
    assert not _ask(adapter, "setVariable")[0]["success"]
    assert not adapter.ended
    _ask(adapter, "continue", threadId=1)
    assert adapter.ended


def test_cyclic_exception_chains_end():
    a, b = ValueError("a"), ValueError("b")
    a.__context__, b.__context__ = b, a
    assert len(crash_record(a, who={}, where="process", redact=None)["exceptions"]) == 2
    assert PostMortemAdapter(a)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DTensorPolicyWorker", "dtensor_policy_worker"),
        ("VllmGenerationWorker", "vllm_generation_worker"),
        ("GRPOTrainer", "grpo_trainer"),
        ("Policy", "policy"),
        ("FSDPActor2", "fsdp_actor2"),
    ],
)
def test_worker_names(name, expected):
    assert snake_case(name) == expected


def _part(value):
    return 1 / value


def test_the_parts_of_a_group_have_their_frames_in_the_file_and_at_the_prompt():
    parts = []
    for value in (0, "a"):
        try:
            _part(value)
        except (ZeroDivisionError, TypeError) as error:
            parts.append(error)
    try:
        raise ExceptionGroup("many", parts) from KeyError("first")
    except ExceptionGroup as error:
        group = error
    record = crash_record(group, who={"role": "policy", "pid": 1}, where="task", redact=None)
    assert [(each["type"], each["relation"]) for each in record["exceptions"]] == [
        ("ExceptionGroup", "raised"), ("ZeroDivisionError", "part"), ("TypeError", "part"), ("KeyError", "cause"),
    ]  # fmt: skip
    assert record["exceptions"][1]["frames"][0]["locals"]["value"]["text"] == "0"
    asked = {"command": "stackTrace", "seq": 1}
    frames = PostMortemAdapter(group).handle(asked)[0]["body"]["stackFrames"]
    assert [frame["name"] for frame in frames if frame["name"].endswith("_part")] == [
        "[ZeroDivisionError] _part", "[TypeError] _part",
    ]  # fmt: skip


def test_a_program_with_a_very_long_name_has_a_crash_file_too(tmp_path):
    record = crash_record(_raise(), who={"role": "x" * 400, "rank": 3, "pid": 1}, where="task", redact=None)
    assert write_crash(tmp_path, record, 1).stem.endswith(f"-3-{os.getpid()}-1")


def test_a_crash_of_a_process_that_was_started_is_found(tmp_path):
    who = {"host": "h", "pid": 7}
    (tmp_path / "a.json").write_text(json.dumps({"who": {"host": "h", "pid": 9, "ancestors": [8, 7, 1]}}))
    (tmp_path / "b.json").write_text("{")
    assert is_told_by_child(tmp_path, who)
    assert not is_told_by_child(tmp_path, {"host": "other", "pid": 7})
    assert not is_told_by_child(tmp_path, {"host": "h", "pid": 9})
    assert not is_told_by_child(tmp_path / "missing", who)
