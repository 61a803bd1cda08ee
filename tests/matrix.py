"""`make test-matrix`: the tests once per way in which machines differ, and a table of what ran, what not, and why.

    python tests/matrix.py                    every cell that fits on this machine, unit tests
    python tests/matrix.py random busy        these cells alone
    python tests/matrix.py --list             the cells, and why one would be skipped here
    python tests/matrix.py busy --tests tests/integration/test_live_ray.py

Environments of other Python versions and of the lowest admitted packages are made under .venvs and used again.
"""

import argparse
import contextlib
import os
import pwd
import random
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENVS = ROOT / ".venvs"
TOOLS = ("pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "mypy", "import-linter")
STRANGER = "nobody"


class Unavailable(Exception):
    """Why a cell cannot run on this machine."""


@dataclass
class Place:
    """Where and as whom the tests run."""

    root: Path = ROOT
    python: Path = Path(sys.executable)
    environment: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    user: str | None = None


@dataclass(frozen=True)
class Cell:
    name: str
    what: str
    place: Callable[[], contextlib.AbstractContextManager[Place]]


@dataclass
class Outcome:
    cell: Cell
    result: str
    counts: str = ""
    seconds: float = 0.0
    why: str = ""


def variable(name: str, value: str, check: Callable[[], None] = lambda: None) -> Cell:
    @contextlib.contextmanager
    def place() -> Iterator[Place]:
        check()
        yield Place(environment={name: value})

    return Cell(f"{name.split('_')[0].lower()}-{value.lower()}", f"{name}={value}", place)


def needs_mkl(flag: str) -> Callable[[], None]:
    def check() -> None:
        import torch

        if not torch.backends.mkl.is_available():
            raise Unavailable("torch has no MKL here")
        needs_cpu(flag)()

    return check


def needs_cpu(flag: str) -> Callable[[], None]:
    def check() -> None:
        about = Path("/proc/cpuinfo")
        if not about.exists() or flag not in about.read_text().split():
            raise Unavailable(f"the CPU has no {flag}")

    return check


def other_python(version: str) -> Cell:
    @contextlib.contextmanager
    def place() -> Iterator[Place]:
        python = VENVS / f"matrix-{version}" / "bin" / "python"
        if not (python.parent.parent / "complete").exists():
            make_environment(python, version)
            torch = run_tool(python, "pip", "install", "--quiet", "--constraint", "constraints.txt", "torch")
            if torch.returncode:
                raise Unavailable(f"torch cannot be had for it: {last_line(torch.stderr)}")
            install(python, "--constraint", "constraints.txt", "--editable", ".[dev]")
            (python.parent.parent / "complete").touch()
        yield Place(python=python)

    return Cell(f"python-{version}", f"Python {version}", place)


@contextlib.contextmanager
def lowest_versions() -> Iterator[Place]:
    python = VENVS / "lowest" / "bin" / "python"
    made_for = python.parent.parent / "made-for.toml"
    if not made_for.exists() or made_for.read_text() != (ROOT / "pyproject.toml").read_text():
        shutil.rmtree(python.parent.parent, ignore_errors=True)
        make_environment(python, "3.11")
        install(python, "--resolution", "lowest-direct", "--editable", ".[all]")
        install(python, *TOOLS)
        shutil.copy(ROOT / "pyproject.toml", made_for)
    # Old releases warn of what was to come after them.
    yield Place(python=python, options=("-o", "filterwarnings=default"))


@contextlib.contextmanager
def random_order() -> Iterator[Place]:
    seed = random.randrange(10**6)
    print(f"the order is that of --shuffle {seed}", flush=True)
    yield Place(options=("--shuffle", str(seed)))


@contextlib.contextmanager
def clone_alone() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "a path with a space" / "rldbg"
        copy_tree(root)
        yield Place(root, thin_environment(root, Path(sys.executable).resolve()))


@contextlib.contextmanager
def plain_user() -> Iterator[Place]:
    if os.geteuid() != 0:
        raise Unavailable("this is a plain user: every other cell is run by one")
    there = pwd.getpwnam(STRANGER)
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        root = Path(scratch) / "rldbg"
        copy_tree(root)
        home = Path(scratch) / "home"
        home.mkdir()
        python = thin_environment(root, interpreter_for(STRANGER))
        for path in (root, home, *root.rglob("*")):
            os.chown(path, there.pw_uid, there.pw_gid, follow_symlinks=False)
        place = Place(root, python, {"HOME": str(home), "USER": STRANGER, "LOGNAME": STRANGER}, user=STRANGER)
        check = subprocess.run([python, "-c", "import torch, rldbg"], capture_output=True, text=True, **identity(place))
        if check.returncode:
            raise Unavailable(f"{STRANGER} cannot read the environment: {last_line(check.stderr)}")
        yield place


@contextlib.contextmanager
def busy_machine() -> Iterator[Place]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield Place()
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def bare_surroundings() -> Iterator[Place]:
    """A service's environment: no terminal, no language, another time zone, files for nobody else."""
    before = os.umask(0o077)
    try:
        terminal = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "60"}
        yield Place(environment={"CI": "true", "LC_ALL": "C", "TZ": "Asia/Kolkata", **terminal})
    finally:
        os.umask(before)


