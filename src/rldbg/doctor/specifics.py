"""What an exception says about this run, put into a sentence: whose call does not fit whose code, who holds the GPU's
memory, which address was refused."""

import re
from collections.abc import Iterator, Sequence

from rldbg.doctor.cleaning import without_environment
from rldbg.doctor.evidence import Failure
from rldbg.doctor.exception_lines import last_error
from rldbg.doctor.frames import CALLS_THROUGH, asks, is_standard, package_of, short
from rldbg.doctor.signals import sender_of

_PROXY = re.compile(r"['\"](?:ActorHandle|\w*Proxy|\w*Mock)['\"] object has no attribute")
"""Objects that have what the class behind them has."""
_ARGUMENT = re.compile(
    r"(?P<callee>[\w.<>]+)\(\) (?:got an unexpected keyword argument ['\"](?P<extra>\w+)['\"]"
    r"|missing \d+ required (?:positional|keyword-only) arguments?: (?P<missing>['\"]\w+['\"](?:.{0,80}['\"])?)"
    r"|takes (?P<takes>.{1,40}?) positional arguments? but (?P<given>\d+) )"
)
_ATTRIBUTE = re.compile(
    r"(?:(?P<kind>module|type object) )?['\"](?P<owner>[\w.]+)['\"](?: object)? has no attribute "
    r"['\"](?P<name>\w+)['\"]"
)
_BUILT_IN = frozenset({"NoneType", "str", "dict", "list", "tuple", "int", "float", "bool", "bytes", "set", "function"})
_IMPORT = re.compile(r"cannot import name ['\"](?P<name>\w+)['\"] from ['\"](?P<owner>[\w.]+)['\"]")
_MODULE = re.compile(r"No module named ['\"](?P<owner>\w+)(?P<rest>\.[\w.]+)['\"]")
_MEMORY = r"[\d.]+ ?[KMGT]i?B"
_OUT_OF_MEMORY = re.compile(rf"[Oo]ut of memory.{{0,40}}Tried to allocate (?P<tried>{_MEMORY})")
_GPU = re.compile(
    rf"GPU (?P<gpu>\d+)\D{{0,40}}?capaci?ty of (?P<total>{_MEMORY})(?: of which (?P<free>{_MEMORY}) is free)?"
)
_HOLDER = re.compile(rf"[Pp]rocess (?P<pid>\d+) has (?P<memory>{_MEMORY}) memory in use")
_THIS_PROCESS = re.compile(rf"this process has (?P<memory>{_MEMORY}) memory in use")
_OWN = re.compile(rf"(?P<memory>{_MEMORY}) is allocated by PyTorch")
_UNUSED = re.compile(rf"(?P<memory>{_MEMORY}) is reserved by PyTorch but unallocated")
_ADDRESS = re.compile(
    r"\('(?P<host>[\w.:-]{2,80})', (?P<port>\d{2,5})(?:, \d+, \d+)?\)"
    r"|host='(?P<host2>[\w.:-]{2,80})', port=(?P<port2>\d{2,5})"
    r"|(?:https?://|to host |address |at |to )\[?(?P<host3>[\w.-]{2,80})\]?:(?P<port3>\d{2,5})\b"
)
_REFUSED = re.compile(r"(?i)connection refused|connect call failed|cannot connect to host|connection attempts failed")
_NOBODY = re.compile(r"(?i)connection refused|connect call failed")
_NAMES_NO_PLACE = re.compile(
    r"(?:KeyError|IndexError|ZeroDivisionError|UnboundLocalError|AssertionError$|TypeError|ValueError: not enough|"
    r"ValueError: too many|AttributeError: 'NoneType'|RuntimeError: (?:shape|The size of tensor|cannot reshape))"
)
"""Exceptions whose words do not say what they are about."""
_OF_KERNEL = re.compile(
    r"illegal memory access|misaligned address|unspecified launch failure|device-side assert|illegal instr"
)
_OF_LAYER = re.compile(r"/(?:models|layers|ops|kernels|attention|modules|fused_moe|quantization)/")
_LAYERS = 3
_EXIT_CODE = re.compile(r"\(exitcode: (?P<code>-\d{1,2})\)")
_PRODUCT = re.compile(r"mat1 and mat2 shapes cannot be multiplied \((?P<a>\d+)x(?P<b>\d+) and (?P<c>\d+)x(?P<d>\d+)\)")


