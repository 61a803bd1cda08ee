"""Why scoring failed is told by the expression that failed: a field that was not given, or a text."""

import pytest

HEAD = "Traceback (most recent call last):\n"
LOG = (
    '  File "/w/loop/runner.py", line 9, in call\n    return fn(**given)\n'
    '  File "/w/quilt_reward.py", line 7, in compute_score\n    {code}\n{said}\n'
)


@pytest.mark.parametrize("head", [HEAD, ""])
@pytest.mark.parametrize(
    ("code", "key", "name"),
    [
        ('wibbles = extra_info["wibbles"]', "wibbles", "extra_info"),
        ("seam = kwargs['extra_info']['seam']", "seam", "extra_info"),
        ('good = item.non_tensor_batch["reward_model"]["truth"]', "truth", "reward_model"),
        ('kind = sample["kind"]', "kind", "sample"),
    ],
)
def test_a_field_that_is_not_in_an_argument_was_not_given(verdict, head, code, key, name):
    cause = verdict(head + LOG.format(code=code, said=f"KeyError: '{key}'")).root_causes[0]
    assert cause.id == "reward-function-failed"
    assert f"the field {key} in {name}" in cause.title
    steps = " ".join(cause.fix)
    assert "ive 0" not in steps
    assert "cannot handle" not in cause.cause
    assert f"keys of {name}" in steps


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("said = json.loads(text)", "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ("return float(text)", "ValueError: could not convert string to float: 'seven'"),
        ("last = text.split('####')[1]", "IndexError: list index out of range"),
    ],
)
def test_a_text_that_cannot_be_read_is_the_response(verdict, code, said):
    cause = verdict(HEAD + LOG.format(code=code, said=said)).root_causes[0]
    assert cause.id == "reward-function-failed"
    assert "text is read" in cause.cause
    assert "framework" not in f"{cause.cause} {' '.join(cause.fix)}"


def test_a_key_of_a_mapping_that_nobody_knows_is_left_open(verdict):
    cause = verdict(HEAD + LOG.format(code='good = found["truth"]', said="KeyError: 'truth'")).root_causes[0]
    assert "ive 0" not in " ".join(cause.fix)
    assert "if it was parsed" in cause.cause
