"""Words that several programs print for several reasons: an entry counts only with what its reason has around it."""

import re

import pytest

from rldbg.doctor.logs.sources import LogSource
from rldbg.doctor.scan import Scanner

FOREIGN = ("app/serve.py", "build")
"""A file and a function that are nobody's in particular."""
TOLD_BY_CONTEXT = [
    # entry, exception, file and function of its own reason
    ("vllm-weight-name-keyerror", "KeyError: 'model.layers.3.mlp.gate.weight'", "vllm/worker.py", "update_weights"),
    ("state-dict-keys-differ", "KeyError: 'transformer.h.3.attn.frob.weight'", "app/model.py", "load_pretrained"),
    ("fused-expert-weights", "KeyError: 'model.layers.3.experts.gate_up_proj'", "app/bridge.py", "convert_layer"),
    ("weights-differ-after-sync", "RuntimeError: checksum mismatch of weight frob", "app/sync.py", "compare_weights"),
    (
        "ray-gcs-unreachable",
        "ConnectionError: Unable to connect to Redis at 10.0.0.4:1",
        "ray/_private/node.py",
        "start",
    ),
    ("ray-auth-token", "RuntimeError: Unauthorized: Missing authentication token", "ray/dashboard/sdk.py", "submit"),
    ("ray-package-too-large", "RuntimeError: Request Entity Too Large", "ray/dashboard/sdk.py", "submit"),
    (
        "verl-checkpoint-folder-race",
        "RuntimeError: Parent directory /c/7 does not exist.",
        "verl/utils/save.py",
        "save",
    ),
    (
        "verl-model-offloaded-at-save",
        "AssertionError: Expects tensor to be on the compute device cuda:0, was on cpu",
        "verl/workers/fsdp.py",
        "save",
    ),
    (
        "verl-sample-too-long",
        "RuntimeError: Prompt length 700 is longer than 512.",
        "verl/utils/data.py",
        "__getitem__",
    ),
    ("trl-weight-group-left-over", "RuntimeError: Weight update group already initialized.", "trl/serve.py", "init"),
    ("bridge-architecture-unknown", "ValueError: Unregistered model type: frob", "mbridge/core/auto_bridge.py", "make"),
    ("hf-hub-unreachable", "RuntimeError: Cannot send a request, as the client has been closed.", "hf_hub/a.py", "get"),
    ("signal-outside-main-thread", "ValueError: signal only works in main thread", "app/reward.py", "compute_score"),
    (
        "ragged-batch",
        "RuntimeError: stack expects each tensor to be equal size, but got [4] at entry 0 and [3] at entry 1",
        "app/data.py",
        "collate",
    ),
    ("chat-template-field-missing", "jinja2.exceptions.UndefinedError: 'x' is undefined", "app/a.py", "chat_template"),
    (
        "answer-has-nan",
        "ValueError: Out of range float values are not JSON compliant",
        "vllm/entrypoints/api.py",
        "send",
    ),
]


def log_of(exception, file, function):
    return f"""\
Traceback (most recent call last):
  File "/w/run.py", line 3, in <module>
    main()
  File "/w/{file}", line 71, in {function}
    seam = wibble(frob)
{exception}
"""


@pytest.mark.parametrize(("entry", "exception", "file", "function"), TOLD_BY_CONTEXT, ids=lambda each: str(each)[:32])
def test_words_of_several_programs_are_judged_by_what_is_around_them(entry, exception, file, function, verdict):
    assert entry in {cause.id for cause in verdict(log_of(exception, file, function)).root_causes}
    foreign = verdict(log_of(exception, *FOREIGN))
    assert entry not in {cause.id for cause in (*foreign.root_causes, *foreign.fallout)}
    assert foreign.verdict != "healthy"


def test_an_exception_that_says_only_a_name_is_no_entry_without_a_place(library):
    """The same name is missing in other programs too. Names that only one thing in the world has are in capitals, or
    are those of an option of its own."""
    only_a_name = re.compile(r"\w*Error: ['\"][\w.]+['\"]")
    own_names = {"launcher-variables-missing", "muon-without-matrices"}
    bare = {
        entry.id
        for entry in library.entries.values()
        for signature in entry.signatures
        if any(only_a_name.fullmatch(example.strip()) for example in signature.examples)
        and not (signature.near or signature.raised_in or signature.last_before or entry.needs)
    }
    assert bare == own_names


def test_no_entry_takes_every_exception_of_a_type(index, tmp_path):
    """An exception that some entry knows is asked for nothing more: its numbers, its call, who raised it."""
    kinds = ("AssertionError", "AttributeError", "ImportError", "IndexError", "KeyError", "NotImplementedError")
    lines = [
        f"{kind}: the quilt has no seam" for kind in (*kinds, "OSError", "RuntimeError", "TypeError", "ValueError")
    ]
    log = tmp_path / "x.log"
    log.write_text("\n".join((*lines, *kinds)))
    evidence = Scanner(index).read_all([LogSource(log)])
    assert {name for failure in evidence.failures for name in failure.known_as} == set()


def test_a_debugger_that_was_left_by_a_person_had_a_terminal(verdict):
    log = log_of("bdb.BdbQuit", *FOREIGN)
    assert [cause.id for cause in verdict(log).root_causes] == ["breakpoint-no-terminal"]
    assert "breakpoint-no-terminal" not in {cause.id for cause in verdict(f"(Pdb) q\n{log}").root_causes}


def test_a_proxy_that_refuses_the_world_outside_is_not_between_trainer_and_engine(verdict):
    asked = "ERROR: GET {} gave 403, X-Squid-Error: ERR_ACCESS_DENIED 0\nRuntimeError: no answer of the server\n"
    inside, outside = (
        verdict(asked.format("http://10.0.0.7:8000/x")),
        verdict(asked.format("https://example.org/simple/x")),
    )
    assert [cause.id for cause in inside.root_causes] == ["http-proxy-on-internal-traffic"]
    assert not outside.root_causes
