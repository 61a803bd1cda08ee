"""torch's assertion that its cache was emptied at a bad moment tells which moment only together with the traceback."""

import pytest

ASSERT = (
    'RuntimeError: captures_underway.empty() INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":3100, '
    "please report a bug to PyTorch.\n"
)


@pytest.mark.parametrize("function", ["pt_weights_iterator", "frob_loader"])
def test_weights_that_are_loaded_are_no_capture(verdict, function):
    log = f"""[2026-03-22 01:05:30 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/v/lib/python3.11/site-packages/sglang/srt/model_loader/weight_utils.py", line 45, in {function}
    torch.cuda.empty_cache()
{ASSERT}"""
    found = verdict(log)
    assert [cause.id for cause in found.root_causes] == ["cuda-cache-emptied-in-pool"]
    assert "SGLang could not capture" not in found.headline
    assert not any("capture" in cause.title.lower() for cause in found.fallout)


def test_in_a_capture_it_ends_the_capture(verdict):
    found = verdict(f"{ASSERT}Exception: Capture cuda graph failed: captures_underway.empty() INTERNAL ASSERT FAILED\n")
    assert [cause.id for cause in found.root_causes] == ["cuda-cache-emptied-in-pool"]
    assert "sglang-graph-capture-failed" in [cause.id for cause in found.fallout]
