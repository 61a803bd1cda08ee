"""A metric that is NaN from some step on is the likely cause of what can follow from it, and says where it began."""

import pytest

WELL = "step 7 | loss: 1.91 | grad_norm: 2.1\n"
LOST = "step 8 | loss: nan | grad_norm: nan\nstep 9 | loss: nan | grad_norm: nan\n"
RAISED = 'Traceback (most recent call last):\n  File "/w/seam.py", line 3, in <module>\n    {code}\n{said}\n'


def raised(said, code="seam()"):
    return RAISED.format(said=said, code=code)


FOLLOWING = [
    raised("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"),
    raised("ValueError: cannot convert float NaN to integer"),
    raised("AssertionError: the frob is wrong", code="assert not torch.isnan(frob), 'the frob is wrong'"),
    raised("ValueError: Detected errors during sampling! NaN in the logits."),
    "/w/seam.cu:12: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion `probability tensor contains "
    "either `inf`, `nan` or element < 0` failed.\n" + raised("RuntimeError: CUDA error: device-side assert triggered"),
]


@pytest.mark.parametrize("end", FOLLOWING)
def test_what_follows_from_nan_is_told_with_where_it_began(verdict, end):
    found = verdict(WELL + LOST + end)
    assert [cause.id for cause in found.root_causes] == ["nan-gradients"]
    assert found.root_causes[0].confidence == "medium"
    assert "loss, grad_norm are nan from step 8 on" in found.headline
    assert found.root_causes[0].evidence[0].line == 2


@pytest.mark.parametrize(
    "line",
    [
        "(Runner pid=31) step:8 - actor/pg_loss:nan - actor/entropy:0.3",
        "iteration 8/100 | lm loss: nan | lr: 1e-6",
        "2026-11-18 10:00:00 INFO loop.py:88 step 8 grad_norm: tensor(nan)",
        "{'loss': nan, 'grad_norm': nan, 'step': 8}",
    ],
)
def test_metrics_of_many_trainers_are_read(verdict, line):
    found = verdict(f"{WELL}{line}\n{FOLLOWING[0]}")
    assert [cause.id for cause in found.root_causes] == ["nan-gradients"]
    assert " 8 on" in found.headline


def test_nan_that_went_away_is_no_cause(verdict):
    found = verdict(WELL + LOST + "step 10 | loss: 1.8 | grad_norm: 2.0\n" + FOLLOWING[0])
    assert found.root_causes == ()
    assert not any("nan-gradients" in step for step in found.next)


def test_an_exception_of_something_else_only_has_nan_beside_it(verdict):
    found = verdict(WELL + LOST + raised("ValueError: 7 wibbles do not fit"))
    assert found.root_causes == ()
    assert "7 wibbles do not fit" in found.headline
    assert any("nan-gradients" in step and "from step 8 on" in step for step in found.next)


def test_a_known_cause_of_something_else_stays_the_cause(verdict):
    found = verdict(WELL + LOST + raised("FileNotFoundError: [Errno 2] No such file or directory: '/w/a.parquet'"))
    assert [cause.id for cause in found.root_causes] == ["data-file-missing"]


def test_a_training_that_is_done_outlived_it(verdict):
    done = "Training Progress: 100%|██████| 9/9 [00:20<00:00, 7.0s/it]\nFinal validation metrics: {'acc': 0.5}\n"
    assert verdict(WELL + LOST + done).verdict == "healthy"
