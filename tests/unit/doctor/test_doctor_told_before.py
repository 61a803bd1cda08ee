"""What the lines above say of the very thing that a failure names: given up, replaced, or limited by a setting."""

import pytest


def raised(exception, *frames):
    lines = [f'  File "{file}", line 7, in {function}\n    {code}' for file, function, code in frames]
    return "\n".join(["Traceback (most recent call last):", *lines, exception, ""])


COLLECT = ("/w/frob/agent/collector.py", "collect", "row = self._rows[row_id]")


def test_an_id_that_was_given_up_before_is_told_with_that_line(verdict):
    text = (
        "INFO row-77d0c2aa queued\n"
        "INFO row-5f1c00bb timed out after 300 s\n"
        "INFO row-77d0c2aa timed out after 300 s, put back\n"
        "INFO row-77d0c2aa claimed again\n" + raised("KeyError: 'row-77d0c2aa'", COLLECT)
    )
    steps = " ".join(verdict(text).next)
    assert "row-77d0c2aa timed out after 300 s, put back" in steps and "x.log:3)" in steps
    other = verdict(text.replace("timed out", "was counted").replace("put back", "kept"))
    assert "given up" not in " ".join(other.next)
    named = verdict(
        text.replace("/w/frob/agent/collector.py", "/v/lib/python3.11/site-packages/verl/agent/collector.py")
    )
    assert "timed out after 300 s, put back" in named.root_causes[0].detail


@pytest.mark.parametrize(
    ("loaded", "told"), [("policy-lora-9", "was replaced"), ("policy-lora-7", "not there yet"), ("other-lora-9", "")]
)
def test_a_name_that_is_not_served_is_compared_with_those_that_were_loaded(verdict, loaded, told):
    text = (
        f"INFO Loading LoRA weights done in 1.2s. name={loaded}\n"
        "WARNING request to 10.0.0.2:5000/v1/chat/completions failed with ClientResponseError: 404 (attempt 3/3)\n"
        "(Server pid=8) ERROR 05-06 10:00:00 [serving_chat.py:203] Error with model error=ErrorInfo(message='The model "
        "`policy-lora-8` does not exist.', type='NotFoundError', param='model', code=404)\n"
        "RuntimeError: Failed after 3 retries each. Payload: {'model': 'policy-lora-8'}. Last error: "
        "ClientResponseError(status=404, message='Not Found')\n"
    )
    cause = verdict(text).root_causes[0]
    assert cause.id == "served-model-unknown"
    assert (told in cause.detail and loaded in cause.detail) if told else loaded not in cause.detail


def test_a_size_that_is_a_setting_is_called_by_its_name(verdict):
    error = raised(
        "RuntimeError: Sizes of tensors must match except in dimension 0. Expected size 516 but got size 512 for "
        "tensor number 2 in the list.",
        ("/w/frob/protocol.py", "concat", "torch.cat(rows)"),
    )
    detail = verdict("python -m frob.main data.max_prompt_length=512 data.n=4\n" + error).root_causes[0].detail
    assert "512 is data.max_prompt_length" in detail and "516 is longer" in detail
    assert "max_prompt_length" not in verdict("data.max_prompt_length=500\n" + error).root_causes[0].detail
