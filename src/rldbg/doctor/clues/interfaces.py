"""Whose call does not fit whose code: the class or function that lacks something, the package that owns it, and the one
that asks."""

import re
from collections.abc import Iterator, Sequence

from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.logs.evidence import Failure
from rldbg.doctor.logs.frames import CALLS_THROUGH, asks, is_go_between, is_passed_on, is_standard, package_of, short
from rldbg.frameworks import frameworks

PASSED_ON = "it was raised in another process or task, and the frames shown here only waited for that one"
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
_HANDS_REQUESTS_ON = re.compile(
    r"/(?:uvicorn|hypercorn|starlette|fastapi)/\S* in "
    r"(?:__call__|run_asgi|(?:wrapped_)?app|handle|run_endpoint_function)$"
)
_DECORATOR = re.compile(r" in (?:_?inner\w*|_?wrap\w*|_?decorat\w*|_?deco)$")
"""How the functions are called that decorators put around others."""
_OWNERS = (
    ("peft", re.compile(r"Peft\w+|Lora\w+")),
    ("deepspeed", re.compile(r"DeepSpeed\w+")),
    ("torch", re.compile(r"FSDP\w*|FullyShardedDataParallel|DistributedDataParallel|DTensor")),
    ("accelerate", re.compile(r"Accelerator\w*")),
    ("transformers", re.compile(r"(?:Seq2Seq)?Train(?:er|ingArguments)|PreTrained\w+|AutoModel\w*|AutoTokenizer")),
)
"""Classes whose names say whose they are, beside those that frameworks name as theirs."""
_DISTRIBUTIONS = {
    "dynamo": "ai-dynamo",
    "megatron": "megatron-core",
    "swift": "ms-swift",
    "flash_attn": "flash-attn",
    "yaml": "pyyaml",
    "PIL": "pillow",
    "cv2": "opencv-python",
}
"""What pip calls packages whose modules have another name."""
_LONG_ENOUGH = 5
_CALLED = re.compile(r"([A-Za-z_]\w*)\(")
_CALLS_ANY = frozenset(
    {"fn", "func", "f", "method", "target", "call", "wrapped", "forward", "super", "getattr", "partial"}
)
"""What wrappers call the function of anybody."""


def interface(said: str, frames: Sequence[str]) -> str:
    if argument := _ARGUMENT.search(said):
        if argument["extra"]:
            what = f"{argument['callee']}() does not take the argument {argument['extra']}"
        elif argument["missing"]:
            what = f"{argument['callee']}() needs {argument['missing']}, which is not passed"
        else:
            what = f"{argument['callee']}() takes {argument['takes']} arguments and got {argument['given']}"
        owner = argument["callee"].partition(".")[0] if "." in argument["callee"] else ""
        asking = _without_wrappers(frames)
        return f"{what}; {_who_asks_whom(asking, owner)}" if frames else f"{what}."
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
    return f"{what}; {_who_asks_whom(frames, attribute['owner'])}" if frames else f"{what}."


def given_function(failure: Failure) -> str:
    """Where a package calls a function that it was given under another name, as a reward: who passes what to it, and
    what the function must take."""
    argument = _ARGUMENT.search(failure.headline)
    called = _CALLED.findall(failure.code)
    asking = next((frame for frame in reversed(failure.frames) if not is_standard(frame)), "")
    package = package_of(asking)
    if argument is None or len(called) != 1 or not package or not re.fullmatch(r"[a-z_]\w*", argument["callee"]):
        return ""
    callee, name = argument["callee"], called[0]
    if callee == name or name in _CALLS_ANY:
        return ""
    if argument["extra"]:
        what = f"{callee}() does not take the argument {argument['extra']}, which {package} passes"
        must = f"let {callee} take {argument['extra']}, or **kwargs"
    elif argument["missing"]:
        what = f"{callee}() needs {argument['missing']}, which {package} does not pass"
        must = f"give its arguments the names that {package} passes (for a reward the columns of the data)"
    else:
        what = f"{callee}() takes {argument['takes']} arguments and {package} passes {argument['given']}"
        must = f"let {callee} take what {package} passes"
    return f"{what}: it is a function that {package} was given, and calls as {name} at {short(asking)}; {must}."


