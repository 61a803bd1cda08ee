r"""Lines with which programs end that failed, in the words of shells, schedulers, compilers, runtimes and drivers.

They count at the end of a log only: in the middle of one the program went on, or another line says more.
"""

import re
from collections.abc import Sequence

from rldbg.doctor.logs.cleaning import Line
from rldbg.doctor.logs.standing import (
    is_fatal_letter,
    is_information,
    is_setting,
    is_tried_again,
    is_warning,
    level_of,
    says_gone_on,
)

_OF_SHELLS = (
    r"(?:\S+: line \d+: |\S+: \d+: |-?(?:\S*/)?(?:ba|da|z|k|c|tc)?sh: ).{0,200}(?:command not found|not found|"
    r"unbound variable|[Nn]o such file or directory|[Pp]ermission denied|cannot execute.{0,60}|syntax error.{0,80}|"
    r"Argument list too long)\s*$",
    r"(?:\S+: line \d+: +\d+ )?(?:Killed|Aborted|Bus error|Illegal instruction|Segmentation fault|"
    r"Floating point exception)(?: *\(core dumped\))?(?: .{0,200})?$",
)
"""Not what SIGTERM and SIGHUP ended: scripts end their own servers so."""
_OF_SCRIPT = re.compile(r"\S+: (?:line )?\d+: (?! *\d+ )")
_OF_NATIVE_CODE = (
    r"\*\*\* (?:stack smashing|buffer overflow|Error in|SIG\w+ |Process received signal|Aborted at)",
    r"terminate called (?:after|without|recursively)|\s*what\(\): ",
    r"(?:double free or corruption|free\(\): |malloc\(\): |munmap_chunk\(\): |corrupted (?:size|double-linked))",
    r".{0,200}: Assertion [`'].{1,300} failed\.",
    r"(?:Fatal Python error|Fatal error|FATAL ERROR|fatal error)\b[: ]",
    r".{0,80}\b(?:ASSERTION FAILED|INTERNAL ASSERT FAILED)\b",
)
_OF_LANGUAGES = (
    r"thread '.{1,80}' (?:\(\d+\) )?panicked at",
    r"error\[E\d{4}\]: |error: (?:could not compile|aborting due to)",
    r"panic: \S|goroutine \d+ \[\w",
    r'Exception in thread "|Caused by: [\w.$]+(?:Exception|Error)|(?:[a-z]\w*\.){2,}\w*(?:Exception|Error)(?:: |$)',
    r"(?:\w+\.){0,6}(?:exc|exceptions?|errors?|process)\.(?!\w*Warning)[A-Z]\w{3,60}(?:: \S.*)?$",
    r"(?:Uncaught|Unhandled) \w*(?:Error|Exception|Rejection)",
    r"\(node:\d+\) Unhandled|node:internal/",
)
_OF_BUILDS = (
    r"(?:\S+: )?\*\*\* .{1,200}(?: Error \d+|Stop\.)",
    r"ninja: (?:build stopped|error|fatal)|FAILED: \S|CMake Error|BUILD FAILED|collect2: error|nvcc fatal",
    r"(?:\S*/)?ld(?:\.\w+)?: \S",
    r"(?:[\w./+-]+:\d+:(?:\d+:)? )(?:fatal )?error: ",
    r"=+ .{0,200}\b\d+ (?:failed|errors?)\b.{0,200} =+$",
    r"× |╰─>|error: (?:subprocess-exited-with-error|metadata-generation-failed)",
)
_OF_SCHEDULERS = (
    r"(?:srun|slurmstepd|sbatch|salloc|slurmd|mpirun|mpiexec|prterun|orted|pyxis|enroot\S*): ?"
    r"(?:error|fatal|Error|\*\*\*)",
    r".{0,40}\*{3} (?:JOB|STEP) .{0,120} CANCELLED",
    r"(?:srun: |slurmstepd: )?.{0,60}\b(?:task|tasks) [\d,-]+: (?:Exited with exit code|Killed|Terminated|Aborted|"
    r"Segmentation fault|Bus error|Out Of Memory)",
    r".{0,80}\b(?:OOMKilled|CrashLoopBackOff|ImagePullBackOff|ErrImagePull|CreateContainer\w*Error|Evicted|FailedMount|"
    r"BackoffLimitExceeded|DeadlineExceeded|FailedScheduling|Back-off restarting failed)\b",
    r"(?:docker: )?Error response from daemon|.{0,80}OCI runtime (?:create|exec) failed",
    r".{0,60}failed to create (?:shim|task)",
    r"MPI_ABORT was invoked|.{0,60}\bMPI_Abort\(|Primary job +terminated normally, but",
    r".{0,80}noticed that process rank",
    r".{0,80}PMIX?X? ERROR|\[\S+:\d+\] \*{3} (?:An error occurred|Process received signal)|Abort\(\d+\)",
)
_OF_DRIVERS = (
    r".{0,200}\b(?:cudaError\w+|CUDA_ERROR_\w+|CUDA error\b|Cuda failure|CUBLAS_STATUS_(?!SUCCESS)\w+|"
    r"CUDNN_STATUS_(?!SUCCESS)\w+)",
    r".{0,200}\b(?:hipError(?!_t)\w+|HIP error\b|HSA_STATUS_ERROR\w*|rocblas_status_\w*error)",
    r".{0,80}(?:Memory access fault by GPU|HW Exception by GPU|GPU [Hh]ang|Queue error state|Aborting with error)",
    r".{0,200}\b(?:HCCL_E_\w+|ACL_ERROR\w*|ERR\d{5}|E[A-Z]\d{4}: |error code is \d{1,7}|call (?:acl|hccl) api failed|"
    r"retCode=0x[0-9a-f]+)",
    r".{0,200}\b(?:nccl(?:System|Internal|UnhandledCuda|InvalidUsage|Remote)Error|NCCL (?:error|failure)|"
    r"NIXL_ERR_\w+|UCX +ERROR)",
    r".{0,120}NVRM: Xid|.{0,120}amdgpu: .{0,120}(?:page fault|reset|hang|error)",
)
_OF_LAUNCHERS = (
    r".{0,200}\b(?:[Ee]xit(?:ed|s)?|[Rr]eturned|[Ff]inished|[Ff]ailed|[Ee]nded|died)\b.{0,60}\b"
    r"(?:code|status|exitcode|rc)\b ?[:=]? ?\(?(?:-?[1-9]\d{0,9})\b",
    r".{0,120}\b(?:exit_?code|returncode|exit_status|exitcode) ?[:=] ?-?[1-9]\d{0,9}\b",
    r".{0,120}\breturned non-zero exit status\b",
    r".{0,160}\b(?:[Jj]ob|[Rr]un|[Ww]orker|[Pp]rocess|[Cc]ommand|[Tt]raining|[Ss]erver|[Ss]tep)\b.{0,80}"
    r"\b(?:FAILED|failed|crashed|was killed|died|aborted|terminated unexpectedly)(?:\W{0,3}$| with |: \D)",
    r".{0,60}\b(?:FAILED|FAILURE|ABORTED)\W{0,4}$",
    r"❌ ",
)
_OF_CRASH_HANDLERS = (r"!{3,} ?.{1,60}\b(?:encountered|caught|received)\b.{0,20}!{3,}",)
_ENDS = re.compile(
    "|".join(
        f"(?:{each})"
        for each in (
            *_OF_SHELLS,
            *_OF_NATIVE_CODE,
            *_OF_LANGUAGES,
            *_OF_BUILDS,
            *_OF_SCHEDULERS,
            *_OF_DRIVERS,
            *_OF_LAUNCHERS,
            *_OF_CRASH_HANDLERS,
        )
    )
)
_NO_END = re.compile(
    r"\[\d+\][+-]? +(?:Terminated|Killed|Done)|.{0,200}\b(?:SIGTERM|SIGINT|exit code:? (?:-15|-2|0)\b)"
    r"|.{0,400}\b(?:INTENDED_|by an? user request|intentional)"
    r"|.{0,400}[:=] ?0\W{0,3}$|.{0,200}\b(?:0 (?:failed|errors?)|(?:failed|errors?|failures?)[\"']?\W{1,3}0)\b"
)
"""How shells and launchers report processes that they were asked to end, and how nothing is counted."""
_GONE = re.compile(
    r"(?i).{0,300}?\b(?:(?:exited|died|crashed|ended|stopped|disappeared|terminated) unexpectedly"
    r"|(?:is|are|was|has been found) (?:already )?dead\b|(?:has|have) died\b|lost (?:the )?connection (?:to|with)"
    r"|not found or (?:has )?(?:already )?expired|(?:is|are|was) no longer (?:available|alive|running|reachable)"
    r"|(?:gave|given|giving) up\b"
    r"|(?:max(?:imum)? |all )(?:number of )?(?:retries|attempts) (?:were )?(?:exceeded|exhausted|failed)"
    r"|(?:exceeded|reached) (?:its |the )?max(?:imum)? (?:run ?time|lifetime)"
    r"|(?:execution|sandbox|container|engine|scheduler|pod) \S{0,60} ?failed(?: \(\w+\))?: )"
)
"""What is said of a part of the program that is not there any more, at whatever level. Programs also say it of what
they replace, so that it counts only as the very last thing."""
_OF_AN_ITEM = re.compile(
    r"(?i)\b(?:sandbox|execution|tool|reward|judge|request|sample|episode|trajectory|rollout|prompt|task)\w*\b"
)
_NOTICE = re.compile(r"(?i)\w*Warning: |deprecat|\b(?:option|argument|parameter|feature|flag|backend)\b")
"""What is said of the program's code, not of a part that ran."""
_IS_BACK = re.compile(
    r"(?i)\b(?:re-?(?:connect|creat|start|plac|sum|try|tri|spawn|queue|assign)(?:e|ed|ing|ion|s)?|recover(?:ed|y|ing)|"
    r"succeeded|healthy again|skipp(?:ed|ing)|new (?:sandbox|worker|engine|replica))\b"
)
_HANDLED = re.compile(r"Error (?:in|while|at|when|during) (?![^:]*[/.]\w+:\d)[\w ()'\"\[\].-]{1,80}: \S")
"""How code reports that it caught an exception: where it was, and what it said. What nothing caught has its type."""
_OF_THE_WHOLE = re.compile(
    r"(?i)(?:^|[\W_])(?:main|train(?:ing|er)?|run(?:ning)?|start(?:ing|up)?|launch\w*|init\w*|set_?up|load\w*|script|program|"
    r"server|engine|experiment|job)(?:$|[\W_])"
)
"""Without what such a line names there a program does not go on."""
_OF_A_COMMAND = re.compile(r"-?(?:\S*/)?(?:ba|da|z|k|c|tc)?sh: (?:(?:line )?\d+: )?")
"""A shell that was given a command, as an agent's tools give it one, and no script."""
_OF_AN_END = re.compile(
    r"(?i)\b(?:fail\w*|errors?|fatal|abort\w*|crash\w*|kill\w*|terminat\w*|exit\w*|shut\w*|stop\w*|clean\w*|clos(?:e|ed|ing)|"
    r"finish\w*|gave up|giving up|see|logs?)\b"
)
"""What a process says that ends, or that refers to where its failure is told."""
_QUIET = ("INFO", "DEBUG", "TRACE", "NOTICE")
_NAME = re.compile(r"[A-Za-z_]{3,}")
_NAMES = 2
ENDING_LINES = 25
"""How many of the last lines of a log are read for the end of a program."""


