"""A model's requests run in the order of their numbers, each exactly once."""

import asyncio
import random

import pytest

from rldbg.training_service.errors import ConflictError, SequenceGapError, ServiceRequestError
from rldbg.training_service.operations import Operation, Operations
from rldbg.training_service.request_order import RequestOrder


def submit(sequence, number, ran, digest=None):
    operation = Operation("work")
    return sequence.submit(number, digest or str(number).encode(), operation, lambda: ran.append(number))


def test_whatever_the_arrival_requests_run_by_number():
    async def scenario():
        for seed in range(20):
            sequence, ran = RequestOrder(), []
            numbers = list(range(1, 30))
            random.Random(seed).shuffle(numbers)
            for number in numbers:
                submit(sequence, number, ran)
            assert ran == list(range(1, 30))
            assert sequence.next == 30

    asyncio.run(scenario())


def test_a_request_that_is_early_waits_and_runs_when_the_gap_closes():
    async def scenario():
        sequence, ran = RequestOrder(), []
        submit(sequence, 2, ran)
        assert ran == []
        submit(sequence, 1, ran)
        assert ran == [1, 2]

    asyncio.run(scenario())


def test_a_repetition_gives_the_same_operation_and_another_request_under_its_number_is_refused():
    async def scenario():
        sequence, ran = RequestOrder(), []
        first = submit(sequence, 1, ran)
        assert submit(sequence, 1, ran) is first
        assert ran == [1]
        with pytest.raises(ConflictError, match="already used by another"):
            submit(sequence, 1, ran, digest=b"other")
        early = submit(sequence, 3, ran)
        assert submit(sequence, 3, ran) is early

    asyncio.run(scenario())


def test_numbers_start_at_one():
    async def scenario():
        with pytest.raises(ServiceRequestError, match="numbered from 1"):
            submit(RequestOrder(), 0, [])

    asyncio.run(scenario())


def test_a_refused_request_uses_its_number():
    async def scenario():
        sequence, ran = RequestOrder(), []
        refused = Operation("refused")
        refused.fail(ServiceRequestError("malformed"))
        sequence.submit(1, b"1", refused, None)
        submit(sequence, 2, ran)
        assert ran == [2]

    asyncio.run(scenario())


def test_a_gap_that_never_closes_fails_the_waiting_and_names_the_missing():
    async def scenario():
        sequence, ran = RequestOrder(gap_timeout_s=0.01), []
        waiting = submit(sequence, 3, ran)
        assert await waiting.wait(5)
        assert isinstance(waiting.error, SequenceGapError)
        assert "seq_id 1" in waiting.error.message
        # The late ones still run; the one that failed does not.
        submit(sequence, 1, ran)
        submit(sequence, 2, ran)
        submit(sequence, 4, ran)
        assert ran == [1, 2, 4]

    asyncio.run(scenario())


def test_an_operation_has_one_outcome():
    async def scenario():
        operation = Operation("work", present=lambda result: result * 2)
        operation.succeed(21)
        operation.fail(ServiceRequestError("late"))
        operation.succeed(0)
        assert operation.answer == 42
        assert await operation.outcome() == 21

    asyncio.run(scenario())


def test_old_results_are_forgotten_but_never_unfinished_ones_and_unfetched_ones_last():
    async def scenario():
        operations = Operations(kept=3, kept_unfetched=6)
        pending = operations.add(Operation("pending"))
        unfetched = operations.add(Operation("unfetched"))
        unfetched.succeed(1)
        done = []
        for _ in range(4):
            done.append(operations.add(Operation("done")))
            done[-1].succeed(2)
            assert done[-1].answer == 2
        assert operations.get(pending.id) is pending
        assert operations.get(unfetched.id) is unfetched
        assert operations.get(done[-1].id) is done[-1]
        with pytest.raises(ServiceRequestError, match="no operation"):
            operations.get(done[0].id)
        assert done[0].result is None, "what is forgotten holds no memory"
        with pytest.raises(ServiceRequestError, match="forgotten"):
            _ = done[0].answer
        for _ in range(8):
            operations.add(Operation("more"))
        assert operations.find(unfetched.id) is None
        assert operations.get(pending.id) is pending

    asyncio.run(scenario())
