import pytest

from rldbg.core import UsageError
from rldbg.trainer.settings import DataSettings
from rldbg.trainer.tasks import groups_of_step, load_problems, supervised_texts
from rldbg.trainer.tokenizer import CharacterTokenizer

DATA = DataSettings(operators="+-", prompts_per_step=7)


def groups(steps, seed=0):
    problems = load_problems(DATA)
    return [group for step in range(steps) for group in groups_of_step(problems, DATA, seed, step)]


def test_groups_are_the_same_in_every_run_with_the_same_data_and_seed():
    assert groups(40) == groups(40)
    assert groups(40) != groups(40, seed=1)


def test_no_two_groups_of_a_run_share_an_id_and_every_problem_comes_up_before_any_comes_again():
    stream = groups(60)
    assert len({group.group_id for group in stream}) == len(stream)
    first_round = [group.problem.task_id for group in stream[:200]]
    assert len(set(first_round)) == 200
    assert [group.problem.task_id for group in stream[200:400]] != first_round


def test_answers_are_right():
    by_prompt = {problem.prompt: problem.answer for problem in load_problems(DataSettings(operators="+-*"))}
    assert by_prompt["9+9="] == "18" and by_prompt["0-9="] == "-9" and by_prompt["9*9="] == "81"


def test_the_characters_of_every_problem_survive_the_tokenizer():
    tokenizer = CharacterTokenizer()
    for problem in load_problems(DataSettings(operators="+-*")):
        text = problem.prompt + problem.answer
        assert tokenizer.decode(tokenizer.encode(text)) == text
    with pytest.raises(ValueError, match="§"):
        tokenizer.encode("1§2")


def test_a_share_of_the_supervised_answers_is_wrong():
    problems = load_problems(DATA)
    right = {problem.prompt: problem.answer for problem in problems}
    texts = next(supervised_texts(problems, seed=0, batch_size=2000, wrong_fraction=0.5))
    share = sum(right[prompt] == answer for prompt, answer in texts) / len(texts)
    assert 0.48 < share < 0.6


def test_prompts_come_from_a_file(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": 2, "id": "easy"}\n\n{"prompt": "2+2=", "answer": "4"}\n')
    problems = load_problems(DataSettings(task=str(file)))
    assert [problem.task_id for problem in problems] == ["easy", "2"]
    assert problems[0].answer == "2"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (DataSettings(operators=""), "no prompts"),
        (DataSettings(operators="/"), "'/'"),
        (DataSettings(task="nowhere.jsonl"), "nowhere.jsonl"),
        (DataSettings(task="poetry"), "poetry"),
    ],
)
def test_data_that_is_not_there_is_a_clear_error(settings, message):
    with pytest.raises(UsageError, match=message):
        load_problems(settings)


def test_a_broken_line_is_named(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "2+2="}\n')
    with pytest.raises(UsageError, match=r"prompts\.jsonl:2"):
        load_problems(DataSettings(task=str(file)))
