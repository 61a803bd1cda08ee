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
from rldbg.doctor.attempts import Attempt, attempts_in
from rldbg.doctor.diagnosis import Cause, Confidence, Diagnosis, ProbeResult, Quote
from rldbg.doctor.entries import Probe, Role
from rldbg.doctor.evidence import Failure, Hit, LogEvidence, excerpt
from rldbg.doctor.failures import is_wrapper
from rldbg.doctor.flight_recorder import FlightReport, findings_of, read_dumps
from rldbg.doctor.frames import story
from rldbg.doctor.guidance import asks_nccl, next_steps
from rldbg.doctor.jobs import JobFacts, job_facts
from rldbg.doctor.judgement import Judgement, Sighting
from rldbg.doctor.library import Library
from rldbg.doctor.mentions import Mention, mentions, words_of_nccl
from rldbg.doctor.patterns import SearchIndex
from rldbg.doctor.probes import probe_machine
from rldbg.doctor.root_cause import judge
from rldbg.doctor.run_evidence import stack_findings
from rldbg.doctor.scan import Scanner
from rldbg.doctor.signals import sender_of
from rldbg.doctor.sources import LogSource, find_sources
from rldbg.doctor.specifics import specifics
from rldbg.doctor.survival import holds
from rldbg.doctor.tracebacks import HEADLESS

_QUOTES_KEPT = 5
_WORDS_SHOWN = 200
_MENTION_SHOWN = 240
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
_LEVELS: tuple[Confidence, ...] = ("low", "medium", "high")


def diagnose(
    paths: Sequence[str | Path],
    *,
    index: SearchIndex | None = None,
    probes: Sequence[ProbeResult] = (),
    facts: JobFacts | None = None,
    environment: dict[str, str] | None = None,
    exit_code: int | None = None,
    on_bytes: Callable[[int], None] | None = None,
    on_hit: Callable[[Hit], None] | None = None,
) -> Diagnosis:
    """Reads all logs under the paths together and names the root cause, or reports that it is not in them.

    An `index` made once serves any number of calls. `probes` are looks at the machine the logs come from,
    `environment` the variables of the job; both only raise or lower confidence, they never name a cause by themselves.
    With an `exit_code` that says failure the logs are never healthy, whatever is in them. These two are read from the
    run folder where they are not given; `facts` are what a caller has read there already.
    """
    facts = facts or job_facts(paths)
    exit_code = facts.exit_code if exit_code is None else exit_code
    index = index or SearchIndex(Library.load())
    failed = exit_code not in _NOT_A_FAILURE or facts.end_is_missing
    found = find_sources(paths, or_none=failed)
    scanner = Scanner(index, on_bytes=on_bytes, on_hit=on_hit)
    evidence = scanner.read_all(found.sources)
    extra: list[Finding] = [*found.findings, *evidence.findings]
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

    def cause_of(sighting: Sighting) -> Cause:
        cause = _cause(sighting, judgement, evidence, probes, environment)
        if says is not None and asks_nccl(sighting.entry) and not cause.detail:
            return replace(cause, detail=f"NCCL itself says: {says.text}")
        return cause

    found = bool(judgement.causes)
    failed = judgement.failed or any(report.culprits or report.mismatches for report in flights)
    explained = found and not _says_little(judgement)
    steps = [] if explained or not failed else next_steps(judgement, evidence, library, flights, says)
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
        outlived=next((cause_of(note).title for note in judgement.notes if note.entry.severity == "error"), ""),
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


def _cause(
    sighting: Sighting,
    judgement: Judgement,
    evidence: LogEvidence,
    probes: Sequence[ProbeResult],
    environment: dict[str, str],
) -> Cause:
    entry, kind = sighting.entry.as_told_by([hit.text for hit in sighting.hits]), sighting.kind
    confidence, why = _confidence_of(sighting, judgement, probes, environment)
    return Cause(
        id=entry.id,
        title=entry.title,
        title_zh=entry.title_zh,
        confidence=confidence,
        why=tuple(why),
        evidence=tuple(Quote.of(hit) for hit in sighting.hits[:_QUOTES_KEPT]),
        count=max(len(sighting.hits), evidence.counts.get(entry.id, 0)),
        cause=f"{entry.cause} The message says: {kind.title}. {kind.cause}" if kind else entry.cause,
        fix=(*(kind.fix[:1] if kind else ()), *entry.fix),
        sources=tuple(entry.sources),
        detail=_detail(sighting, judgement.first_error, evidence),
        words=_words(sighting, evidence),
    )