def is_ending(line: Line) -> bool:
    """Whether a line is one with which a program ends that failed."""
    text = line.text
    if is_fatal_letter(text):
        return True
    found = _ENDS.match(text)
    if found is None or _NO_END.match(text) or is_setting(text, found.end() - 1):
        return False
    return not (is_warning(text) or is_information(text))


def is_gone(lines: Sequence[Line], number: int) -> bool:
    """Whether one of the last lines of a log says that a part of the program is gone, and nothing below that it is
    back, or that the program does without it."""
    text = lines[number].text
    if _GONE.match(text) is None or level_of(text) in _QUIET or _NO_END.match(text):
        return False
    if _NOTICE.search(text) or says_gone_on(text) or is_tried_again(text):
        return False
    return not any(_IS_BACK.search(line.text) for line in lines[number:])


def is_of_an_item(text: str) -> bool:
    """Whether a line is about one sample of many, or what serves one: a training that counts steps does without it."""
    return bool(_OF_AN_ITEM.search(text))


def is_handled(text: str) -> bool:
    """Whether a line is what code prints about an exception that it caught, as for one item of many: no process ended
    by it, if nothing else says so."""
    where, _colon, said = text.partition(": ")
    return bool(_HANDLED.match(text)) and not (_OF_THE_WHOLE.search(where) or _OF_AN_END.search(said))


def is_of_script(text: str) -> bool:
    """Whether a line is what a shell says about a line of its script that it cannot run; it goes on with the next. What
    ended by a signal had run."""
    return bool(_OF_SCRIPT.match(text))


def is_outlived(lines: Sequence[Line], number: int) -> bool:
    """Whether one of the last lines of a log is an error that the process which wrote it had a record for, and went on
    after: it writes more below, and nothing of an end."""
    line = lines[number]
    if not line.speaker.pid or level_of(line.text) != "ERROR":
        return False
    own = [each for each in lines[number + 1 :] if each.speaker.pid == line.speaker.pid]
    begun = [each for each in own if each.text[:1].strip()]  # what is indented belongs to the record
    return bool(begun) and not any(_OF_AN_END.search(each.text) or is_ending(each) for each in begun)


def is_of_a_tool(lines: Sequence[Line], number: int) -> bool:
    """Whether one of the last lines of a log is what a command says that the program ran: a line like one above it, by
    its first words, comes below it."""
    if not _OF_A_COMMAND.match(lines[number].text):
        return False
    shapes = [_NAME.findall(line.text)[:_NAMES] for line in lines]
    return any(len(shape) == _NAMES and shape in shapes[:number] for shape in shapes[number + 1 :])