CELLS = (
    variable("MKL_ENABLE_INSTRUCTIONS", "SSE4_2", needs_mkl("sse4_2")),
    variable("MKL_ENABLE_INSTRUCTIONS", "AVX2", needs_mkl("avx2")),
    variable("MKL_ENABLE_INSTRUCTIONS", "AVX512", needs_mkl("avx512f")),
    variable("ATEN_CPU_CAPABILITY", "default"),
    variable("ATEN_CPU_CAPABILITY", "avx2", needs_cpu("avx2")),
    variable("ATEN_CPU_CAPABILITY", "avx512", needs_cpu("avx512f")),
    variable("OMP_NUM_THREADS", "1"),
    variable("OMP_NUM_THREADS", "2"),
    other_python("3.11"),
    other_python("3.12"),
    other_python("3.13"),
    Cell("lowest", "the lowest versions that pyproject.toml admits", lowest_versions),
    Cell("random", "in random order", random_order),
    Cell("clone", "a copy in a path with a space, nothing beside it", clone_alone),
    Cell("user", "as a user who is not root", plain_user),
    Cell("bare", "CI=true, LC_ALL=C, no colours, 60 columns, a strict umask", bare_surroundings),
    Cell("busy", "beside two busy loops", busy_machine),
)


def find_interpreter(version: str) -> str:
    """pyenv's own first: what the path has may be a shim that does not run."""
    installed = sorted(str(path) for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in [*installed, shutil.which(f"python{version}")]:
        if python and subprocess.run([python, "-c", "import venv"], capture_output=True).returncode == 0:
            return python
    raise Unavailable(f"there is no Python {version} here")


def interpreter_for(user: str) -> Path:
    """This one, or the machine's own of the same version where this one lies in a home that is closed to others."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (Path(sys.executable).resolve(), Path("/usr/bin") / version, Path("/usr/local/bin") / version):
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-c", "import venv"], user=user, capture_output=True, cwd="/").returncode == 0:
                return python
    raise Unavailable(f"no {version} that {user} may run")


def make_environment(python: Path, version: str) -> None:
    subprocess.run([find_interpreter(version), "-m", "venv", python.parent.parent], check=True)


def run_tool(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-m", *words], cwd=ROOT, capture_output=True, text=True)


def install(python: Path, *words: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run([uv, "pip", "install", "--python", python, *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"its packages cannot be had: {last_line(done.stderr)}")


def copy_tree(target: Path) -> None:
    """What git would know of the working tree, changes included."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists() or (ROOT / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def thin_environment(root: Path, base: Path) -> Path:
    """An environment in the copy with this one's packages and the copy's sources; made in a second."""
    folder = root / ".venv"
    subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "copy.pth").write_text(f"{root / 'src'}\nimport site; site.addsitedir({ours!r})\n")
    for script in Path(sys.executable).parent.iterdir():
        target = folder / "bin" / script.name
        if target.exists() or not script.is_file() or script.name.startswith("python"):
            continue
        content = script.read_bytes()
        if content.startswith(b"#!") and b"python" in content.partition(b"\n")[0]:
            # The kernel does not split a path with a space, so such scripts start through env as pip writes them.
            start = f"#!/bin/sh\n'''exec' \"{folder / 'bin' / 'python'}\" \"$0\" \"$@\"\n' '''\n".encode()
            target.write_bytes(start + content.partition(b"\n")[2])
            target.chmod(0o755)
        else:
            target.symlink_to(script.resolve())
    return folder / "bin" / "python"