def told_of_missing_module(failure: Failure) -> CauseWords | None:
    """Who imports a module that is missing: the interpreter that was started where nothing shows a worker of Ray, and a
    framework's own code where it needs an extra of its package."""
    missing = re.search(r"No module named ['\"](?P<name>\w+)", failure.headline)
    is_remote = bool(failure.place.speaker.pid) or any("/ray/" in frame for frame in failure.frames)
    asking = next((frame for frame in reversed(failure.frames) if not is_standard(frame)), "")
    if missing is None or is_remote or not asking:
        return None
    package = package_of(asking)
    own = package if package != missing["name"] and any(package == each.name for each in frameworks()) else ""
    show = "See which interpreter that is: head -1 $(which PROGRAM), or python -c 'import sys; print(sys.executable)'"
    extra = (
        f"If {missing['name']} is of an optional extra of {own}: uv run --extra NAME SCRIPT, or pip install "
        f"'{_DISTRIBUTIONS.get(own, own)}[NAME]'; its pyproject.toml lists the extras"
    )
    return CauseWords(
        title="A Python module is missing in the environment of this interpreter",
        title_zh="当前解释器的环境缺少 Python 模块",
        detail=f"{missing['name']} is imported by {own or 'code'} at {short(asking)}",
        cause="The module does not exist in the environment of the process that failed: not installed, of an extra "
        "that was not installed, or code of a folder that is not on the path. These logs show no worker of Ray at it.",
        fix=(*((extra,) if own else ()), "Install it in the environment that starts the program", show),
        is_whole=True,
    )


def _without_wrappers(frames: Sequence[str]) -> Sequence[str]:
    """The frames up to the innermost that is no decorator's: arguments are wrong where they are written, and not where
    they are handed on."""
    last = next((depth for depth in reversed(range(len(frames))) if not _DECORATOR.search(frames[depth])), None)
    return frames if last is None else frames[: last + 1]


def _of_package(what: str, owner: str, frames: Sequence[str]) -> str:
    """Where the package that lacks something is named in the message: who asks it."""
    package = owner.partition(".")[0]
    asking = next((frame for frame in reversed(frames) if not is_standard(frame)), "")
    who = package_of(asking)
    if not asking or who == package:
        return f"{what} in the release that is installed: {_show(package)}."
    of_whom = f"{who} asks for it" if who else "your code asks for it"
    return f"{what} in the release that is installed; {of_whom} at {short(asking)}. Compare: {_show(package, who)}."


