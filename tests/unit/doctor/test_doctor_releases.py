"""Which package is too old or too new, as the releases in a log and the history of an interface tell."""

import importlib
from pathlib import Path

import pytest

from rldbg.doctor.clues.api_history import told_by_history
from rldbg.doctor.clues.releases import as_numbers, printed_releases
from rldbg.doctor.logs.cleaning import Speaker
from rldbg.doctor.logs.sources import LogSource

DOCS = Path(__file__).parents[3] / "docs"
LIB = "/v/lib/python3.11/site-packages/"
TRL = f"{LIB}trl/scripts/vllm_serve.py:238 in main"
VLLM = f"{LIB}vllm/entrypoints/llm.py:212 in __init__"
OWN = "/home/u/run.py:9 in main"
EXTRA = "TypeError: {}() got an unexpected keyword argument '{}'"


@pytest.mark.parametrize(
    ("said", "frames", "releases", "words"),
    [
        (
            EXTRA.format("EngineArgs.__init__", "worker_extension_cls"),
            (TRL, VLLM),
            {},
            "vllm has it since 0.8.0, so the installed one is older than trl needs",
        ),
        (
            "ImportError: cannot import name 'get_open_port' from 'vllm.utils' (/v/vllm/utils/__init__.py)",
            (TRL,),
            {"vllm": "0.15.0"},
            "has not had it since 0.14.0 (it is in vllm.utils.network_utils now), so the installed one (0.15.0 in",
        ),
        ("ModuleNotFoundError: No module named 'vllm.worker'", (TRL,), {}, "vllm has not had it since 0.11.1"),
        (
            "ImportError: cannot import name 'process_weights_after_loading' from "
            "'vllm.model_executor.model_loader.utils' (/v/vllm/utils.py)",
            (TRL,),
            {"vllm": "0.8.4"},
            "vllm has it since 0.9.1, so the installed one (0.8.4 in this log) is older than trl needs",
        ),
        (
            EXTRA.format("GRPOConfig.__init__", "max_prompt_length"),
            (OWN,),
            {},
            "newer than your code (run.py:9) knows",
        ),
        (
            EXTRA.format("SamplingParams.__init__", "guided_decoding"),
            (TRL,),
            {"vllm": "0.13.0"},
            "has not had it since 0.12.0",
        ),
        (
            EXTRA.format("SamplingParams.__init__", "guided_decoding"),
            (TRL,),
            {"vllm": "0.5.1"},
            "has it since 0.6.3, so the installed one (0.5.1 in this log) is older than trl",
        ),
        ("AttributeError: 'LLM' object has no attribute 'wake_up'", (TRL,), {}, "vllm has it since 0.7.0"),
    ],
)
def test_the_package_that_is_too_old_or_too_new_is_named(said, frames, releases, words):
    verdict = told_by_history(said, frames, releases)
    assert verdict is not None
    assert words in verdict.words
    assert "pip install" in verdict.fix


@pytest.mark.parametrize(
    ("said", "frames", "releases"),
    [
        # this release has it: that was not it
        (EXTRA.format("EngineArgs.__init__", "worker_extension_cls"), (TRL, VLLM), {"vllm": "0.9.0"}),
        # nobody ever had it
        (EXTRA.format("EngineArgs.__init__", "seam_width"), (TRL, VLLM), {}),
        # a class of the same name in code of one's own
        ("AttributeError: 'FrobEngine' object has no attribute 'wake_up'", (OWN,), {}),
        ("ImportError: cannot import name 'get_open_port' from 'frob.utils' (/v/frob/utils.py)", (TRL,), {}),
        ("KeyError: 'worker_extension_cls'", (TRL, VLLM), {}),
    ],
)
def test_nothing_is_said_of_what_the_history_does_not_know(said, frames, releases):
    assert told_by_history(said, frames, releases) is None


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("trl==0.14.0\n", "0.14.0"),
        ("trl                 0.14.0.dev0\n", "0.14.0"),
        ("- TRL version: 0.14.0\n", "0.14.0"),
        ('{"trl": "0.14.0"}\n', "0.14.0"),
        ("Name: x\nusing trl (0.14.0)\n", "0.14.0"),
        ("/v/trl-0.14.0.dist-info/METADATA\n", None),
        ("quilt requires trl==0.15.0, but you have trl 0.14.0\n", None),
        ("trl==0.14.0\ntrl==0.15.0\n", None),
        ("mytrl==0.14.0\n", None),
        ("trl took 0.14 s\n", None),
    ],
)
def test_the_release_that_a_log_prints(text, release, tmp_path):
    log = tmp_path / "x.log"
    log.write_text(text)
    assert printed_releases(["trl"], [LogSource(log, Speaker())]).get("trl") == release


def test_releases_are_compared_as_numbers():
    assert as_numbers("0.10") == (0, 10, 0) > as_numbers("0.9.2")


def test_what_to_install_is_the_first_step(verdict):
    cause = verdict(f"""vllm==0.15.0
Traceback (most recent call last):
  File "{LIB}verl/workers/seam.py", line 20, in <module>
    from vllm.utils import get_open_port
ImportError: cannot import name 'get_open_port' from 'vllm.utils' ({LIB}vllm/utils/__init__.py)
""").root_causes[0]
    assert cause.fix[0].startswith("pip install 'vllm<0.14.0'")
    assert "this log prints vllm 0.15.0" in cause.detail


def test_an_argument_that_a_decorator_still_takes_is_not_gone():
    # THEN who asks for it fails from the release on that dropped the decorator, not from the one that renamed it
    frames = (f"{LIB}trl/trainer/dpo_trainer.py:400 in __init__", f"{LIB}transformers/trainer.py:300 in __init__")
    found = told_by_history(EXTRA.format("Seq2SeqTrainer.__init__", "tokenizer"), frames, {})
    assert found.fix.startswith("pip install 'transformers<5.0.0'")
    # AND a release that took it rules that out
    old = told_by_history(EXTRA.format("Trainer.__init__", "tokenizer"), frames, {"transformers": "4.50.0"})
    assert old is None


def test_the_history_counts_old_names_that_decorators_take(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    names = importlib.import_module("defined_names")
    text = """
class Stove:
    @deprecate_kwarg("gas", version="3.0.0", new_name="fuel")
    @renamed_kwargs(old_name="pot")
    @measured("heat")
    def __init__(self, fuel, *, pan=None): ...
"""
    found = names.defined_names(text, is_package=False, packages=())
    assert found.classes["Stove"].methods["__init__"] == ["fuel", "pan", "gas", "pot"]
