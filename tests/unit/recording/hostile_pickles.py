"""Pickles that want to run code, and files that want to exhaust their reader. Run as a program, it reads them all.

Usage: hostile_pickles.py DIR. Every event by which Python could run, import, open or spawn something while a file is
read ends the program; so does more than 1.5 GiB of memory or 20 seconds for one file.
"""

import io
import operator
import os
import pickle
import resource
import signal
import struct
import sys
import zipfile
from pathlib import Path

FORBIDDEN = ("os.", "subprocess.", "exec", "compile", "import", "socket.", "ctypes.", "shutil.", "code.", "pty.")
OWNED = "OWNED"


class Call:
    """Pickles as a call of this function with these arguments; callable, so that its result can be called in turn."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __call__(self):
        raise NotImplementedError

    def __reduce__(self):
        return self.function, self.args


def named(module: str, name: str, *args: bytes) -> bytes:
    """A protocol 2 pickle that calls module.name with already pickled arguments."""
    return b"\x80\x02" + reduce_call(module, name, *args) + b"."


def reduce_call(module: str, name: str, *args: bytes) -> bytes:
    return f"c{module}\n{name}\n".encode() + b"(" + b"".join(args) + b"tR"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def stack_global(module: str, name: str) -> bytes:
    return b"".join(b"\x8c" + bytes([len(part)]) + part.encode() for part in (module, name)) + b"\x93"


def hostile() -> dict[str, bytes]:
    """Name to pickle; each would leave a file called OWNED behind, or could, if it ran."""
    touch = f"open({OWNED!r}, 'w')"
    shell = f"touch {OWNED}"
    empty_tuple = b")"
    found = {
        f"dumps-{index}": pickle.dumps({"step": 0, "x": value}, protocol)
        for protocol in (0, 2, 4)
        for index, value in enumerate(
            [
                Call(os.system, shell),
                Call(eval, touch),
                Call(exec, touch),
                Call(compile, touch, "x", "exec"),
                Call(__import__, "os"),
                Call(getattr, Call(__import__, "os"), "system"),
                Call(Call(getattr, Call(__import__, "os"), "system"), shell),
                Call(operator.methodcaller("system", shell), Call(__import__, "os")),
                Call(operator.attrgetter("system")),
                Call(map, Call(eval), [touch]),
                Call(bytearray, 10**12),
            ],
            start=100 * protocol,
        )
    }
    found |= {
        f"{module}.{name}": named(module, name, text(shell))
        for module, name in (
            ("posix", "system"),
            ("nt", "system"),
            ("__builtin__", "eval"),
            ("builtins", "getattr"),
            ("subprocess", "Popen"),
            ("subprocess", "check_output"),
            ("importlib", "import_module"),
            ("runpy", "run_path"),
            ("pty", "spawn"),
            ("code", "interact"),
            ("timeit", "main"),
            ("pdb", "run"),
            ("ctypes", "CDLL"),
            ("socket", "socket"),
            ("webbrowser", "open"),
            ("functools", "partial"),
            ("types", "FunctionType"),
            ("pickle", "loads"),
            ("marshal", "loads"),
            ("shutil", "rmtree"),
            ("pathlib", "Path.unlink"),
            ("collections", "namedtuple"),
            ("logging.config", "dictConfig"),
            ("numpy", "load"),
            ("numpy", "os.system"),
            ("numpy.testing._private.utils", "runstring"),
            ("numpy.f2py", "compile"),
            ("torch", "load"),
            ("torch", "os.system"),
            ("torch.hub", "load"),
            ("torch.serialization", "load"),
            ("torch.serialization", "os.system"),
            ("torch.jit", "load"),
            ("torch.utils.cpp_extension", "load_inline"),
            ("torch._utils", "sys.modules"),
            ("dill._dill", "_create_function"),
            ("cloudpickle.cloudpickle", "_make_function"),
            ("joblib", "load"),
            ("pandas", "read_pickle"),
            ("pip", "main"),
            ("my_package", "subprocess.run"),
            ("my_package", "Thing.__class__.__base__"),
            ("my_package", "__builtins__"),
            ("commands", "getoutput"),
        )
    }
    found |= {
        "stack-global": b"\x80\x04" + stack_global("os", "system") + text(shell) + b"\x85R.",
        "instance": b"(" + text(shell) + b"ios\nsystem\n.",
        "object": b"(cos\nsystem\n" + text(shell) + b"o.",
        "newobj": b"\x80\x02cos\nsystem\n" + empty_tuple + b"\x81.",
        "never called": b"\x80\x02cos\nsystem\n.",
        "build on a class": b"\x80\x02cmine\nThing\n}" + text("__call__") + b"cmine\nOther\nsb.",
        "build on a function": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}" + text("__code__") + b"Nsb.",
        "slot state on a function": b"\x80\x02ccollections\nOrderedDict\nN}" + text("a") + b"Ns\x86b.",
        "extension": b"\x80\x02\x82\x01.",
        "storage from nowhere": b"\x80\x02" + text("0") + b"Q.",
        "out of band": b"\x80\x05\x97.",
    }
    return found


def exhausting() -> dict[str, bytes]:
    """Name to pickle; each asks for more memory, time or stack than it deserves."""
    key = b")" + b"\x85" * 150_000
    laughs = b"\x80\x02]q\x00(" + b"K\x01" * 10 + b"e"
    for level in range(40):
        laughs += b"]r" + struct.pack("<I", level + 1) + b"(" + (b"j" + struct.pack("<I", level)) * 10 + b"e"
    wide = b"\x80\x02](" + b"]q\x00(" + b"K\x01" * 50_000 + b"e" + b"h\x00" * 50_000 + b"e."
    collisions = b"".join(
        b"\x8a\x0c" + (k * (2**61 - 1)).to_bytes(12, "little", signed=True) + b"N" for k in range(2**20, 2**20 + 20_000)
    )
    numbers = b"]q\x00(" + b"".join(b"J" + struct.pack("<i", k) for k in range(20_000)) + b"e0"
    swapped = (
        b"cnumpy\ndtype\n("
        + text("f8")
        + b"\x89\x88tR(K\x03"
        + text(">")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    block = b"B" + struct.pack("<I", 800_000) + bytes(800_000) + b"q\x000" + swapped + b"q\x010"
    one_array = (
        b"cnumpy._core.numeric\n_frombuffer\n(h\x00h\x01J" + struct.pack("<i", 100_000) + b"\x85" + text("C") + b"tR"
    )
    return {
        "one list, many sets": b"\x80\x02" + numbers + b"(" + b"c__builtin__\nset\n(h\x00tR" * 20_000 + b"l.",
        "one buffer, many arrays": b"\x80\x03" + block + b"(" + one_array * 5_000 + b"l.",
        "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
        "memo in text": b"]p2000000000\n.",
        "memo index of many digits": b"]p" + b"9" * 100_000 + b"\n.",
        "deep key": b"\x80\x02}" + key + b"Ns.",
        "deep lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "deep objects": b"\x80\x02" + b"cm\nC\n" * 20_000 + b")" + b"\x85R" * 20_000 + b".",
        "laughs": laughs + b".",
        "wide": wide,
        "itself": b"\x80\x02]q\x00h\x00a.",
        "itself in a tuple": b"\x80\x02]q\x00h\x00\x85a.",
        "colliding keys": b"\x80\x02}(" + collisions + b"u.",
        "huge text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
        "huge bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
        "huge bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 38) + b"x.",
        "huge frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
        "huge integer": b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",
        "negative integer length": b"\x80\x02\x8b\xff\xff\xff\xff\x01.",
        "decimal integer": b"L" + b"9" * 2_000_000 + b"L\n.",
        "sets": b"\x80\x04(" + b"\x8f" * 1_100_000 + b"l.",
        "a million bytes of nothing": bytes(1_000_000),
        "empty": b"",
        "stop": b".",
        "marks": b"(" * 100_000 + b".",
        "pops": b"0" * 100 + b".",
    }


def archives() -> dict[str, bytes]:
    """Name to torch.save file that lies about its members."""
    made = {}
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("a/data.pkl", bytes(50 << 20))
    made["zip bomb"] = bomb.getvalue()
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", tensor_pickle("0", 1 << 20, (1024, 1024), (1024, 1)))
        for index in range(2):
            archive.writestr(f"a/data/{index}", bytes(4 << 20))
    made["compressed storages"] = many.getvalue()
    for name, member in (("absolute", "/etc/passwd/data.pkl"), ("upwards", "../../../../tmp/data.pkl")):
        made[f"traversal {name}"] = zipped({member: b"\x80\x02cos\nsystem\n."})
    honest = zipped({"a/data.pkl": b"\x80\x02N.", "a/version": b"3"})
    made["size beyond the file"] = honest.replace(struct.pack("<2I", 4, 4), struct.pack("<2I", 1 << 31, 1 << 31))
    made["directory cut off"] = honest[:-30]
    made["directory elsewhere"] = honest[:-6] + struct.pack("<I", 1 << 30) + honest[-2:]
    made["no pickle"] = zipped({"a/other": b"x"})
    for name, (count, shape, strides) in {
        "shape beyond the storage": (4, (100, 100), (100, 1)),
        "strides beyond the storage": (4, (2, 2), (1 << 40, 1)),
        "negative strides": (4, (2,), (-1,)),
        "absurd expansion": (4, (1 << 20, 1 << 20), (0, 0)),
        "overflowing shape": (4, (1 << 61, 1 << 61), (1, 1)),
        "storage beyond its member": (1 << 40, (1,), (1,)),
        "hundred dimensions": (4, (1,) * 100, (1,) * 100),
    }.items():
        made[name] = zipped({"a/data.pkl": tensor_pickle("0", count, shape, strides), "a/data/0": bytes(16)})
    return made


def tensor_pickle(key: str, count: int, shape: tuple, strides: tuple) -> bytes:
    def sizes(values):
        return b"(" + b"".join(b"\x8a\x09" + value.to_bytes(9, "little", signed=True) for value in values) + b"t"

    storage = (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + sizes((count,))[1:-1] + b"tQ"
    )
    arguments = storage + b"K\x00" + sizes(shape) + sizes(strides) + b"\x89" + b"}"
    return b"\x80\x02" + b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR."


def zipped(members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target.getvalue()


def main(folder: Path) -> None:
    import faulthandler

    from rldbg.core import IncompleteDataError
    from rldbg.recording.formats.pt_reader import load_pickle, load_pt

    load_pickle(b"\x80\x02N.")
    cases = [(name, load_pickle, data) for name, data in (hostile() | exhausting()).items()]
    cases += [(f"zipped {name}", load_pt, zipped({"a/data.pkl": data})) for name, data in hostile().items()]
    cases += [(name, load_pt, data) for name, data in archives().items()]
    os.chdir(folder)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (int(1.5 * 2**30), int(1.5 * 2**30)))
    armed = []

    def audit(event: str, _args: object) -> None:
        if armed and event.startswith(FORBIDDEN):
            sys.stderr.write(f"{armed[-1]}: {event}\n")
            os._exit(3)

    sys.addaudithook(audit)
    for name, reader, data in cases:
        for arrays in (False, True):
            armed.append(name)
            signal.alarm(20)
            try:
                reader(data, arrays=arrays)
                verdict = "read"
            except IncompleteDataError as error:
                verdict = f"refused: {error.message} | {error.hint}"
            armed.pop()
            sys.stdout.write(f"{name}\t{verdict!r}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