def _who_asks_whom(frames: Sequence[str], owner: str) -> str:
    """Who asks, and of whom: the package that owns the class, where its name, a file or a folder tells it, else the
    next package of the traceback."""
    if is_passed_on(frames):
        return f"{find_class(owner)}{PASSED_ON}."
    steps = list(_packages(frames))
    if not steps:
        return "the log has no frame of it."
    inner, at = steps[0]
    asks_there = f"the call is of {inner} at {short(at)}" if inner else f"the call is of your code at {short(at)}"
    home = _home_of(owner, frames)
    if home and inner and package_of(home) == inner and len({package for package, _at in steps}) == 1:
        return (
            f"{asks_there}, and {owner} is of {short(home).partition(':')[0]}: both are of {inner}, so this release "
            f"does not fit itself, or its files are of two releases: {_show(inner)}; try the next release, or search "
            "its issues for this message."
        )
    named = package_of(home) or owner_of(owner)
    if named and named != inner:
        return f"{asks_there}, {owner} is of {named}; compare these releases: {_show(inner, named)}."
    outer = next(((package, frame) for package, frame in steps[1:] if package != inner), None)
    if named and outer is not None:
        caller = f"{outer[0]} at {short(outer[1])}" if outer[0] else f"your code at {short(outer[1])}"
        return f"{owner} is of {named}, and {caller} was written for another release of it: {_show(named, outer[0])}."
    if outer is not None and inner and not outer[0] and owner:
        return (
            f"{asks_there}, called by your code at {short(outer[1])}: it may pass an object of a class that {inner} "
            f"does not expect, as a wrapper is; {find_class(owner)}compare: {_show(inner)}."
        )
    if outer is not None and (inner or outer[0]):
        first = steps[-1][0]
        caller = f"{outer[0]} at {short(outer[1])}" if outer[0] else f"your code at {short(outer[1])}"
        started = f", in a program of {first}" if first not in ("", inner, outer[0]) else ""
        fit = f"these releases do not fit each other if you changed neither: {_show(first, outer[0], inner)}."
        return f"{asks_there}, called by {caller}{started}; {find_class(owner)}{fit}"
    if not inner:
        return f"{asks_there}." if not owner else f"{asks_there}; {find_class(owner).removesuffix('; ')}."
    of_folder = _named_in_path(at, inner)
    if of_folder:
        return (
            f"{asks_there}; the file is its code for {of_folder}, whose {owner or 'function'} it is then; compare: "
            f"{_show(inner, of_folder)}."
        )
    if owner:
        return (
            f"{asks_there}; {find_class(owner)}if that is {inner} too, what sets {owner}'s attribute did not run with "
            f"these settings, or the files of {inner} are of two releases: {_show(inner)}."
        )
    return (
        f"{asks_there}; it is a function of {inner} itself or of a package that {inner} calls, and one of them has "
        f"another release than this call was written for: {_show(inner)}."
    )


def owner_of(name: str) -> str:
    """The package of a class whose name says whose it is."""
    own = (each.distribution for each in frameworks() if each.classes and re.fullmatch(each.classes, name))
    return next(own, "") or next((package for package, shape in _OWNERS if shape.fullmatch(name)), "")


def _home_of(owner: str, frames: Sequence[str]) -> str:
    """The frame whose file is called like a class, as `wibble_model.py` is like WibbleModel."""
    name = owner.lower()
    for frame in reversed(frames):
        stem = frame.partition(".py:")[0].rpartition("/")[2].replace("_", "").lower()
        if len(stem) >= _LONG_ENOUGH and name.startswith(stem) and not is_standard(frame):
            return frame
    return ""


def find_class(owner: str) -> str:
    """How to see which package defines a class that no frame shows."""
    if not owner or "<" in owner:
        return ""
    return (
        f'the package that defines it: grep -rl "class {owner}\\b" $(python -c "import site; '
        'print(site.getsitepackages()[0])") .; '
    )


def _named_in_path(frame: str, package: str) -> str:
    """Another engine or framework after which a folder or file of a package is called: its code for that one."""
    *folders, file = short(frame).split("/")[1:] or [""]
    names = (*folders, *file.partition(".py:")[0].split("_"))
    return next((each.name for each in frameworks() if each.name in names and each.name != package), "")


def _show(*packages: str) -> str:
    names = dict.fromkeys(_DISTRIBUTIONS.get(package, package) for package in packages if package)
    return f"pip show {' '.join(names)}"


def _packages(frames: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Package and frame from the innermost on; what only calls through, as packages and decorators do, is left out,
    except where the failure is, and what only looks a name up, waits for another process or hands a request on to an
    application is nobody's call."""
    inner = [frame for frame in reversed(frames) if not is_go_between(frame)]
    for depth, frame in enumerate(inner):
        package = package_of(frame)
        if _HANDS_REQUESTS_ON.search(frame):
            continue
        calls_through = package in CALLS_THROUGH or _DECORATOR.search(frame)
        if not is_standard(frame) and (depth == 0 or not calls_through):
            yield package, frame