def specifics(failure: Failure) -> str:
    """One sentence on what the exception itself says, or nothing where it says no more than its own words."""
    said = failure.headline
    if says := last_error(failure):
        return f"NCCL's last error is: {says}"
    sentences = (each(said, failure.frames) for each in (_interface, _memory, _refused, _product, _kernel, _signal))
    shown = (
        f"{failure.headline}; the failing line is: {failure.code}"
        if failure.code and _NAMES_NO_PLACE.match(said)
        else ""
    )
    return next((sentence for sentence in sentences if sentence), shown)


def _interface(said: str, frames: Sequence[str]) -> str:
    if argument := _ARGUMENT.search(said):
        if argument["extra"]:
            what = f"{argument['callee']}() does not take the argument {argument['extra']}"
        elif argument["missing"]:
            what = f"{argument['callee']}() needs {argument['missing']}, which is not passed"
        else:
            what = f"{argument['callee']}() takes {argument['takes']} arguments and got {argument['given']}"
        return f"{what}; {_who_calls_whom(frames)}" if frames else f"{what}."
    if missing := _IMPORT.search(said):
        what = f"{missing['owner']} has no {missing['name']}"
        return _of_package(what, missing["owner"], frames)
    if missing := _MODULE.search(said):
        return _of_package(f"{missing['owner']} has no module {missing['rest'][1:]}", missing["owner"], frames)
    attribute = _ATTRIBUTE.search(said)
    if attribute is None or attribute["owner"] in _BUILT_IN:
        return ""
    what = f"{attribute['owner']} has no {attribute['name']}"
    if _PROXY.search(said):
        at = next((frame for frame in reversed(frames) if asks(frame)), "")
        whose = package_of(at) or "your code"
        return f"{what}: it has what the class behind it has, and {whose} made and calls both" + (
            f"; the call is at {short(at)}." if at else "."
        )
    if attribute["kind"] == "module":
        return _of_package(what, attribute["owner"], frames)
    return f"{what}; {_who_calls_whom(frames)}" if frames else f"{what}."


def _of_package(what: str, owner: str, frames: Sequence[str]) -> str:
    """Where the package that lacks something is named in the message: who asks it."""
    package = owner.partition(".")[0]
    asking = next((frame for frame in reversed(frames) if not is_standard(frame)), "")
    who = package_of(asking)
    if not asking or who == package:
        return f"{what} in the release that is installed: pip show {package}."
    of_whom = f"{who} asks for it" if who else "your code asks for it"
    names = " ".join(filter(None, (package, who)))
    return f"{what} in the release that is installed; {of_whom} at {short(asking)}. Compare: pip show {names}."


def _who_calls_whom(frames: Sequence[str]) -> str:
    """The two packages that meet at an exception: the innermost, and the one that called it."""
    steps = list(_packages(frames))
    if not steps:
        return "the log has no frame of it."
    inner, at = steps[0]
    outer = next(((package, frame) for package, frame in steps[1:] if package != inner), None)
    own = f"{inner} at {short(at)}" if inner else f"your code at {short(at)}"
    if outer is None or (not inner and not outer[0]):
        return f"the call is of {own}" + (f", and so is all that calls it; {_UNSET.format(inner)}" if inner else ".")
    caller = f"{outer[0]} at {short(outer[1])}" if outer[0] else f"your code at {short(outer[1])}"
    names = " ".join(package for package in (outer[0], inner) if package)
    fit = f"these releases do not fit each other if you changed neither: pip show {names}."
    return f"the call is of {own}, called by {caller}; {fit}"


