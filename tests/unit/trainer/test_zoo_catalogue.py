"""The zoo's bugs: each spoils a function that exists, and leaves it as it was."""

import threading

import pytest

from rldbg.core import UsageError
from rldbg.trainer.in_process import ThreadMeeting
from rldbg.trainer.zoo import (
    BUGS,
    asynchronous_bugs,
    bug_cells,
    clean_cells,
    conversation_bugs,
    find_bug,
    injected,
    rank_bugs,
    replica_bugs,
    staleness_bugs,
    turn_bugs,
    turn_loss_bugs,
)
from rldbg.trainer.zoo.bug import _owner


def test_there_are_enough_bugs_and_a_third_came_after_the_hypotheses():
    names = [item.name for item in BUGS]
    assert len(names) == len(set(names)) >= 160
    assert 3 * sum(item.late for item in BUGS) >= len(BUGS)
    assert all(item.story.endswith(".") and item.stage for item in BUGS)


def test_a_third_are_of_turns_ranks_or_asynchrony():
    sources = (turn_bugs, turn_loss_bugs, conversation_bugs, rank_bugs, replica_bugs, asynchronous_bugs, staleness_bugs)
    of_topics = {item.name for source in sources for item in source.BUGS}
    of_topics |= {item.name for item in BUGS if "ranks" in item.needs or item.overrides[:3] == turn_bugs.TURNS}
    assert 3 * len(of_topics) >= len(BUGS), len(of_topics)
    # Those that no recording tells apart must not be named.
    assert sum(not item.causes for item in BUGS) <= 11


@pytest.mark.parametrize("bug", BUGS, ids=lambda item: item.name)
def test_a_bug_is_in_place_while_it_lasts_and_gone_afterwards(bug):
    places = [_owner(at) for at in bug.at]
    before = [vars(owner)[name] for owner, name in places]
    with injected(bug.name):
        assert all(vars(owner)[name] is not right for (owner, name), right in zip(places, before, strict=True))
    assert [vars(owner)[name] for owner, name in places] == before


def test_an_unknown_bug_is_answered_with_the_nearest():
    with pytest.raises(UsageError) as caught:
        find_bug("clip-hihg")
    assert "clip-high" in caught.value.hint


def test_thread_ranks_exchange_in_rank_order():
    import torch

    meeting = ThreadMeeting(3)
    seats = [meeting.join(rank, None) for rank in range(3)]

    def work(rank):
        gathered = [int(part) for part in seats[rank].gather(torch.tensor(rank))]
        total, first = torch.tensor(rank), torch.tensor(rank)
        seats[rank].add_up(total)
        seats[rank].take_from_first(first)
        return gathered, int(total), int(first)

    assert meeting.each([lambda rank=rank: work(rank) for rank in range(3)]) == [([0, 1, 2], 3, 0)] * 3


def test_a_rank_that_fails_does_not_leave_the_others_waiting():
    import torch

    meeting = ThreadMeeting(2)

    def waits():
        meeting.join(0, None).gather(torch.zeros(1))

    def fails():
        raise RuntimeError("rank 1 broke")

    with pytest.raises(RuntimeError, match="rank 1 broke"):
        meeting.each([waits, fails])
    assert threading.active_count() < 20


def test_the_matrix_covers_every_cut_kernel_and_precision():
    clean = clean_cells(10, cuda=True)
    assert len(clean) == 10 * (3 * (11 + 6) + 11)
    assert len({cell.name for cell in clean}) == len(clean)
    kernels = {tuple(cell.environment.items()) for cell in clean if "policy.ranks=4" in cell.overrides}
    assert len(kernels) >= 3  # the default, another one, a GPU's
    assert {cell.reference.seed for cell in clean} == set(range(10))


def test_bugs_are_drawn_into_cells_where_they_change_something():
    drawn = bug_cells(3)
    assert {cell.bug for cell in drawn} == {bug.name for bug in BUGS} and len(drawn) == len(BUGS)
    more = bug_cells(3, 2 * len(BUGS))
    assert bug_cells(3, 10) == drawn[:10] and more[: len(BUGS)] == drawn
    assert len({cell.name for cell in more}) == len(more)
    for cell in more:
        needs = find_bug(cell.bug).needs
        assert "ranks" not in needs or "policy.ranks=1" not in cell.overrides
        assert "padding" not in needs or "policy.micro_batch_size=1" not in cell.overrides
        assert "float32" not in needs or cell.reference.precision == ""
