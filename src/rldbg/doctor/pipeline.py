"""From paths to a diagnosis, for `rldbg doctor PATH...` and `rldbg run`."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rldbg.core import ExitCode, Finding, Run, Severity, redact_text, write_whole
from rldbg.doctor.answer.causes import told_above, told_cause
from rldbg.doctor.answer.diagnosis import Cause, Diagnosis, ProbeResult, Quote
from rldbg.doctor.answer.guidance import asks_nccl, names_library, next_steps
from rldbg.doctor.clues.collectives import unlike_collectives
from rldbg.doctor.clues.crash_activity import crashes_at_work
from rldbg.doctor.clues.engine_requests import uses_while_asleep
from rldbg.doctor.clues.http_answers import answers_told_below
from rldbg.doctor.clues.long_phases import long_phases
from rldbg.doctor.clues.mentions import Mention, mentions, words_of_nccl
from rldbg.doctor.clues.native_stacks import crashed_library
from rldbg.doctor.clues.operations import unfit_calls
from rldbg.doctor.clues.signals import sender_of
from rldbg.doctor.clues.told_before import told_before
from rldbg.doctor.clues.unanswered_addresses import asked_in_vain
from rldbg.doctor.jobs import JobFacts, job_facts
from rldbg.doctor.knowledge.entries import Role
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.knowledge.patterns import SearchIndex
from rldbg.doctor.logs.evidence import Hit, LogEvidence, excerpt
from rldbg.doctor.logs.flight_recorder import FlightReport, findings_of, read_dumps
from rldbg.doctor.logs.run_evidence import stack_findings
from rldbg.doctor.logs.sources import LogSource, find_sources
from rldbg.doctor.logs.survival import holds
from rldbg.doctor.machine.probes import probe_machine
from rldbg.doctor.scan import Scanner
from rldbg.doctor.verdict.attempts import Attempt, attempts_in
from rldbg.doctor.verdict.handled import without_handled
from rldbg.doctor.verdict.judgement import Judgement, Sighting
from rldbg.doctor.verdict.root_cause import judge

_MENTION_SHOWN = 240
_ENDED_BY_SIGNAL = ("launcher-was-ended", "driver-was-ended")
"""What a launcher, or a driver of Ray, reports that was sent a signal."""
_NOT_A_FAILURE = (None, 0, ExitCode.INTERRUPTED)
_SILENT_FAILURE = (
    "the command ended with exit code {exit_code} and these logs contain no error: read the end of its output; "
    "export PYTHONFAULTHANDLER=1 before the next run"
)
_MISSING_END = (
    "run.json does not say how the run ended: the launcher was killed, or could not write; see dmesg -T for kills, and "
    "df -h and df -i of the run's folder"
)
_UNFINISHED = (
    "the log ends in the middle of a progress bar ({bar}) and says no more: if the program is not running any more, it "
    "was killed (dmesg -T | grep -i kill on its node, sacct -j <job>, kubectl describe pod <pod>) or wrote its error "
    "elsewhere"
)


def diagnose(
    paths: Sequence[str | Path],
    *,
    index: SearchIndex | None = None,
    probes: Sequence[ProbeResult] = (),
    facts: JobFacts | None = None,
    environment: dict[str, str] | None = None,
    exit_code: int | None = None,
    ended_by_user: bool = False,
    on_bytes: Callable[[int], None] | None = None,
    on_hit: Callable[[Hit], None] | None = None,
) -> Diagnosis:
    """Reads all logs under the paths together and names the root cause, or reports that it is not in them.

    An `index` made once serves any number of calls. `probes` are looks at the machine the logs come from,
    `environment` the variables of the job; both only raise or lower confidence, they never name a cause by themselves.
    With an `exit_code` that says failure the logs are never healthy, whatever is in them. These two are read from the
    run folder where they are not given. `ended_by_user`: who sent the signal that a launcher or a driver reports is no
    question.
    `facts` are what a caller has read in the run folder already.
    """
    facts = facts or job_facts(paths)
    exit_code = facts.exit_code if exit_code is None else exit_code
    index = index or SearchIndex(Library.load())
    failed = exit_code not in _NOT_A_FAILURE or facts.end_is_missing
    found = find_sources(paths, or_none=failed)
    scanner = Scanner(index, on_bytes=on_bytes, on_hit=on_hit)
    evidence = scanner.read_all(found.sources)
    if ended_by_user:
        evidence = replace(evidence, hits=[hit for hit in evidence.hits if hit.entry not in _ENDED_BY_SIGNAL])
    _add_what_led_to_it(evidence, found.sources, index.library)
    evidence, handled = without_handled(evidence, [source.path for source in found.sources if source.path])
    extra: list[Finding] = [*found.findings, *evidence.findings, *handled]
    flights = [read_dumps(folder) for folder in found.dump_folders]
    extra += [finding for report in flights for finding in findings_of(report)]
    extra += stack_findings(found.stacks)
    return conclude(
        evidence,
        index.library,
        probes=probes,
        environment=facts.environment if environment is None else environment,
        exit_code=exit_code,
        end_is_missing=exit_code is None and facts.end_is_missing,
        findings=extra,
        flights=flights,
        engine=index.engine_name,
        sources=found.sources,
    )


def _outlived(judgement: Judgement, cause_of: Callable[[Sighting], Cause]) -> str:
    """The title of a failure that was outlived; of a look-alike that is harmless only where nothing else was."""
    errors = [note for note in judgement.notes if note.entry.severity == "error"]
    return next((cause_of(note).title for note in sorted(errors, key=lambda n: n.entry.role is Role.BENIGN)), "")


def _add_what_led_to_it(evidence: LogEvidence, sources: Sequence[LogSource], library: Library) -> None:
    """Lines that only count together: a phase and the wait that it outlasted, the requests to an engine in their
    order."""
    led = [
        *long_phases(evidence, sources),
        *uses_while_asleep(evidence, sources, library),
        *_broken_rules(evidence, sources, library),
        *unfit_calls(evidence),
        *unlike_collectives(evidence),
        *answers_told_below(evidence, sources),
        *crashes_at_work(evidence, sources, library),
        *asked_in_vain(evidence, sources, library),
    ]
    for hit in (each for each in led if each.entry in library.entries):  # a folder of entries may replace all
        evidence.hits.append(hit)
        evidence.counts[hit.entry] = evidence.counts.get(hit.entry, 0) + 1


def _broken_rules(evidence: LogEvidence, sources: Sequence[LogSource], library: Library) -> Iterator[Hit]:
    """Those of `broken_rules`; a log without exceptions does not pay for their module."""
    if any(failure.kind.endswith("AssertionError") for failure in evidence.failures):
        from rldbg.doctor.clues.arithmetic import broken_rules

        yield from broken_rules(evidence, sources, library)


def conclude(
    evidence: LogEvidence,
    library: Library,
    *,
    probes: Sequence[ProbeResult] = (),
    environment: dict[str, str] | None = None,
    exit_code: int | None = None,
    end_is_missing: bool = False,
    findings: Sequence[Finding] = (),
    flights: Sequence[FlightReport] = (),
    engine: str = "",
    sources: Sequence[LogSource] = (),
) -> Diagnosis:
    """The diagnosis of evidence already gathered; in `sources` is looked for what else they say of an exception."""
    earlier, evidence = attempts_in(evidence, library)
    judgement = judge(evidence, library, ended_well=exit_code == 0)
    environment = environment or {}
    says = _words_of_nccl(judgement, sources)
    crashed = _crashed_library(judgement, sources)

    def cause_of(sighting: Sighting) -> Cause:
        from rldbg.doctor.answer.refinements import refined

        plain = told_cause(sighting, judgement, evidence, probes, environment)
        cause = refined(plain, sighting, judgement, evidence, sources)
        if cause is plain and (told := told_above(sighting, judgement, evidence, sources)):
            cause = replace(cause, detail=f"{(cause.detail or cause.words).rstrip('.')}; {told}")
        if names_library(sighting.entry) and (lib := crashed_library(sighting.hits, sources)):
            return replace(cause, detail=f"its stack names {lib} first")
        if says is not None and asks_nccl(sighting.entry) and not cause.detail:
            return replace(cause, detail=f"NCCL itself says: {says.text}")
        return cause

    found = bool(judgement.causes)
    failed = judgement.failed or any(report.culprits or report.mismatches for report in flights)
    explained = found and not _says_little(judgement)
    steps = [] if explained or not failed else list(next_steps(judgement, evidence, library, flights, says, crashed))
    if steps and (error := judgement.first_error) and not found:
        from rldbg.doctor.clues.arithmetic import told_by_numbers
        from rldbg.doctor.clues.one_node import told_of_one_node

        told = told_by_numbers(error, sources) or told_before(error.place, error.message, sources)
        place = told_of_one_node(error.headline, [Hit("", error.place, error.headline, "")], sources)
        steps[1:1] = map(redact_text, filter(None, [told, *(place or ())]))
    if exit_code not in _NOT_A_FAILURE and not failed:
        failed = True
        steps = [_SILENT_FAILURE.format(exit_code=exit_code), *([sent] if (sent := sender_of(exit_code or 0)) else [])]
    elif end_is_missing and not failed:
        failed = True
        steps = [_MISSING_END]
    unfinished = "" if failed or exit_code is not None else next(iter(evidence.unfinished.values()), "")
    if unfinished:
        steps = [_UNFINISHED.format(bar=unfinished)]
    return Diagnosis(
        unfinished=unfinished,
        verdict="found" if found else "unknown" if failed else "healthy",
        root_causes=tuple(cause_of(sighting) for sighting in judgement.causes),
        fallout=tuple(cause_of(sighting) for sighting in judgement.fallout),
        first_error=None if explained else judgement.first_error,
        also_says=tuple(_also_says(judgement, evidence, sources, library)),
        next=tuple(steps),
        probes=tuple(probes),
        notes=tuple(cause_of(sighting) for sighting in (*judgement.notes, *judgement.bystanders)),
        findings=(*findings, *([_earlier_runs(earlier, library)] if earlier else [])),
        outlived=_outlived(judgement, cause_of),
        earlier_runs=len(earlier),
        flights=tuple(flights),
        read_files=len(evidence.ends),
        read_bytes=sum(end.bytes for end in evidence.ends),
        engine=engine,
    )


def _earlier_runs(earlier: Sequence[Attempt], library: Library) -> Finding:
    """What became of the runs before the last one."""
    told = []
    for attempt in earlier:
        judgement = judge(attempt.evidence, library)
        ended = judgement.causes[0].entry.id if judgement.causes else "failed" if judgement.failed else "no failure"
        told.append(f"{attempt.file}:{attempt.line}: {ended}")
    cause = "only the last run in a log is diagnosed; the earlier ones ended as shown"
    return Finding("several-runs", Severity.INFO, "several runs in one log", tuple(told), cause, ())


def _crashed_library(judgement: Judgement, sources: Sequence[LogSource]) -> str:
    hits = [hit for sighting in judgement.fallout if names_library(sighting.entry) for hit in sighting.hits]
    return crashed_library(hits, sources)


def _words_of_nccl(judgement: Judgement, sources: Sequence[LogSource]) -> Mention | None:
    """What NCCL itself says where others report an error of it and its cause is open."""
    reports = [] if judgement.causes else [s.first for s in judgement.fallout if asks_nccl(s.entry)]
    said = next((found for hit in reports if (found := words_of_nccl(hit, sources))), None)
    return said._replace(text=redact_text(said.text)) if said is not None else None


def _also_says(
    judgement: Judgement, evidence: LogEvidence, sources: Sequence[LogSource], library: Library
) -> Iterator[Quote]:
    """What the logs say elsewhere of the names in an exception that has no entry, or one that is a general kind."""
    failure = judgement.first_error
    if judgement.causes and not _says_little(judgement):
        cause = judgement.causes[0]
        holders = (each for each in evidence.failures if cause.entry.role is Role.EITHER and holds(each, cause.first))
        failure = next(holders, None)
    if failure is None or not failure.frames:
        return
    for mention in mentions(failure, sources, evidence, library):
        yield Quote(mention.file, mention.line, redact_text(excerpt(mention.text, mention.word, _MENTION_SHOWN)))


def _says_little(judgement: Judgement) -> bool:
    """Whether it only names whose code failed, or the kind of the exception: then that one is shown too."""
    return judgement.causes[0].only_says_kind


REPORT = "diagnosis.json"
_TEMPLATES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Where torch writes the flight recorder's dumps: a path to which the rank is added."""
_DEFAULT_TEMPLATES = ("/tmp/nccl_trace_rank_", "~/.cache/torch/comm_lib_trace_rank_")


