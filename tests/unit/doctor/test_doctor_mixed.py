"""Logs that others wrote into: a failure stays one between lines of other programs, and healthy lines make none."""

import random

import pytest

from rldbg.doctor import diagnose
from third_party import material, needs

from .logs import TEMPLATES, healthy_lines

LOGS = material("knowledge/logs")
FAILING = sorted(LOGS.glob("*.log"))
COUNTING = tuple(template.partition("{")[0] for template in TEMPLATES if "{step}" in template)


def mixed(lines, others, seed, *, until=None):
    """All the other lines, in their order, spread over some lines of a log, whose last line stays the last."""
    rng = random.Random(seed)
    places = sorted(rng.randrange(until or len(lines)) for _ in others)
    out, taken = [], 0
    for number, line in enumerate(lines):
        while taken < len(others) and places[taken] <= number:
            out.append(others[taken])
            taken += 1
        out.append(line)
    return out


def verdict(lines, tmp_path, index):
    (tmp_path / "mixed.log").write_text("\n".join(lines) + "\n")
    return diagnose([tmp_path / "mixed.log"], index=index)


@needs(LOGS)
@pytest.mark.parametrize("prefix", ["", "service-1  | ", "[pod/web-0/app] "])
@pytest.mark.parametrize("log", FAILING, ids=lambda path: path.stem)
def test_between_lines_of_services_a_failure_stays_one(log, prefix, index, tmp_path):
    lines = [line for line in log.read_text(errors="replace").split("\n") if line.strip()]
    others = [prefix + line for line in healthy_lines(80, seed=3) if not line.startswith(COUNTING)]
    found = verdict(mixed(lines, others, seed=1), tmp_path, index)
    assert found.verdict != "healthy"


def test_steps_that_are_counted_inside_a_traceback_do_not_outlive_it(index, tmp_path):
    """Whatever another run counts between the lines of a traceback, the exception at its end is not outlived."""
    frames = [
        part
        for number in range(12)
        for part in (f'  File "/w/app/part{number}.py", line {number + 3}, in call{number}', f"    call{number + 1}(x)")
    ]
    for exception in ("frob.errors.FrobError: the wibble is loose", "torch.OutOfMemoryError: CUDA out of memory."):
        trace = ["Traceback (most recent call last):", '  File "/w/app/run.py", line 3, in main', *frames, exception]
        for seed in range(5):
            found = verdict(mixed(trace, healthy_lines(60, seed=seed), seed), tmp_path, index)
            assert found.verdict != "healthy", (exception, seed)


def test_healthy_logs_mixed_with_each_other_stay_healthy(index, tmp_path):
    for seed in range(8):
        one, other = healthy_lines(70, seed=seed), [f"side  | {line}" for line in healthy_lines(70, seed=seed + 100)]
        assert verdict(mixed(one, other, seed), tmp_path, index).verdict == "healthy", seed


def test_a_name_that_is_imported_in_the_mixed_tracebacks_of_two_ranks_was_not_raised(verdict):
    log = """Traceback (most recent call last):
  File "/w/train.py", line 2, in <module>
Traceback (most recent call last):
  File "/w/train.py", line 2, in <module>
    from huggingface_hub.frob import RepositoryNotFoundError
ModuleNotFoundError: No module named 'huggingface_hub.frob'
    from huggingface_hub.frob import RepositoryNotFoundError
ModuleNotFoundError: No module named 'huggingface_hub.frob'
"""
    assert [cause.id for cause in verdict(log).root_causes] == ["python-module-missing"]


LAUNCHER = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "/w/train.py", line 3, in <module>',
    "[rank1]:     main()",
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "Traceback (most recent call last):",
    '  File "/v/bin/torchrun", line 8, in <module>',
    "    sys.exit(main())",
    '  File "/v/torch/distributed/launcher/api.py", line 269, in launch_agent',
    "    raise ChildFailedError(",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "============================================================",
    "train.py FAILED",
    "  exitcode  : 1 (pid: 884)",
]


def test_steps_of_another_run_do_not_outlive_a_launcher_that_ended(index, tmp_path):
    other = [f"Training Progress:  {step}%|#  | {step}/150 [23:07<5:43:53, 146.34s/it]" for step in range(1, 31)]
    log = [*other[:12], *LAUNCHER, *other[12:], "the last line of the other run"]
    assert [cause.id for cause in verdict(log, tmp_path, index).root_causes] == ["torch-cuda-oom"]


def test_steps_that_begin_after_a_launcher_ended_are_of_the_next_program(index, tmp_path):
    after = [f"step: {step} loss: 0.{90 - step}" for step in range(1, 31)]
    assert verdict([*LAUNCHER, *after], tmp_path, index).verdict == "healthy"


def raised(exception, place):
    return [
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 30, in <module>',
        "    main()",
        f'  File "/w/{place}.py", line 7, in {place}',
        f"    {place}(batch)",
        exception,
    ]


@pytest.mark.parametrize("prefix", ["[rank{}]: ", "[default{}]:", "{}: "])
def test_tracebacks_of_ranks_that_write_at_once_are_kept_apart(prefix, index, tmp_path):
    seam = [prefix.format(3) + line for line in raised("quilts.PatchworkError: seam 3 was sewn twice", "sew")]
    gone = [prefix.format(1) + line for line in raised("ConnectionResetError: [Errno 104] Connection reset", "talk")]
    for seed in range(8):
        first = verdict(mixed(seam, gone, seed), tmp_path, index).first_error
        assert first.headline == "quilts.PatchworkError: seam 3 was sewn twice", seed
        assert first.frames == ("/w/train.py:30 in <module>", "/w/sew.py:7 in sew"), seed
        assert first.place.speaker.rank == "3"


def test_ranks_that_name_themselves_only_above_a_traceback_are_kept_apart(index, tmp_path):
    lines = []
    for rank, place in enumerate(("sew", "knit")):
        head, *rest = raised(f"quilts.PatchworkError: {place} failed at seam {rank}", place)
        lines += [f"[2026-11-15 10:00:00 TP{rank}] Scheduler hit an exception: {head}", *rest]
    assert verdict(lines, tmp_path, index).first_error.frames == ("/w/train.py:30 in <module>", "/w/sew.py:7 in sew")
