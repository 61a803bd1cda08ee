"""Where to look next when the cause is not in the logs: which file, which node, which moment, which variable."""

import re
from collections.abc import Iterator, Sequence

from rldbg.core import redact_text
from rldbg.doctor.answer.candidates import SHOWN, candidates, confirmation
from rldbg.doctor.answer.specifics import specifics
from rldbg.doctor.answer.waiting_ranks import callers_of_collective, reporting_ranks, silence
from rldbg.doctor.clues.http_answers import ANSWERED, told_of_answer
from rldbg.doctor.clues.mentions import Mention
from rldbg.doctor.clues.signals import sender_of
from rldbg.doctor.knowledge.entries import KnownFailure, Role
from rldbg.doctor.knowledge.families import kind_of
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.evidence import LAST_ERROR, PROGRAM_ENDED, STILL_TRYING, Failure, LogEvidence
from rldbg.doctor.logs.failures import tells_of_child
from rldbg.doctor.logs.flight_recorder import FlightReport
from rldbg.doctor.logs.frames import decider, is_go_between, is_own_code, is_standard, package_of
from rldbg.doctor.logs.tracebacks import HEADLESS
from rldbg.doctor.verdict.deaths import only_reports_death, steps_of_deaths
from rldbg.doctor.verdict.judgement import Judgement, Sighting
from rldbg.doctor.verdict.lasting import first_time, has_stayed
from rldbg.doctor.verdict.order import announces

_FACTS = {
    "worker": re.compile(r"Worker ID: (?P<v>[0-9a-f]{20,})"),
    "node": re.compile(r"(?:Worker IP address: |\bip: |Owner Ip address: |\bIP: |ip=)(?P<v>\d+\.\d+\.\d+\.\d+)"),
    "pid": re.compile(r"(?:Worker PID: |\bpid: |pid=)(?P<v>\d+)"),
    "crashed": re.compile(r"(?:PC: @ +0x[0-9a-f]+ +\(unknown\) +|segfault at .{1,120} in )(?P<v>[\w:.+-]+)"),
}
_UNSAID = {
    "worker": "",
    "node": "that node",
    "pid": "PID",
    "rank": "?",
    "since": "the moment the waiting began",
    "crashed": "the library that the native stack names first",
}
_USUAL = re.compile(r"(?i)\busual reasons?\b")
"""Without these words the text of a symptom says what it is, and not where it comes from."""
_FIXES = 2
_SAID_SHOWN = 160
_NO_TRACEBACK = (
    "its traceback is not in these logs: look for it in the output of the process that raised it "
    "(Ray: /tmp/ray/session_latest/logs/worker-*.err on its node; SLURM: srun --output=task-%t.log), and give that too"
)
_CUT_OFF = (
    "the log ends before the exception's own line, which says what it is: find that line in the process's whole output "
    "(Ray: /tmp/ray/session_latest/logs/worker-*.err on its node), and give it too"
)
_IF_IT_RUNS = "if it still runs: `rldbg stacks` on its node shows where each of its processes waits, and for whom"
_HYDRA_ENDED = (
    "Hydra reports that the program ended by an exception, and that one is not in these logs: read the standard error "
    "of the driver to its end; export HYDRA_FULL_ERROR=1 before the next run, so that the traceback is whole"
)
_OF_CHILD = (
    "it only says how a process ended that it had started: that process's own output says why (its log file, or the "
    "lines above in a longer log), and give that too"
)
_CHILD_CODE = re.compile(r"(?i)(?:status|exit ?code|code)[ =:]{1,3}(?P<code>-?\d{1,3})\b")
_DIVIDES = re.compile(r" in \w*(?:batch|boundar|chunk|split|shard|partition|dispatch)\w*$")
_ROWS = (
    "the function divides rows: compare how many it got with the batch sizes and the number of ranks; a last batch "
    "that is smaller, filtered rows, or an evaluation set that is no multiple of the batch size are usual"
)
_OF_ROWS = re.compile(r"(?i)\b\w*(?:dataset|feature|example|sample|row|record|item)s?(?:\[\w+\])?\[(?!\d+\]$)")
_COLUMN = (
    "possible cause: the rows of this split have no such column (it was not tokenised or mapped as the other one was, "
    "or its columns have other names); to confirm it run: print(dataset.column_names) for every split"
)
_HINTS = (
    (
        r"has no attribute|unexpected keyword|positional argument",
        "compare the releases of both packages at that line",
    ),
    (r"^AssertionError(?:$|: assert )", "read the condition at that line; print both sides of it"),
    (r"(?i)shape|size|dimension|broadcast", "print the shapes at that line on every rank"),
    (r"(?i)cuda|cublas|cudnn|hip ", "export CUDA_LAUNCH_BLOCKING=1 and run again: the trace then names the call"),
)


