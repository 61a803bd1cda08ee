"""The problems a run is trained on: a seeded stream of prompts, how answers are scored, and the reply to a wrong one.

Group ids name the problem and how often it has come up (`3+4#0`), so they are the same in every run with the same
data and seed, and no two groups of a run share one.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import UsageError, explained_as
from rldbg.trainer.settings import DataSettings

_OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


@dataclass(frozen=True, slots=True)
class Problem:
    """One prompt and the one answer that is right."""

    task_id: str
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class ProblemGroup:
    """One problem as it comes up in a step; all its samples share the group id."""

    group_id: str
    problem: Problem


def load_problems(settings: DataSettings) -> tuple[Problem, ...]:
    """Every problem of the data, in its own order."""
    problems = (
        _arithmetic(settings.operators, settings.largest)
        if settings.task == "arithmetic"
        else _from_file(settings.task)
    )
    if not problems:
        raise UsageError("the data has no prompts", "check data.task and data.operators in the recipe")
    return problems


def _arithmetic(operators: str, largest: int) -> tuple[Problem, ...]:
    unknown = set(operators) - set(_OPERATIONS)
    if unknown:
        raise UsageError(f"data.operators has {''.join(sorted(unknown))!r}", f"use any of {''.join(_OPERATIONS)}")
    return tuple(
        Problem(f"{a}{operator}{b}", f"{a}{operator}{b}=", str(_OPERATIONS[operator](a, b)))
        for operator in operators
        for a in range(largest + 1)
        for b in range(largest + 1)
    )


def _from_file(name: str) -> tuple[Problem, ...]:
    file = Path(name)
    if file.suffix != ".jsonl":
        raise UsageError(f"data.task is {name!r}", "use `arithmetic`, or a .jsonl file of prompts and answers")
    with explained_as(UsageError, OSError, f"cannot read the prompts {file}", "check data.task"):
        lines = file.read_text(encoding="utf-8").splitlines()
    return tuple(_problem(line, f"{file}:{number}", number) for number, line in enumerate(lines, 1) if line.strip())


def _problem(line: str, where: str, number: int) -> Problem:
    try:
        row: dict[str, Any] = json.loads(line)
        return Problem(str(row.get("id", number - 1)), str(row["prompt"]), str(row["answer"]))
    except (ValueError, KeyError, AttributeError) as error:
        raise UsageError(f"{where} is not a prompt: {error}", 'write {"prompt": "...", "answer": "..."}') from error


def groups_of_step(
    problems: tuple[Problem, ...], settings: DataSettings, seed: int, step: int
) -> tuple[ProblemGroup, ...]:
    """The groups of one step: a slice of the stream, which iterates over the problems in a new order each time."""
    start = step * settings.prompts_per_step
    places = range(start, start + settings.prompts_per_step)
    return tuple(_group_at(problems, seed, place) for place in places)


def _group_at(problems: tuple[Problem, ...], seed: int, place: int) -> ProblemGroup:
    visit, position = divmod(place, len(problems))
    order = np.random.default_rng([seed, visit]).permutation(len(problems))
    problem = problems[int(order[position])]
    return ProblemGroup(f"{problem.task_id}#{visit}", problem)


def is_right(problem: Problem, answer: str) -> bool:
    return answer.strip() == problem.answer


def score(turn: int, right: bool) -> float:
    """1 for a right first answer, half as much for each further try, 0 for none."""
    return 0.5**turn if right else 0.0


def feedback(problem: Problem, how: str) -> str:
    """The reply to a wrong answer when the sample may try again."""
    return f" calc .{problem.answer[-1]} {problem.prompt}" if how == "tool" else " no "


def supervised_texts(
    problems: tuple[Problem, ...], *, seed: int, batch_size: int, wrong_fraction: float
) -> Iterator[list[tuple[str, str]]]:
    """Batches of (prompt, answer) without end; a share of the answers belongs to other problems."""
    generator = np.random.default_rng([seed, 0x5EED])
    while True:
        chosen = generator.integers(len(problems), size=batch_size)
        others = generator.integers(len(problems), size=batch_size)
        wrong = generator.random(batch_size) < wrong_fraction
        answers = np.where(wrong, others, chosen)
        yield [(problems[row].prompt, problems[answer].answer) for row, answer in zip(chosen, answers, strict=True)]
