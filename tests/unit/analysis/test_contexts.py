"""Temperatures read from tokens that share a context."""

from rldbg.analysis.explain.contexts import fit_temperature


def test_log_probs_that_do_not_depend_on_the_token_have_no_temperature():
    flat = {context: {token: (-2.0, -1.0 - token / 3) for token in range(4)} for context in (b"a", b"b")}
    found = fit_temperature(flat)
    assert found.factor == 0 and not found.fits


def test_differences_of_one_ratio_have_a_temperature():
    scaled = {context: {token: (-1.25 * token, -1.0 * token) for token in range(4)} for context in (b"a", b"b")}
    found = fit_temperature(scaled)
    assert found.fits and found.factor == 1.25
