"""One sample on terminals of any width: no number is broken, and no column is lost."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

import rldbg
from rldbg.core import SampleId
from rldbg.recording import open as open_recording
from rldbg.recording.token_columns import TokenColumns
from rldbg.reports.recording import sample_to_terminal
from rldbg.reports.token_table import escaped

NUMBERS = {"logprobs": -0.0012345, "old_log_probs": -2.34567, "elementwise_loss": 0.98765}


@pytest.fixture
def sample(tmp_path):
    with rldbg.Recorder(tmp_path) as recorder:
        columns = {name: [np.full(4, value, np.float32)] for name, value in NUMBERS.items()}
        mask = [np.asarray([0, 0, 1, 1])]
        recorder.record(
            "trajectory", step=0, samples=[("g", 0)], tokens=[np.arange(4)], loss_mask=mask, reward=[0.0], **columns
        )
    return open_recording(tmp_path).sample(SampleId("g", 0))


@pytest.mark.parametrize(("width", "tables"), [(120, 1), (50, 2), (40, 3)])
def test_numbers_stay_whole_and_columns_stay_whole_words(sample, width, tables):
    console = Console(width=width, record=True, file=StringIO())
    console.print(sample_to_terminal(sample, TokenColumns(sample), [f"t{token}" for token in range(4)]))
    text = console.export_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("#") for line in lines) == tables
    for number in ("-0.0012345", "-2.3457", "0.98765"):
        assert text.count(number) == 4
    for word in ("logprobs", "old_", "elementwise_"):
        assert word in text
    assert text.count("●") == 2 * tables and text.count("t3") == tables


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\n", r"\n"),
        ("\x1b[2J", r"\x1b[2J"),
        (" the", "␣the"),
        ("  ", "␣␣"),
        ("", ""),
        ("a b ", "a b␣"),
        ("\\n", r"\\n"),
        ("你", "你"),
        ("\u202e", r"\u202e"),
    ],
)
def test_every_character_of_a_token_can_be_seen(text, shown):
    assert escaped(text) == shown
