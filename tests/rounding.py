"""What two batch shapes may differ by, and which sampled tokens no rounding can change.

A CPU sums a row's products in an order that follows the shape of the whole batch, so the same row has other last bits
in another batch. Log probs are compared within the bound that docs/tolerances.md derives; tokens only where the choice
was not a near tie.
"""

import copy

import numpy as np
import pytest

UNIT_ROUNDOFF = 2.0**-24
LOG_PROB_ATOL = 200 * UNIT_ROUNDOFF
LOG_PROB_RTOL = 20 * UNIT_ROUNDOFF


def near(log_probs):
    """Equal within the bound of log probs."""
    return pytest.approx(log_probs, abs=LOG_PROB_ATOL, rel=LOG_PROB_RTOL)


def decided(model, prompt, tokens, *, numbers=None, temperature=1.0):
    """Whether rounding within the bound leaves every token as it is.

    Greedy tokens need a gap to the second-best token. Sampled ones (`numbers` has the uniform number of each) need a
    gap between the number and the ends of the token's share of the cumulated probability.
    """
    import torch

    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logits = copy.deepcopy(model).double()(ids).logits[0, len(prompt) - 1 : -1]
        log_probs = torch.log_softmax(logits / temperature, -1).numpy()
    if numbers is None:
        best = np.sort(log_probs, axis=-1)
        gaps = best[:, -1] - best[:, -2]
    else:
        ends = np.exp(log_probs).cumsum(-1)[:, :-1]
        gaps = np.abs(ends - np.asarray(numbers)[:, None]).min(-1)
    return bool((gaps > 2 * (LOG_PROB_ATOL + LOG_PROB_RTOL * np.abs(log_probs).max())).all())
