"""By which condition, loop, return or exception a rank passes by the line where another one waits."""

import ast
import contextlib
import os
import sys
from pathlib import Path

import pytest

from rldbg.agent.waits.code.resolving import texts_of
from rldbg.agent.waits.code.routes import lines_entering, route
from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.reading.objects import OwnFrame
from rldbg.live.diagnosis.passed_by import has_left, other_branch_of, passed_by


class Reached(Exception):
    """The rank waits here."""


class Rank:
    """Runs a program until the named collective; `route` is how it came there."""

    def __init__(self, number, waits_in):
        self.number, self._waits_in, self.route = number, waits_in, []

    def collective(self, name):
        if name == self._waits_in:
            frame, frames = sys._getframe(1), []
            while frame is not None and frame.f_code.co_name != "_route":
                frames.append(OwnFrame(frame))
                frame = frame.f_back
            self.route = route(frames, Sources(os.getpid()))
            raise Reached


def condition(rank):
    if rank.number == 0:
        rank.collective("first")
    rank.collective("second")


def other_branch(rank):
    if rank.number == 1:
        pass
    else:
        rank.collective("first")
    rank.collective("second")


def early_return(rank):
    _update(rank, [] if rank.number else [1])
    rank.collective("second")


def _update(rank, samples):
    if not samples:
        return
    rank.collective("first")


def early_break(rank):
    for number in range(3):
        if number == 1 and rank.number:
            break
        rank.collective("first" if number else "")
    rank.collective("second")


def skipped_round(rank):
    for number in range(3):
        if number == 2 and rank.number:
            continue
        rank.collective("first" if number == 2 else "")
    rank.collective("second")


def fewer_rounds(rank):
    data = list(range(3 - rank.number))
    for number in data:
        rank.collective("first" if number == 2 else "")
    rank.collective("second")


def handled(rank):
    try:
        _raises(rank)
        rank.collective("first")
    except ValueError:
        pass
    rank.collective("second")


def _raises(rank):
    if rank.number:
        raise ValueError


def every_step(rank):
    for step in range(5):
        if step != 3 or rank.number == 0:
            rank.collective("first" if step == 3 else "")
        rank.collective("second" if step == 3 else "")


def counted_rounds(rank):
    for step in range(5):
        if rank.number or step < 3:
            rank.collective("second" if step == 4 else "")
        if rank.number == 0 or step != 3:
            rank.collective("first" if step == 3 else "")


def unknown_rounds(rank):
    for batch in iter([[0], [1]]):
        if rank.number == 0:
            rank.collective("first" if batch == [1] else "")
        rank.collective("second" if batch == [1] else "")


def roles(rank):
    if rank.number == 0:
        _sync(rank)
    else:
        rank.collective("own")
        _sync(rank)


def _sync(rank):
    rank.collective("first")
    if rank.number == 5:
        return
    rank.collective("second")


def both_may_skip(rank):
    for batch in iter([[0], [1]]):
        if rank.number == 0:
            rank.collective("first" if batch == [1] else "")
        if rank.number == 1:
            rank.collective("second")


def several_ways(rank):
    while rank.number < 9:
        if rank.number == 5:
            break
        if rank.number == 6:
            continue
        if rank.number:
            break
        rank.collective("first")
    rank.collective("second")


def left_by_break(rank):
    step, failed = 0, 0
    while step < 9:
        if failed > 3:
            break
        if rank.number:
            break  # it is taken
        rank.collective("first")
        step += 1
    rank.collective("second")


def left_by_break_of_range(rank):
    for step in range(9):
        if step == 2 and rank.number:
            break
        rank.collective("first" if step == 2 else "other")
    rank.collective("second")


def short_circuit(rank):
    _ = rank.number == 0 and rank.collective("first")
    rank.collective("second")


def _route(program, number, waits_in):
    rank = Rank(number, waits_in)
    with contextlib.suppress(Reached):
        program(rank)
    return rank.route


def _line(program, text):
    lines = Path(__file__).read_text().splitlines()
    start = program.__code__.co_firstlineno
    return start + next(n for n, line in enumerate(lines[start - 1 :]) if text in line)


