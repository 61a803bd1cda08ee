"""Rollouts with a model that answers by script: what is trained on, what is rewarded, who said what."""

from rldbg.core import SampleId
from rldbg.inference import Generation
from rldbg.trainer.rollout import RolloutTask, RolloutWorker
from rldbg.trainer.tasks import Problem, feedback
from rldbg.trainer.tokenizer import CharacterTokenizer

TOKENIZER = CharacterTokenizer()
PROBLEM = Problem("3+4", "3+4=", "7")


class Script:
    """Answers each request by the sample it belongs to, turn by turn, and remembers the batches it got."""

    def __init__(self, *turns):
        self.turns = list(turns)
        self.batches = []

    def __call__(self, requests):
        self.batches.append(requests)
        answers = self.turns[len(self.batches) - 1]
        return [
            Generation([*TOKENIZER.encode(text), 1], [-0.5] * (len(text) + 1), finished, len(self.batches))
            for text, finished in answers
        ]


def roll(script, *, samples, max_turns):
    worker = RolloutWorker(tokenizer=TOKENIZER, generate=script, seed=0, max_turns=max_turns, temperature=1.0)
    return worker.run(0, [RolloutTask(SampleId("3+4#0", number), PROBLEM) for number in range(samples)])


def test_one_turn():
    right, wrong, unfinished = roll(Script([("7", True), ("9", True), ("7", False)]), samples=3, max_turns=1)
    assert (right.reward, wrong.reward, unfinished.reward) == (1.0, 0.0, 0.0)
    assert right.loss_mask.tolist() == [0, 0, 0, 0, 1, 1]
    assert right.logprobs.tolist() == [0, 0, 0, 0, -0.5, -0.5]
    assert right.policy_versions.tolist() == [-1] * 4 + [1] * 2
    assert right.extra_fields["group_id"] == "3+4#0" and wrong.extra_fields["run_id"] == 1
    assert right.prompt == wrong.prompt


def test_a_wrong_answer_is_told_so_and_may_try_again_for_half_the_reward():
    script = Script([("7", True), ("9", True), ("8", True)], [("7", True), ("11", True)])
    first, second, never = roll(script, samples=3, max_turns=2)
    assert (first.reward, second.reward, never.reward) == (1.0, 0.5, 0.0)
    told = len(feedback(PROBLEM, "no"))
    assert second.loss_mask.tolist() == [0] * 4 + [1] * 2 + [0] * told + [1] * 2
    assert second.policy_versions.tolist() == [-1] * 4 + [1] * 2 + [-1] * told + [2] * 2
    assert TOKENIZER.decode(second.tokens.tolist()) == "3+4=9 no 7"
    assert second.prompt_length == 4 and never.extra_fields["score"] == 0.0


def test_a_tool_answers_with_text_that_is_not_trained_on():
    worker = RolloutWorker(
        tokenizer=TOKENIZER,
        generate=Script([("9", True)], [("7", True)]),
        seed=0,
        max_turns=2,
        temperature=1.0,
        feedback="tool",
    )
    (sample,) = worker.run(0, [RolloutTask(SampleId("3+4#0", 0), PROBLEM)])
    assert TOKENIZER.decode(sample.tokens.tolist()) == "3+4=9 calc .7 3+4=7"
    assert sample.loss_mask.tolist() == [0] * 4 + [1] * 2 + [0] * 13 + [1] * 2


def test_samples_take_their_turns_together_and_only_those_that_need_one():
    script = Script([("7", True), ("9", True), ("8", True)], [("7", True), ("11", True)])
    trajectories = roll(script, samples=3, max_turns=2)
    assert [len(batch) for batch in script.batches] == [3, 2]
    assert [request.position for request in script.batches[1]] == [2, 2]
    assert [item.sample.run_id for item in trajectories] == [0, 1, 2]
    assert script.batches[1][0].prompt == tuple(trajectories[1].tokens[:-2].tolist())
