"""What is said of an exception without an entry holds by its frames and its words; else only what is true of all."""

import pytest

INSTALLED = "/v/lib/python3.11/site-packages"


def log_of(exception, *frames):
    lines = [
        line
        for frame in ("/w/run.py:3 in <module>", *frames)
        for file, rest in [frame.split(":", 1)]
        for number, function in [rest.split(" in ")]
        for line in (f'  File "{file}", line {number}, in {function}', "    seam = wibble(frob)")
    ]
    return "\n".join(["Traceback (most recent call last):", *lines, exception]) + "\n"


def test_what_a_framework_does_with_a_score_is_not_told_as_a_fault_of_the_function(verdict):
    manager = f"{INSTALLED}/verl/workers/reward_manager/naive.py:90 in __call__"
    cause = verdict(log_of("TypeError: can't assign a frob to a torch.FloatTensor", manager)).root_causes[0]
    assert (cause.id, cause.title) == ("reward-function-failed", "Scoring a response raised an exception")
    assert "the function returned" in cause.cause
    awaited = verdict(log_of("TypeError: can't assign a coroutine to a torch.FloatTensor", manager)).root_causes[0]
    assert "asynchronous" in awaited.title


def test_a_scorer_of_the_framework_without_code_for_the_data_says_so(verdict):
    scorer = "/root/maze/verl/verl/utils/reward_score/__init__.py:37 in _default_compute_score"
    assert verdict(log_of("NotImplementedError", scorer)).root_causes[0].id == "verl-reward-source-unknown"
    own = verdict(log_of("NotImplementedError", "/w/my_reward.py:3 in compute_score")).root_causes[0]
    assert own.id == "reward-function-failed"


@pytest.mark.parametrize(
    ("outer", "answer"),
    [
        ("/w/trl/trainer/frob_trainer.py:88 in _tool_call_loop", "turn-not-rendered"),
        ("/w/app/data.py:88 in encode_row", "data-preparation-failed"),
    ],
)
def test_what_the_model_wrote_is_not_a_row_of_the_data(verdict, outer, answer):
    template = f"{INSTALLED}/transformers/tokenization_utils_base.py:3131 in apply_chat_template"
    encoder = "/usr/lib/python3.11/json/encoder.py:180 in default"
    found = verdict(log_of("TypeError: Object of type Undefined is not JSON serializable", outer, template, encoder))
    assert [cause.id for cause in found.root_causes] == [answer]


def test_a_view_of_nothing_is_empty_and_two_sizes_differ(verdict):
    frame = f"{INSTALLED}/frob/dispatcher.py:9 in combine"
    empty = verdict(log_of("RuntimeError: shape '[2048, 1, 4096]' is invalid for input of size 0", frame))
    assert empty.root_causes[0].id == "something-is-empty"
    differs = verdict(log_of("RuntimeError: shape '[2, 8]' is invalid for input of size 15", frame))
    assert differs.root_causes[0].id == "tensor-lengths-differ"


def test_a_question_that_nobody_can_answer_is_told_as_one(verdict):
    asked = "(Env pid=7) Could not find asset frob\n(Env pid=7) Would you like to download it now? [y/n]\n"
    made = "/w/rlinf/envs/frob/offload_env.py:354 in start_env"
    found = verdict(asked + log_of("RuntimeError: init failed: {'error': 'EOF when reading a line'}", made))
    assert found.root_causes[0].id == "question-without-terminal"


def test_an_environment_that_cannot_be_made_is_not_told_as_a_turn(verdict):
    made = "/w/rlinf/envs/frob/offload_env.py:354 in start_env"
    cause = verdict(log_of("RuntimeError: the table of this scene has no legs", made)).root_causes[0]
    assert cause.id == "environment-code-failed"
    assert "being made" in cause.cause