def explain_failure(
    folder: Path, environment: Mapping[str, str], exit_code: int, *, ended_by_user: bool = False
) -> Diagnosis:
    """The diagnosis of a run that has ended; it is also written to RUN/reports/, unless the disk is full. Then run.json
    does not have the exit code either."""
    run = Run(folder)
    with contextlib.suppress(OSError):
        _keep_dumps(run, environment)
    diagnosis = diagnose([folder], probes=probe_machine(), exit_code=exit_code, ended_by_user=ended_by_user)
    with contextlib.suppress(OSError):
        text = json.dumps(diagnosis.to_dict(), indent=1, ensure_ascii=False) + "\n"
        write_whole(run.folder("reports") / REPORT, text)
    return diagnosis


def _keep_dumps(run: Run, environment: Mapping[str, str]) -> None:
    """Copies the dumps that torch wrote during the run into it: the next run would overwrite them."""
    began = float(run.read().get("started_at") or 0.0)
    for rank, file in _fresh_dumps(environment, began):
        kept = run.folder("logs") / "flight_recorder"
        kept.mkdir(exist_ok=True)
        shutil.copy2(file, kept / f"nccl_trace_rank_{rank}")


def _fresh_dumps(environment: Mapping[str, str], began: float) -> Iterator[tuple[int, Path]]:
    asked = [environment[name] for name in _TEMPLATES if environment.get(name)]
    for template in asked or _DEFAULT_TEMPLATES:
        start = Path(os.path.expanduser(template))  # noqa: PTH111 - a trailing separator matters here
        if not start.parent.is_dir():
            continue
        for file in sorted(start.parent.iterdir()):
            rank = re.fullmatch(re.escape(start.name) + r"(\d+)", file.name)
            if rank and file.is_file() and file.stat().st_mtime >= began and os.access(file, os.R_OK):
                yield int(rank[1]), file