@pytest.mark.parametrize(
    ("program", "said", "at"),
    [
        (condition, "`rank.number == 0` (test_routes.py:{}; now rank.number = 1) did not hold", "if"),
        (other_branch, "`rank.number == 1` (test_routes.py:{}; now rank.number = 1) held", "if"),
        (early_return, "it took `return` at test_routes.py:{} under `not samples`", "return"),
        (early_break, "it took `break` at test_routes.py:{} under `number == 1 and rank.number`", "    break"),
        (skipped_round, "it took `continue` at test_routes.py:{} under `number == 2 and rank.number`", "continue"),
        (
            fewer_rounds,
            "`for number in data` (test_routes.py:{}; now len(data) = 2) ended after fewer rounds",
            "for",
        ),
        (handled, "an exception, which is handled at test_routes.py:{} (`except ValueError`)", "except"),
        (every_step, "`step != 3 or rank.number == 0` (test_routes.py:{}; now step = 3, rank.number = 1) did", "if"),
        (counted_rounds, "`rank.number == 0 or step != 3` (test_routes.py:{}", "if rank.number == 0"),
        (left_by_break, "it took `break` at test_routes.py:{} under `rank.number`", "    break  # it"),
        (left_by_break_of_range, "it took `break` at test_routes.py:{} under `step == 2", "    break"),
        (unknown_rounds, "`rank.number == 0` (test_routes.py:{}; now rank.number = 1) did not hold", "if"),
    ],
)
def test_how_a_rank_has_passed_by_a_collective_is_told(program, said, at):
    waiting, other = _route(program, 0, "first"), _route(program, 1, "second")
    where = _line(_update if program is early_return else program, at)
    assert passed_by(waiting, other, waits=True).startswith(said.format(where))
    assert passed_by(other, waiting, waits=True) == ""


def test_who_is_in_the_other_branch_may_come_to_the_call_there():
    waiting, other = _route(roles, 0, "first"), _route(roles, 1, "own")
    assert passed_by(waiting, other, waits=True) == ""
    said = f"`rank.number == 0` (test_routes.py:{_line(roles, 'if')}; now rank.number = 1)"
    assert other_branch_of(waiting, other) == said and other_branch_of(waiting, waiting) == ""
    assert other_branch_of(_route(condition, 0, "first"), _route(condition, 1, "second")) == ""


def test_who_is_further_down_in_the_same_function_has_left_the_call():
    first, second, own = _route(roles, 0, "first"), _route(roles, 1, "second"), _route(roles, 1, "own")
    assert has_left(first, second) and not has_left(second, first) and not has_left(first, own)
    # Something may lead past it, or the rounds of a loop are not known.
    assert not has_left(second, _route(roles, 0, "second"))
    for program in (condition, unknown_rounds):
        assert not has_left(_route(program, 0, "first"), _route(program, 1, "second"))


@pytest.mark.parametrize("program", [both_may_skip, several_ways, short_circuit])
def test_nothing_is_claimed_where_the_source_does_not_prove_it(program):
    assert passed_by(_route(program, 0, "first"), _route(program, 1, "second"), waits=True) == ""


def test_a_rank_that_computes_in_an_unknown_round_may_not_have_come_there_yet():
    waiting, other = _route(unknown_rounds, 0, "first"), _route(unknown_rounds, 1, "second")
    assert passed_by(waiting, other, waits=False) == ""


@pytest.mark.parametrize(("text", "said"), [("f'step/{step:04d}/ready'", "step/0007/ready"), ("f'{step:x>3}'", "xx7")])
def test_formatted_keys_are_told_as_they_are(text, said):
    step = 7
    assert texts_of(ast.parse(text, mode="eval").body, OwnFrame(sys._getframe())) == [said] and step


def test_a_thread_that_runs_no_code_of_the_user_has_no_route():
    assert route([], Sources(os.getpid())) == []


class dist:  # noqa: N801 - as torch.distributed is called
    """Nothing of it is run."""


def exchange(weights, connection, peer):
    dist.send(weights, peer)
    dist.recv(weights, src=peer + 1)
    dist.barrier()
    connection.send(weights, peer)


def test_the_other_side_of_sends_and_receives_is_told_as_it_is_written():
    frame = OwnFrame(sys._getframe())
    lines = lines_entering([frame], Sources(os.getpid()))
    told = {op: [line["peer"] for line in each if line["function"] == "exchange"] for op, each in lines.items()}
    assert told == {"send": ["peer"], "recv": ["peer + 1"], "barrier": [""]}