def identity(place: Place) -> dict[str, object]:
    return {"user": place.user, "group": pwd.getpwnam(place.user).pw_gid, "extra_groups": []} if place.user else {}


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1].strip()


def run_cell(cell: Cell, tests: list[str], processes: int) -> Outcome:
    print(f"\n== {cell.name}: {cell.what}", flush=True)
    started = time.monotonic()
    try:
        with cell.place() as place, tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o777)
            report = Path(folder) / "report.xml"
            command = [str(place.python), "-m", "pytest", *tests, "-m", "not soak", "-q", "-n", str(processes)]
            command += ["--dist", "loadfile", f"--junitxml={report}", *place.options]
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
            # Ray warns of what it would do on a laptop, and counts its users.
            environment |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
            environment |= {"PATH": f"{place.python.parent}{os.pathsep}{os.environ['PATH']}"} | place.environment
            done = subprocess.run(command, cwd=place.root, env=environment, **identity(place))
            counts = count(report)
    except Unavailable as reason:
        print(f"skipped: {reason}", flush=True)
        return Outcome(cell, "skipped", why=str(reason))
    result = "passed" if done.returncode == 0 else "FAILED"
    return Outcome(
        cell, result, counts, time.monotonic() - started, f"exit code {done.returncode}" * bool(done.returncode)
    )


def count(report: Path) -> str:
    if not report.exists():
        return "no report"
    suite = xml.etree.ElementTree.parse(report).getroot()[0].attrib
    bad = int(suite["failures"]) + int(suite["errors"])
    skipped = int(suite["skipped"])
    return f"{int(suite['tests']) - bad - skipped} passed, {bad} failed, {skipped} skipped"


def explain(cell: Cell) -> str:
    """Why a cell would be skipped, where that is known without making anything."""
    if cell.name.startswith("python-"):
        with contextlib.suppress(Unavailable):
            return f"would use {find_interpreter(cell.name.removeprefix('python-'))}"
        return "no such Python here"
    if cell.name == "lowest":
        return "made when it runs"
    try:
        with cell.place():
            return "runs"
    except Unavailable as reason:
        return f"skipped: {reason}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="CELL", help="all of them unless named")
    parser.add_argument("--list", action="store_true", help="list the cells and run nothing")
    parser.add_argument("--tests", nargs="+", default=["tests/unit"], help="what to run  [default: tests/unit]")
    parser.add_argument("-n", type=int, default=2, dest="processes", help="test processes  [default: 2]")
    options = parser.parse_args()
    unknown = set(options.cells) - {cell.name for cell in CELLS}
    if unknown:
        parser.error(f"no such cell: {', '.join(sorted(unknown))} (see --list)")
    chosen = [cell for cell in CELLS if not options.cells or cell.name in options.cells]
    if options.list:
        for cell in chosen:
            print(f"{cell.name:14} {cell.what:52} {explain(cell)}")
        return 0
    outcomes = [run_cell(cell, options.tests, options.processes) for cell in chosen]
    print(f"\n{'cell':14} {'what':52} {'result':8} {'tests':40} {'seconds':>8}  why")
    for one in outcomes:
        print(f"{one.cell.name:14} {one.cell.what:52} {one.result:8} {one.counts:40} {one.seconds:8.0f}  {one.why}")
    return 1 if any(one.result == "FAILED" for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
