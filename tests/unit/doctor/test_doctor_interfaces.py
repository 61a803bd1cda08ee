"""Who is named where code asks an object for what it does not have: the class's owner and who asks, no go-between."""

import pytest

from rldbg.doctor.answer.specifics import specifics
from rldbg.doctor.logs.cleaning import Speaker
from rldbg.doctor.logs.evidence import Failure, LogPlace

PLACE = LogPlace("x.log", 1, 0, Speaker(), None)
LIB = "/v/lib/python3.11/site-packages/"
LOOKS_UP = f"{LIB}torch/nn/modules/module.py:1931 in __getattr__"
RAY = (f"{LIB}ray/_private/auto_init_hook.py:22 in wrapper", f"{LIB}ray/_private/client_mode_hook.py:104 in wrapper")
QUILT = f"{LIB}quilt/sew.py:3 in sew"
OWN = "/home/u/train.py:9 in main"


@pytest.mark.parametrize(
    ("said", "frames", "words", "never"),
    [
        (
            "AttributeError: 'FrobWithHead' object has no attribute 'seams'",
            (OWN, QUILT, LOOKS_UP),
            ("FrobWithHead has no seams", "quilt at quilt/sew.py:3", "class FrobWithHead", "pip show quilt"),
            ("torch",),
        ),
        (
            "AttributeError: 'PeftFrobModel' object has no attribute 'seams'",
            (OWN, QUILT, LOOKS_UP, f"{LIB}peft/peft_model.py:700 in __getattr__"),
            ("quilt at quilt/sew.py:3", "of peft", "pip show quilt peft"),
            ("torch",),
        ),
        (
            "AttributeError: 'SeamWorkerGroup' object has no attribute 'unpick'",
            ("/w/verl/verl/trainer/frob.py:6 in fit", *RAY),
            ("verl at", "class SeamWorkerGroup"),
            ("of ray", "no second package"),
        ),
        (
            "TypeError: Frobber.sew() got an unexpected keyword argument 'rid'",
            (f"{LIB}dynamo/vllm/handlers/seam.py:12 in generate",),
            ("does not take the argument rid", "dynamo at", "Frobber", "vllm", "pip show ai-dynamo vllm"),
            ("no second package",),
        ),
        (
            "TypeError: Quilter.sew() got an unexpected keyword argument 'seam_ids'",
            (f"{LIB}openrlhf/trainer/vllm_seams.py:12 in generate",),
            ("openrlhf at", "Quilter", "pip show openrlhf vllm"),
            ("no second package",),
        ),
        (
            "TypeError: WibbleModel.__init__.<locals>.<lambda>() got an unexpected keyword argument 'idx'",
            (
                f"{LIB}sglang/srt/models/wibble.py:30 in __init__",
                f"{LIB}sglang/srt/utils.py:40 in make",
            ),
            ("sglang/srt/models/wibble.py", "sglang/srt/utils.py:40", "both", "pip show sglang"),
            ("no second package",),
        ),
        (
            "AttributeError: 'FrobTrainer' object has no attribute 'seam'",
            (
                "/home/u/quilts/quilts/examples/go.py:5 in main",
                f"{LIB}transformers/trainer.py:30 in step",
                f"{LIB}trl/extras/profiling.py:8 in wrapper",
            ),
            ("pip show", "quilts", "trl", "transformers"),
            (),
        ),
    ],
)
def test_the_owner_and_the_caller_are_named(said, frames, words, never):
    kind, _, message = said.partition(": ")
    told = specifics(Failure(kind, message, PLACE, frames))
    assert [word for word in words if word not in told] == [], told
    assert [word for word in never if word in told] == [], told


def test_the_verdict_is_short_and_of_this_log(verdict):
    log = f"""Traceback (most recent call last):
  File "{LIB}quilt/sew.py", line 3, in sew
    frob.seam(7)
AttributeError: 'FrobWithHead' object has no attribute 'seams'
"""
    cause = verdict(log).root_causes[0]
    assert cause.id == "interface-mismatch"
    assert len(cause.cause) < 300
    assert "<package>" not in "".join(cause.fix)


def test_an_exception_of_a_worker_was_not_raised_where_the_driver_waits(verdict):
    log = f"""WibbleError: [3] seams shape torch.Size([640, 8]) does not match rows shape torch.Size([576, 16]) and k 8
Traceback (most recent call last):
  File "/home/u/train.py", line 81, in train
    ray.get(actor.sew(1))
  File "{LIB}ray/_private/auto_init_hook.py", line 22, in auto_init_wrapper
    return fn(*args, **kwargs)
  File "{LIB}ray/_private/client_mode_hook.py", line 104, in wrapper
    return func(*args, **kwargs)
"""
    found = verdict(log)
    words = found.headline + "\n".join(found.next)
    assert "client_mode_hook" not in words
    assert "issues of ray" not in words
    assert "raised by wrapper" not in words
    assert "64" in words


@pytest.mark.parametrize("said", ["AssertionError: The seam, FROB, is not sewn.", "ValueError: frob is not sewn"])
def test_a_reason_that_is_stated_gets_no_hint_to_print_the_condition(verdict, said):
    log = f'Traceback (most recent call last):\n  File "{LIB}quilt/sew.py", line 3, in sew\n    check(7)\n{said}\n'
    words = "\n".join(verdict(log).next)
    assert "both sides" not in words


GIVEN = f"""Traceback (most recent call last):
  File "{LIB}quilt/rewards.py", line 84, in score_all
    {{code}}
TypeError: {{said}}
"""


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (
            "score = self.compute_score(",
            "my_score() got an unexpected keyword argument 'seam'",
            "let my_score take seam",
        ),
        ("out = reward_func(", "accuracy() missing 1 required positional argument: 'solution'", "columns of the data"),
        (
            "return self.scorer(row)",
            "my_score() takes 1 positional argument but 2 were given",
            "let my_score take what",
        ),
    ],
)
def test_a_function_that_a_package_was_given_is_told_from_its_own(code, said, words, verdict):
    detail = verdict(GIVEN.format(code=code, said=said)).root_causes[0].detail
    assert "a function that quilt was given" in detail
    assert words in detail


@pytest.mark.parametrize(
    "code", ["score = my_score(seam=1)", "return fn(*args, **kwargs)", "x = first(a) + second(b)", ""]
)
def test_a_function_under_its_own_name_was_not_given(code, verdict):
    log = GIVEN.format(code=code, said="my_score() got an unexpected keyword argument 'seam'")
    assert "was given" not in verdict(log).root_causes[0].detail