def _words(sighting: Sighting, evidence: LogEvidence) -> str:
    """The line that tells the variant of a cause; else the exception around its first line, or that line itself where
    it is none, or only reports another."""
    hit = sighting.first
    told = sighting.entry.variant_in([each.text for each in sighting.hits])
    holder = next((failure for failure in evidence.failures if holds(failure, hit)), None)
    alike = (failure for failure in evidence.failures if failure.count > 1 and hit.matched in failure.headline)
    holder = holder or next(alike, None)  # of one that came often only some places are kept
    said = hit.text[hit.text.find(hit.matched) :] if hit.matched in hit.text else hit.text
    if told is not None:
        said = told[1].string[told[1].start() :]
    if holder is not None and (told is None or 0 <= holder.headline.find(said) < _WORDS_SHOWN):
        said = said if is_wrapper(holder) or holder.is_crash or holder.kind == HEADLESS else holder.headline
    return redact_text(" ".join(said.split())[:_WORDS_SHOWN])


def _detail(sighting: Sighting, first_error: Failure | None, evidence: LogEvidence) -> str:
    """What the exception around the first line of a cause says; the line itself where it is none."""
    hit = sighting.first
    holder = next((failure for failure in evidence.failures if holds(failure, hit)), None)
    holder = first_error if sighting.only_says_kind else holder
    said = Failure("", hit.text, hit.place, holder.frames if holder else ())
    detail = (specifics(holder) if holder else "") or specifics(said)
    if holder is not None and sighting.only_says_kind and (told := story(holder)):
        head, _semicolon, rest = detail.partition("; ")
        detail = "; ".join(filter(None, (f"{head.rstrip('.') or holder.headline}, {told}", rest)))
    return redact_text(detail)


def _confidence_of(
    sighting: Sighting, judgement: Judgement, probes: Sequence[ProbeResult], environment: Mapping[str, str]
) -> tuple[Confidence, list[str]]:
    """How sure a named cause is and why: what the line is, what else was seen, what the machine says."""
    level, why = _from_role(sighting)
    rivals = [other for other in judgement.causes if other is not sighting]
    if rivals and len(rivals) < len(judgement.causes):  # it is one of the causes itself
        level = min(level, 1)
        why.append(f"other causes were found too: {', '.join(other.entry.id for other in rivals)}")
    if sighting.survived:
        level = 0
        why.append("training continued after it")
    confirmed = [reason for probe in sighting.entry.probes if (reason := _confirms(probe, probes, environment))]
    if confirmed:
        level = min(level + 1, 2)
        why += confirmed
    return _LEVELS[level], why


def _from_role(sighting: Sighting) -> tuple[int, list[str]]:
    family = sighting.entry.family if sighting.by_family else None
    if family is not None and family.asked_last:
        shows = "the traceback shows which package raised it" if family.raised_in else "its message says its kind"
        return 0, [f"no known failure explains this exception; {shows}"]
    if family is not None:
        return 1, ["this exception has no entry of its own; it is judged by its type and where it was raised"]
    match sighting.entry.role:
        case Role.ROOT:
            level = 2 if sighting.entry.is_confirmed else 1
            return level, ["the line itself states this failure, and no known cause of it was found"]
        case Role.EITHER:
            return 1, ["it can be a consequence of another failure, but no known cause of it was found"]
        case Role.SYMPTOM:
            return 0, ["it is always a consequence of another failure"]
        case Role.BENIGN:
            return 0, ["it looks like a failure but is harmless"]


def _confirms(probe: Probe, results: Sequence[ProbeResult], environment: Mapping[str, str]) -> str | None:
    """The sentence by which a look at the machine or the job's variables confirms an entry, if it does."""
    if probe.check is not None:
        bad = next((r for r in results if r.id == probe.check and r.status in ("fail", "warn")), None)
        return f"the machine confirms it: {bad.reason}" if bad else None
    if probe.env is None or probe.env not in environment:
        return f"{probe.env} is not set in the job" if environment and probe.env and probe.is_set is False else None
    value = environment[probe.env]
    if probe.contains is not None:
        return f"the job has {probe.env}={value}" if probe.contains in value else None
    return f"the job has {probe.env} set" if probe.is_set else None


REPORT = "diagnosis.json"
_TEMPLATES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Where torch writes the flight recorder's dumps: a path to which the rank is added."""
_DEFAULT_TEMPLATES = ("/tmp/nccl_trace_rank_", "~/.cache/torch/comm_lib_trace_rank_")


def explain_failure(folder: Path, environment: Mapping[str, str], exit_code: int) -> Diagnosis:
    """The diagnosis of a run that has ended; it is also written to RUN/reports/, unless the disk is full. Then run.json
    does not have the exit code either."""
    run = Run(folder)
    with contextlib.suppress(OSError):
        _keep_dumps(run, environment)
    diagnosis = diagnose([folder], probes=probe_machine(), exit_code=exit_code)
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
