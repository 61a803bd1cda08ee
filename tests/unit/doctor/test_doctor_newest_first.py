"""A log whose newest lines come first is read from its end."""

import pytest

LINES = (
    "Traceback (most recent call last):",
    '  File "/v/lib/python3.12/site-packages/vllm/seams/loader.py", line 7, in load_model',
    "    self.load_weights(names)",
    '  File "/v/lib/python3.12/site-packages/vllm/models/quilt.py", line 90, in load_weights',
    "    param = params_dict[name]",
    "KeyError: 'model.layers.5.mlp.up_proj.input_scale'",
    "the engine ends",
)


@pytest.mark.parametrize("stamp", ["ERROR 2026-04-07T19:13:52.{:09d}Z ", "2026-04-07 19:13:{:02d} "])
def test_a_traceback_upside_down_is_whole(verdict, stamp):
    lines = [f"{stamp.format(10 + number)}{line}" for number, line in enumerate(LINES)]
    found = verdict("\n".join(reversed(lines)) + "\n")
    assert found.root_causes[0].id == "engine-quantised-name-unknown"
    assert "without this quantisation" in found.root_causes[0].title
    assert [each.id for each in found.findings] == ["newest-first"]
    assert not verdict("\n".join(lines) + "\n").findings


def test_what_has_no_stamp_stays_below_its_line(verdict):
    record = 'ERROR it failed\nTraceback (most recent call last):\n  File "/w/go.py", line 3, in go\n    frob()\n'
    times = [f"2026-04-07 19:13:{second} " for second in range(30, 20, -1)]
    log = f"{times[0]}{record}OverflowError: 7 wibbles\n" + "".join(f"{time}INFO a seam\n" for time in times[1:])
    found = verdict(log)
    assert found.first_error.kind == "OverflowError"
    assert "/w/go.py:3 in go" in found.first_error.frames
