"""Programs that a process has started by `subprocess` or asyncio: how they ended, and which pipes lead to them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..code.places import is_users
from ..reading.kernel import Facts
from ..reading.objects import Frame, Object, is_a
from .ended import ended_process

_MOST_LOOKED_AT = 16
_WORDS, _SHOWN = 4, 60
_STREAMS = {"stdin": "should read it", "stdout": "should write into it", "stderr": "should write into it"}


def programs_of(frames: Sequence[Frame]) -> list[Object]:
    """What `subprocess.Popen` and asyncio gave for a program, in the variables of functions and what these hold."""
    named = [value for frame in frames if is_users(frame.file) for value in frame.locals().values()]
    named += [value for frame in frames if (value := frame.variable("self")) is not None]
    found: dict[int, Object] = {}
    for value in named:
        for each in (value, *value.attributes().values(), *value.elements()[:_MOST_LOOKED_AT]):
            for inner in (each, *each.elements()[:_MOST_LOOKED_AT]) if each is not value else (each,):
                if _popen(inner) is not None:
                    found.setdefault(inner.address, inner)
    return list(found.values())


def ended_programs(stacks: Sequence[Sequence[Frame]]) -> list[Facts]:
    """Those that did not end well."""
    found = [program_facts(each) for frames in stacks for each in programs_of(frames)]
    failed = [each for each in found if each["exit"] not in ("", "exit code 0")]
    return list({each["pid"]: each for each in failed}.values())


def program_behind(descriptor: int | None, frames: Sequence[Frame]) -> Facts:
    """The program that a pipe leads to, and its `part` in it; empty if none is known."""
    for program in programs_of(frames) if descriptor is not None else ():
        for stream, part in _STREAMS.items():
            if descriptor == _descriptor(program.get(stream)):
                return program_facts(program) | {"part": part}
    return {}


def program_facts(program: Object) -> Facts:
    popen = _popen(program)
    number = popen.get("pid") if popen is not None else None
    ended = ended_process(popen) if popen is not None else ""
    # asyncio waits for the program itself, and notes how it ended.
    code = transport.get("_returncode") if (transport := program.get("_transport")) is not None else None
    noted = code.number() if code is not None else None
    if noted is not None:
        ended = f"signal {-noted}" if noted < 0 else f"exit code {noted}"
    pid = number.number() if number is not None else None
    return {"kind": "process", "name": _command(popen), "pid": pid, "exit": ended}


def _popen(value: Object) -> Object | None:
    if is_a(value, "Popen"):
        return value if value.get("args") is not None else None
    transport = value.get("_transport") if value.kind == "Process" else None
    popen = transport.get("_proc") if transport is not None else None
    return popen if is_a(popen, "Popen") else None


def _command(popen: Object | None) -> str:
    """The first words of its command line, without the folders."""
    given = popen.get("args") if popen is not None else None
    words = list(_texts(given)) if given is not None else []
    words = words[0].split() if len(words) == 1 else words
    return " ".join(Path(word).name or word for word in words[:_WORDS])[:_SHOWN] or "program"


def _texts(value: Object) -> Iterator[str]:
    if (text := value.text()) is not None:
        yield text
    for each in value.elements():
        yield from _texts(each)


def _descriptor(stream: Object | None) -> int | None:
    if stream is None:
        return None
    if (own := stream.descriptor()) is not None:
        return own
    transport = stream.get("_transport")
    number = transport.get("_fileno") if transport is not None else None
    return number.number() if number is not None else None
