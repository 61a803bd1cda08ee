"""A cause told with what its log says of this run: its numbers in the settings, the options that a program lacks, the
settings that were not given, the releases that do not fit."""

import re
from collections.abc import Sequence
from dataclasses import replace

from rldbg.core import redact_text
from rldbg.doctor.answer.diagnosis import Cause
from rldbg.doctor.clues.allocations import is_of_memory
from rldbg.doctor.clues.api_history import asked_package, told_by_history
from rldbg.doctor.clues.arithmetic import told_by_numbers
from rldbg.doctor.clues.attribute_owners import ENTRY as INTERFACE
from rldbg.doctor.clues.attribute_owners import told_of_attribute
from rldbg.doctor.clues.broken_metrics import ENTRY as NOT_FINITE
from rldbg.doctor.clues.broken_metrics import told_of_metrics
from rldbg.doctor.clues.build_tools import ENTRY as COMPILER_CRASHED
from rldbg.doctor.clues.build_tools import told_of_build
from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.clues.collectives import MISMATCH, told_of_ranks
from rldbg.doctor.clues.crash_activity import ENTRY as AT_WORK
from rldbg.doctor.clues.crash_activity import told_of_crash
from rldbg.doctor.clues.engine_requests import MEMORY_SAVER, told_of_memory
from rldbg.doctor.clues.http_answers import ANSWERED, told_of_answer
from rldbg.doctor.clues.interfaces import given_function, told_of_missing_module
from rldbg.doctor.clues.launchers import ENTRY as PORT_IN_USE
from rldbg.doctor.clues.launchers import told_of_launchers
from rldbg.doctor.clues.logged_settings import LoggedSettings
from rldbg.doctor.clues.memory_lines import ENTRY as GPU_MEMORY
from rldbg.doctor.clues.memory_lines import told_of_line
from rldbg.doctor.clues.memory_tables import ENTRY as HOST_MEMORY
from rldbg.doctor.clues.memory_tables import told_of_memory_table
from rldbg.doctor.clues.none_values import settings_not_given
from rldbg.doctor.clues.one_node import told_of_one_node
from rldbg.doctor.clues.options import Refusal, refused_option
from rldbg.doctor.clues.releases import printed_releases
from rldbg.doctor.clues.scoring import ENTRY as SCORING
from rldbg.doctor.clues.scoring import told_of_scoring
from rldbg.doctor.clues.unanswered_addresses import ENTRY as NEVER_ANSWERS
from rldbg.doctor.clues.unanswered_addresses import told_of_address
from rldbg.doctor.logs.evidence import Failure, LogEvidence
from rldbg.doctor.logs.sources import LogSource
from rldbg.doctor.logs.survival import holds
from rldbg.doctor.verdict.judgement import Judgement, Sighting
from rldbg.doctor.verdict.lasting import first_time

_OF_INTERFACE = re.compile(
    r"unexpected keyword argument|missing \d+ required (?:positional|keyword-only)|cannot import name|No module named|"
    r"has no attribute"
)
_MODULE_MISSING = "python-module-missing"
_COMPARED = re.compile(r"pip show ((?:[a-z][\w-]*(?: (?=[a-z]))?)+)")


def refined(
    cause: Cause, sighting: Sighting, judgement: Judgement, evidence: LogEvidence, sources: Sequence[LogSource]
) -> Cause:
    """A root cause with the first of these that its log says; any other sighting as it is."""
    if sighting not in judgement.causes:
        return cause
    told = _refined(cause, sighting, judgement, evidence, sources)
    if sighting.entry.id == GPU_MEMORY:
        told = _of_memory(told, sighting, judgement, evidence, sources)
    return _located(told, sighting, judgement, evidence, sources)


def _refined(
    cause: Cause, sighting: Sighting, judgement: Judgement, evidence: LogEvidence, sources: Sequence[LogSource]
) -> Cause:
    if sighting.entry.id == MISMATCH and (ranks := told_of_ranks(evidence, sighting.first)):
        return replace(cause, detail=ranks)
    if told := _told_by_clues(sighting, evidence, sources):
        return _retold(cause, told)
    if sighting.entry.id == NOT_FINITE and first_time(sighting):
        return _retold(cause, told_of_metrics(sighting.first, cause.detail, sources))
    failure = _failure_of(sighting, judgement, evidence)
    if told := _told_by_code(cause, sighting, failure):
        return _retold(cause, told)
    if words := redact_text(told_by_numbers(failure, sources)):
        return replace(cause, detail=_with_sentence(cause, words, is_first=is_of_memory(failure.headline)))
    if refusal := refused_option(failure, sources):
        return _of_refusal(cause, refusal)
    if options := settings_not_given(failure):
        return _of_settings(cause, " or ".join(options))
    if given := given_function(failure):
        step = given.rpartition("; ")[2].rstrip(".")
        return replace(cause, fix=(f"{step[:1].upper()}{step[1:]}", *cause.fix))
    return _told_by_releases(cause, failure, sources) or cause


