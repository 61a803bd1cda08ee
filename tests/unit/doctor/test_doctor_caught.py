"""A line about an exception that was caught is no end of a program, unless something else says that one ended."""

import pytest

STEPS = "".join(f"(TaskRunner pid=7) step:{n} - critic/score/mean:0.{n}\n" for n in range(1, 4))
SAID = "(TaskRunner pid=7) Error in seam_fn: 'wibbles'\n"


@pytest.mark.parametrize("above", ["", STEPS])
@pytest.mark.parametrize(
    "line",
    [SAID, "Error while scoring sample 3: no answer\n", "Error during parsing: 'seam'\n(TaskRunner pid=7) keys=[]\n"],
)
def test_what_was_caught_ended_nothing(verdict, above, line):
    assert verdict(above + line).verdict == "healthy"


@pytest.mark.parametrize(
    "line",
    [
        "Error: seams are loose\n",
        f"{SAID}srun: error: node3: task 2: Exited with exit code 1\n",
        "Error in seam_fn: gave up, aborting\n",
        "Error during training: 'wibbles'\n",
        "Error in main(): 'wibbles'\n",
        "Traceback (most recent call last):\n  File \"/w/go.py\", line 3, in go\n    frob()\nKeyError: 'wibbles'\n",
    ],
)
def test_what_ends_a_program_is_its_failure(verdict, line):
    assert verdict(STEPS + line).verdict != "healthy"