def next_steps(
    judgement: Judgement,
    evidence: LogEvidence,
    library: Library,
    flights: Sequence[FlightReport] = (),
    says: Mention | None = None,
    crashed: str = "",
) -> Iterator[str]:
    """Steps in the order in which they are worth trying; nobody is asked for NCCL's own words where the log has them,
    which are in `says`, nor for the library of a native stack, which is `crashed`."""
    for rank in sorted({rank for report in flights for rank in report.culprits}):
        yield f"read the log of rank {rank}: according to the flight recorder it blocked the others"
    if judgement.first_error is None and not judgement.fallout and _is_ended(evidence):
        yield _HYDRA_ENDED
    if judgement.first_error is not None:
        failure = judgement.first_error
        who = f" in {failure.place.speaker}" if str(failure.place.speaker) else ""
        if failure.kind in (LAST_ERROR, STILL_TRYING):
            yield f"read the lines above {failure.place.file}:{failure.place.line}{who}"
        elif failure.kind != HEADLESS:
            yield f"read the first unknown exception{who}: {failure.place.file}:{failure.place.line}"
        if tells_of_child(failure):
            yield _OF_CHILD
            code = _CHILD_CODE.search(failure.message)
            if code and (sent := sender_of(int(code["code"]))):
                yield sent
        if failure.kind == STILL_TRYING:
            yield _IF_IT_RUNS
        if failure.kind == STILL_TRYING and failure.more:
            yield f"above it the log says: {failure.more[0]}"
        yield from reading(failure, library)
    yield from reporting_ranks(judgement, evidence)
    yield from callers_of_collective(judgement)
    yield from silence(judgement, evidence)
    limits = [sighting.first.place for sighting in judgement.fallout if sighting.entry.after_stall]
    for wait in evidence.waiting:
        if any(wait.file == place.file and wait.until < place.offset for place in limits):
            said = wait.said[:_SAID_SHOWN]
            yield f"before the end {wait.file} says again and again: {said}: look why what it waits for never came"
    deaths = list(steps_of_deaths(judgement))
    yield from deaths
    seen: set[str] = set()
    for sighting in judgement.fallout:
        if (deaths and only_reports_death(sighting)) or _repeats(sighting, judgement.first_error):
            continue
        if sighting.entry.id in ANSWERED and (answer := told_of_answer(sighting.hits)):
            yield redact_text(answer.detail)
        for template in sighting.entry.look:
            if says is not None and asks_nccl(sighting.entry):
                step = f"NCCL itself says at {says.file}:{says.line}: {says.text}"
            else:
                step = _filled(template, sighting, crashed)
            if step not in seen:
                seen.add(step)
                yield step
    yield from () if judgement.causes or deaths else _of_consequences(judgement)
    for warned in [s for s in judgement.notes if s.entry.severity == "warning" and not s.survived][:SHOWN]:
        place = warned.first.place
        yield f"possible cause: {warned.entry.title} ({warned.entry.id}); {place.file}:{place.line} warns of it"
    for lasting in [s for s in judgement.notes if s.survived and has_stayed(s, evidence)]:
        since = first_time(lasting) or f"since {lasting.first.place.file}:{lasting.first.place.line}"
        yield f"possible cause: {lasting.entry.title} ({lasting.entry.id}): {since}, and until the end"
    yield from _outlived_causes(judgement, library)
    for other in judgement.bystanders[:SHOWN]:
        place = other.first.place
        yield f"possible cause: {other.entry.title} ({other.entry.id}); {place.file}:{place.line} reports it, but " + (
            "the exception above ended the program: look whether what failed there was needed for it"
        )
    for entry in () if deaths else candidates(judgement, library, evidence, says):
        yield f"possible cause: {entry.title} ({entry.id}); {confirmation(entry)}"


def _of_consequences(judgement: Judgement) -> Iterator[str]:
    """What usually is behind the first consequence, and what is done against it; where an exception without an entry
    begins the failure, that one says more."""
    if judgement.first_error is not None or not judgement.fallout or asks_nccl(judgement.fallout[0].entry):
        return
    entry = judgement.fallout[0].entry
    if _USUAL.search(entry.cause):
        yield f'possible cause of "{entry.title}": {entry.cause}'
    yield from (f"to try: {step}" for step in _filled_steps(judgement.fallout[0]))


def _filled_steps(sighting: Sighting) -> list[str]:
    return [_filled(step, sighting, "") for step in sighting.entry.fix[:_FIXES]]


def _repeats(sighting: Sighting, failure: Failure | None) -> bool:
    """Whether a symptom only announces, or comes after, an exception with a traceback that is told already: it is not
    looked for elsewhere."""
    if failure is None or not failure.frames or not failure.message:
        return False
    return sighting.entry.role is Role.SYMPTOM and all(
        announces(hit, failure) or (hit.place.file == failure.place.file and hit.place.offset >= failure.place.offset)
        for hit in sighting.hits
    )


