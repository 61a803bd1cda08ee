"""The parts of a sample, by mask and by text."""

import numpy as np

from rldbg.ui.opened_run import clip_limits
from rldbg.ui.turns import parts_of

TEXTS = ["<|im_start|>user", " hi", "<think>", " hm", "</think>", " x", "<tool_call>", " f", "</tool_call>",
         " <|im_start|>", "tool", " 29", " done", " pad"]  # fmt: skip
TRAINED = np.array([0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0], bool)


def roles(*arguments):
    return [(part.role, part.start, part.end) for part in parts_of(*arguments)]


def test_thinking_tools_and_the_environment_are_told_apart():
    assert roles(TRAINED, 14, TEXTS) == [
        ("user", 0, 2), ("thinking", 2, 5), ("model", 5, 6), ("tool call", 6, 9), ("tool", 9, 12), ("model", 12, 13),
        ("end", 13, 14),
    ]  # fmt: skip


def test_without_text_or_mask_less_is_said():
    assert roles(TRAINED, 14, None) == [
        ("prompt", 0, 2),
        ("model", 2, 9),
        ("environment", 9, 12),
        ("model", 12, 13),
        ("end", 13, 14),
    ]
    assert roles(None, 3, None) == [("tokens", 0, 3)]
    assert roles(np.zeros(3, bool), 3, None) == [("not trained", 0, 3)]
    assert roles(None, 0, None) == []


def test_limits_of_the_ratio_come_from_the_configuration():
    assert clip_limits({"algorithm": {"clip_low": 0.2, "clip_high": 0.28}}) == (0.2, 0.28)
    assert clip_limits({"actor": {"clip_ratio": 0.2}}) == (0.2, 0.2)
    assert clip_limits({"clip_low": True}) is None and clip_limits(None) is None