def _of_memory(
    cause: Cause, sighting: Sighting, judgement: Judgement, evidence: LogEvidence, sources: Sequence[LogSource]
) -> Cause:
    """A lack of memory on a GPU with the line that asked for it."""
    hit = sighting.first
    settings = LoggedSettings.above(hit.place, sources)
    said = _failure_of(sighting, judgement, evidence).headline
    told = told_of_line(hit, said, sources, settings, is_counted="is one tensor: " in cause.detail)
    if told is None:
        return cause
    detail = "; ".join(filter(None, (cause.detail.rstrip("."), redact_text(told.detail))))
    return replace(cause, detail=f"{detail}.", fix=(*told.fix, *cause.fix))


def _located(
    cause: Cause, sighting: Sighting, judgement: Judgement, evidence: LogEvidence, sources: Sequence[LogSource]
) -> Cause:
    """A cause with the only node on which it was seen."""
    said = _failure_of(sighting, judgement, evidence).headline
    found = told_of_one_node(said, sighting.hits, sources)
    if found is None:
        return cause
    detail = "; ".join(filter(None, (redact_text(found.words), cause.detail)))
    return replace(cause, detail=detail, fix=(redact_text(found.step), *cause.fix))


def _told_by_code(cause: Cause, sighting: Sighting, failure: Failure) -> CauseWords | None:
    """What the failing line and the frames of an exception say."""
    if sighting.entry.id == SCORING and cause.title == sighting.entry.title:
        return told_of_scoring(failure)
    if sighting.entry.id == _MODULE_MISSING and cause.title == sighting.entry.title:
        return told_of_missing_module(failure)
    if sighting.entry.id == INTERFACE:
        return told_of_attribute(failure)
    return None


def _told_by_clues(sighting: Sighting, evidence: LogEvidence, sources: Sequence[LogSource]) -> CauseWords | None:
    """What lines that count together say."""
    if sighting.entry.id == NEVER_ANSWERS:
        return told_of_address(sighting.hits)
    if sighting.entry.id == AT_WORK:
        return told_of_crash(sighting.hits, sources)
    if sighting.entry.id == COMPILER_CRASHED:
        return told_of_build(sighting.hits, sources)
    if sighting.entry.id == MEMORY_SAVER:
        return told_of_memory(sighting.hits, evidence)
    if sighting.entry.id == PORT_IN_USE:
        return told_of_launchers(sighting.hits, sources)
    if sighting.entry.id == HOST_MEMORY:
        return told_of_memory_table(sighting.hits, sources)
    if sighting.entry.id in ANSWERED:
        return told_of_answer(sighting.hits)
    return None


def _retold(cause: Cause, told: CauseWords) -> Cause:
    steps = tuple(map(redact_text, told.fix))
    return replace(
        cause,
        title=redact_text(told.title) or cause.title,
        title_zh=redact_text(told.title_zh) or cause.title_zh,
        detail=redact_text(told.detail) or cause.detail,
        cause=redact_text(told.cause) or cause.cause,
        fix=steps if told.is_whole else (*steps, *cause.fix),
    )


def _failure_of(sighting: Sighting, judgement: Judgement, evidence: LogEvidence) -> Failure:
    """The exception around the first line of a cause; the line itself where it is none."""
    hit = sighting.first
    if sighting.by_family and judgement.first_error is not None:
        return judgement.first_error
    holder = next((failure for failure in evidence.failures if holds(failure, hit)), None)
    return holder or Failure("", hit.text, hit.place)


def _with_sentence(cause: Cause, told: str, *, is_first: bool) -> str:
    """The detail with a sentence in its first part, which the headline shows; or before all of it."""
    if is_first:
        return f"{told}; {cause.detail}".removesuffix("; ")
    head, semicolon, rest = (cause.detail or cause.words).partition("; ")
    return f"{head.rstrip('.')}: {told}{semicolon}{rest}"


def _of_refusal(cause: Cause, refusal: Refusal) -> Cause:
    title, title_zh = redact_text(refusal.title), redact_text(refusal.title_zh)
    return replace(cause, title=title, title_zh=title_zh, detail=redact_text(f"{refusal.words}."), fix=refusal.fix)


def _of_settings(cause: Cause, options: str) -> Cause:
    fix = f"Give {options}; `--help` or the framework's recipes say what it is"
    title = f"A setting that the code needs was not given: {options}"
    return replace(cause, title=title, title_zh=f"代码需要的设置没有给出：{options}", fix=(fix, *cause.fix))


def _told_by_releases(cause: Cause, failure: Failure, sources: Sequence[LogSource]) -> Cause | None:
    """What the releases say of an exception about something that another package does not have."""
    said = failure.headline
    if not _OF_INTERFACE.search(said):
        return None
    compared = [name for found in _COMPARED.findall(cause.detail) for name in found.split()]
    packages = dict.fromkeys((asked_package(said), *compared))
    printed = printed_releases(packages, sources)
    verdict = told_by_history(said, failure.frames, printed)
    if not (printed or verdict):
        return None
    head, semicolon, rest = (cause.detail or said).rstrip(".").partition("; ")
    words = f"{head}: {verdict.words}" if verdict else head
    shown = ", ".join(f"{name} {release}" for name, release in printed.items())
    ends = f"; this log prints {shown}" if shown else ""
    told = redact_text(f"{words}{semicolon}{rest}{ends}.")
    return replace(cause, detail=told, fix=((verdict.fix,) if verdict else ()) + cause.fix)
