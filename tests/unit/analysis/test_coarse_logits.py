"""Logits that were rounded to a coarse dtype are known by the log probs of tokens that share a context."""

import numpy as np
import pytest

from imagined_runs import ImaginedRun, log_softmax
from rldbg.analysis.explain.evidence import round_to
from rldbg.analysis.noise.coarse_logits import logits_roundoff
from rldbg.analysis.tolerances import roundoff_of


def side(bits, *, temperature=1.0, engine_bits=None):
    """A run whose trainer, and whose engine, round logits to so many bits; log probs are recorded in float32."""
    run = ImaginedRun()

    def rows(count):
        rounded = run._logits if count is None else round_to(run._logits, count)
        table = log_softmax(rounded / temperature).astype(np.float32).astype(np.float64)
        pairs = zip(run.tokens, run.prompts, strict=True)
        return [table[tokens[len(prompt) - 1 : -1], tokens[len(prompt) :]] for tokens, prompt in pairs]

    return ImaginedRun(old=lambda _rows: rows(bits), rollout=lambda _rows: rows(engine_bits or bits)).side()


@pytest.mark.parametrize(("bits", "dtype"), [(8, "bfloat16"), (11, "float16"), (None, None)])
def test_the_dtype_of_logits_is_known_by_differences_within_a_context(bits, dtype):
    assert logits_roundoff(side(bits), side(bits), [0]) == (roundoff_of(dtype) if dtype else 0.0)


def test_the_finer_side_decides():
    assert logits_roundoff(side(8), side(None), [0]) == logits_roundoff(side(None), side(8), [0]) == 0.0
    assert logits_roundoff(side(8), side(11), [0]) == roundoff_of("float16")


def test_a_coarse_engine_says_nothing_of_its_trainer():
    assert logits_roundoff(side(None, engine_bits=8), side(None, engine_bits=8), [0]) == 0.0


def test_logits_divided_by_a_temperature_are_not_told():
    assert logits_roundoff(side(8, temperature=0.9), side(8, temperature=0.9), [0]) == 0.0