def _is_ended(evidence: LogEvidence) -> bool:
    return any(failure.kind == PROGRAM_ENDED for failure in evidence.failures)


def asks_nccl(entry: KnownFailure) -> bool:
    """Whether the next step that an entry names is to make NCCL say more."""
    return any("NCCL_DEBUG" in step for step in entry.look)


def names_library(entry: KnownFailure) -> bool:
    """Whether the next step that an entry names begins with the library in which a process crashed."""
    return any("{crashed}" in step for step in entry.look)


def _filled(template: str, sighting: Sighting, crashed: str) -> str:
    """A step with the ids, addresses and times that the lines themselves state.

    Who writes that an actor died is not the actor: of such a line only the words count, not its writer.
    """
    texts = [hit.text for hit in sighting.hits]
    facts = {
        name: found["v"]
        for name, pattern in _FACTS.items()
        if (found := next((match for text in texts if (match := pattern.search(text))), None))
    }
    if crashed:
        facts["crashed"] = crashed
    speaker = sighting.first.place.speaker
    own = {"since": str(sighting.first.since or "")}
    if sighting.entry.category != "ray":
        own |= {"pid": speaker.pid, "node": speaker.node, "rank": speaker.rank}
    values = _UNSAID | {key: value for key, value in own.items() if value} | facts
    said = own.keys() & {name for name, value in own.items() if value} | facts.keys()
    known = template if "pid" in said else template.replace(" (pid {pid})", "")
    known = known if "rank" in said else known.replace("rank {rank}", "that rank")
    return re.sub(r"\{(worker|node|pid|since|rank|crashed)\}", lambda match: values[match[1]], known)


def _outlived_causes(judgement: Judgement, library: Library) -> Iterator[str]:
    """Failures that the program went on after, where they are known to bring about what it did not go on after."""
    symptoms = {symptom.entry.id for symptom in judgement.fallout}
    earlier = (
        s
        for s in judgement.notes
        if s.survived and not s.entry.stays and s.entry.severity == "error" and s.entry.can_be_cause
    )
    told = (s for s in earlier if not symptoms.isdisjoint(library.direct_effects[s.entry.id]))
    for sighting in [] if judgement.causes else list(told)[:SHOWN]:
        place = sighting.first.place
        yield (
            f"possible cause: {sighting.entry.title} ({sighting.entry.id}); {place.file}:{place.line} reports it "
            "before, and the program went on after that"
        )


def reading(failure: Failure, library: Library) -> Iterator[str]:
    """Steps in the order in which they are worth trying; without a traceback, where it may be."""
    if said := specifics(failure):
        yield said
    frames = [frame for frame in reversed(failure.frames) if not is_go_between(frame)]
    raised = next((frame for frame in frames if not is_standard(frame)), next(iter(frames), ""))
    own = next((frame for frame in reversed(failure.frames) if is_own_code(frame)), "")
    is_of_package = any(map(package_of, failure.frames))
    verb = "passed on" if failure.is_carried else "raised"
    if raised and failure.ends_open:
        called = f"; your code called it at {own}" if own and own != raised else ""
        yield f"the last frame that the log shows is {raised}{called}; it need not be the one that raised the exception"
    elif raised and own == raised:
        yield f"it was {verb} in code that is not installed as a package: {own}"
    elif raised:
        package = f" by {of}" if (of := next(filter(None, map(package_of, reversed(failure.frames))), "")) else ""
        yield f"it was {verb}{package} at {raised}" + (f"; your code called it at {own}" if own else "")
    kind = kind_of(failure, library.entries.values())
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, failure.headline)), None)
    hint = kind.look[0] if kind is not None and kind.look else hint
    is_lone = not raised and failure.kind.endswith(("Error", "Exception"))
    if is_lone:
        yield _NO_TRACEBACK
    if hint and (raised or is_lone):
        yield hint
    if failure.kind == "KeyError" and _OF_ROWS.search(failure.code):
        yield _COLUMN
    if _DIVIDES.search(raised) and failure.headline.startswith("AssertionError"):
        yield _ROWS
    if failure.kind == HEADLESS:
        yield _CUT_OFF
    elif is_of_package or is_lone:
        whose = decider(failure) or "the program that raised it"
        yield f"search the issues of {whose} for: {search_words(failure)}"


def search_words(failure: Failure) -> str:
    """The message without what differs from run to run."""
    kind = failure.kind.rpartition(".")[2]
    words = re.sub(r"0x[0-9a-f]+|\b\d[\d.]*\b|'?/[^\s:]{2,}|[\[{](?!Errno).{40,}", " ", failure.message)
    return f'"{" ".join(f"{kind} {words}".split()[:12])}"'