_DECORATOR = re.compile(r" in (?:_?inner\w*|_?wrap\w*|_?decorat\w*|_?deco)$")
"""How the functions are called that decorators put around others."""
_UNSET = (
    "no second package takes part, so a part of {} that was to provide it did not run with these settings, or its "
    "files are of two releases: search its source for where the name is set, and for the condition around that."
)


def _packages(frames: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Package and frame from the innermost on; what only calls through, as packages and decorators do, is left out,
    except where the failure is."""
    for depth, frame in enumerate(reversed(frames)):
        package = package_of(frame)
        calls_through = package in CALLS_THROUGH or _DECORATOR.search(frame)
        if not is_standard(frame) and (depth == 0 or not calls_through):
            yield package, frame


def _memory(said: str, _frames: Sequence[str]) -> str:
    tried = _OUT_OF_MEMORY.search(said)
    if tried is None:
        return ""
    parts = [f"{tried['tried']} were asked for"]
    if gpu := _GPU.search(said):
        free = f", {gpu['free']} of its {gpu['total']} were free" if gpu["free"] else f", which has {gpu['total']}"
        parts[0] += f" on GPU {gpu['gpu']}{free}"
        if others := _of_others(said, gpu):
            parts.append(f"other processes, which the message does not name, hold about {others}")
    parts += [f"process {holder['pid']} holds {holder['memory']}" for holder in _HOLDER.finditer(said)]
    if own := _OWN.search(said):
        parts.append(f"this process has {own['memory']} in tensors")
    if unused := _UNUSED.search(said):
        parts.append(f"{unused['memory']} is reserved and unused")
    return "; ".join(parts) + "." if len(parts) > 1 else ""


def _of_others(said: str, gpu: re.Match[str]) -> str:
    """What is neither free nor held by a process that the message names, if it is more than a tenth of the GPU."""
    own = _THIS_PROCESS.search(said)
    if own is None or not gpu["free"]:
        return ""
    total = _bytes(gpu["total"])
    named = sum(_bytes(holder["memory"]) for holder in _HOLDER.finditer(said))
    rest = total - _bytes(gpu["free"]) - _bytes(own["memory"]) - named
    return f"{rest / 2**30:.1f} GiB" if rest > 0.1 * total else ""


def _bytes(text: str) -> float:
    unit = text.rstrip("iB")[-1]
    return float(text.rstrip("iBKMGT ")) * 1024.0 ** (1 + "KMGT".index(unit))


def _refused(said: str, _frames: Sequence[str]) -> str:
    address = _ADDRESS.search(said) if _REFUSED.search(said) else None
    if address is None:
        return ""
    host = address["host"] or address["host2"] or address["host3"]
    port = address["port"] or address["port2"] or address["port3"]
    where = "this node itself" if host in ("127.0.0.1", "localhost", "0.0.0.0", "::1") else f"host {host}"
    nobody = "nothing listened on" if _NOBODY.search(said) else "no connection was made to"
    return f"{nobody} port {port} of {where}."


def _product(said: str, _frames: Sequence[str]) -> str:
    shapes = _PRODUCT.search(said)
    if shapes is None:
        return ""
    return f"the first matrix has {shapes['b']} columns, the second {shapes['c']} rows; they must be equal."


def _kernel(said: str, frames: Sequence[str]) -> str:
    """The layers that a GPU was computing when it reported an error: the first suspects, if the report was in time."""
    inner = [frame for frame in reversed(frames) if _OF_LAYER.search(frame) and package_of(frame) not in CALLS_THROUGH]
    if not (_OF_KERNEL.search(said) and inner):
        return ""
    layers = list(dict.fromkeys(short(frame).rpartition(" in ")[2] for frame in inner[:_LAYERS]))
    file = short(without_environment(inner[0])).partition(":")[0]
    called = f", called by {', '.join(layers[1:])}" if layers[1:] else ""
    return f"it was reported in {layers[0]} ({file}){called}; if the report was in time, suspect its kernel first."


def _signal(said: str, _frames: Sequence[str]) -> str:
    code = _EXIT_CODE.search(said)
    return sender_of(int(code["code"])) if code else ""
