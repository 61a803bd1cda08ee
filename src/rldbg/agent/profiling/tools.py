"""The tools that profile a process from inside. Each starts, stops, and names the files that it wrote.

Whatever a tool needs (torch, py-spy, memray) is taken from the process's own environment and imported only when the
window opens.
"""

import contextlib
import gzip
import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from .nsys import UnderNsys, option_words, report_path
from .plan import Plan, fresh_path

_ON = ("", "1", "true", "yes", "on")
_SPY_END_S = 60.0
_TOP_LINES = 200


class ToolError(Exception):
    """The tool cannot work here; the text says why and what would help."""


class Tool(Protocol):
    def start(self) -> None: ...

    def stop(self) -> list[Path]:
        """Ends the profile and returns the files written."""


def make_tool(plan: Plan, stem: str, under: UnderNsys | None) -> Tool:
    folder = Path(plan.folder)
    makers: dict[str, Callable[[], Tool]] = {
        "torch": lambda: TorchTool(plan, folder / f"{stem}.torch.json.gz"),
        "pyspy": lambda: PySpyTool(plan, folder / stem),
        "memory": lambda: MemoryTool(plan, folder / stem),
        "nsys": lambda: NsysTool(plan, under),
    }
    return makers[plan.tool]()


def option_is_on(plan: Plan, name: str, default: bool) -> bool:
    if name not in plan.options:
        return default
    return (plan.options[name] or "").lower() in _ON


class TorchTool:
    """torch.profiler over all threads: CPU, and CUDA where there is one. Options: shapes, stacks, memory, flops."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self._plan = plan
        self._path = path
        self._profile: Any = None

    def start(self) -> None:
        if "torch" not in sys.modules:
            # Not imported for its own sake: that takes seconds and memory that the worker did not ask for.
            raise ToolError("this worker has not imported torch")
        profiler: Any = importlib.import_module("torch.profiler")
        activities = [profiler.ProfilerActivity.CPU]
        if sys.modules["torch"].cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        settings: dict[str, Any] = {
            "activities": activities,
            "record_shapes": option_is_on(self._plan, "shapes", True),
            "with_stack": option_is_on(self._plan, "stacks", False),
            "profile_memory": option_is_on(self._plan, "memory", False),
            "with_flops": option_is_on(self._plan, "flops", False),
        }
        try:
            native: Any = importlib.import_module("torch._C._profiler")
            settings["experimental_config"] = native._ExperimentalConfig(profile_all_threads=True)
        except (ImportError, AttributeError, TypeError):
            # Before torch 2.7 only the thread that starts the profiler is seen, and those of autograd.
            settings.pop("experimental_config", None)
        self._profile = profiler.profile(**settings)
        with _without_inductor():
            self._profile.start()

    def stop(self) -> list[Path]:
        self._profile.stop()
        path = fresh_path(self._path)
        whole = path.with_name(f".{path.name}.{os.getpid()}.json")
        self._profile.export_chrome_trace(str(whole))
        packed = whole.with_suffix(".gz")
        with open(whole, "rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        whole.unlink()
        packed.replace(path)
        self._profile = None
        return [path]


@contextlib.contextmanager
def _without_inductor() -> Iterator[None]:
    """torch's profiler imports the inductor to check for it: eight hundred modules, seconds, and a deadlock if another
    thread is importing torch's compiler. Unless it is already imported, skip the check."""
    lazy: Any = getattr(sys.modules["torch"], "_lazy_modules", None)
    if "torch._inductor" in sys.modules or not isinstance(lazy, set) or "_inductor" not in lazy:
        yield
        return
    lazy.discard("_inductor")
    try:
        yield
    finally:
        lazy.add("_inductor")


class PySpyTool:
    """py-spy as a separate process: a speedscope profile and a flame graph. Options: rate, native, gil, idle."""

    def __init__(self, plan: Plan, stem: Path) -> None:
        self._plan = plan
        self._stem = stem
        self._spies: list[tuple[subprocess.Popen[bytes], Path, Path]] = []
        self._started_at = 0.0

    def start(self) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        tool = shutil.which("py-spy", path=path)
        if tool is None:
            raise ToolError("py-spy is not installed on this node: pip install py-spy")
        flags = [f"--{name}" for name in ("native", "gil", "idle") if option_is_on(self._plan, name, False)]
        for name, extension in (("speedscope", "speedscope.json"), ("flamegraph", "flamegraph.svg")):
            final = fresh_path(self._stem.with_name(f"{self._stem.name}.{extension}"))
            raw = final.with_name(f".{final.name}.{os.getpid()}")
            words = [tool, "record", "--pid", str(os.getpid()), "--format", name, "--output", str(raw), "--nonblocking"]
            words += ["--rate", self._plan.options.get("rate") or "100", "--threads", *flags]
            log = open(f"{raw}.log", "wb")  # noqa: SIM115 - py-spy owns it from here
            with _interruptible():
                spy = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
            log.close()
            _permit(spy.pid)
            self._spies.append((spy, raw, final))
        self._started_at = time.time()

    def stop(self) -> list[Path]:
        elapsed = time.time() - self._started_at
        # py-spy needs a moment to read the interpreter before it may be ended.
        time.sleep(max(0.0, 1.0 - elapsed))
        for spy, _, _ in self._spies:
            spy.send_signal(signal.SIGINT)
        written = []
        for spy, raw, final in self._spies:
            try:
                spy.wait(_SPY_END_S)
            except subprocess.TimeoutExpired:
                spy.kill()
                raise ToolError(f"py-spy did not stop within {_SPY_END_S:g} s") from None
            log = Path(f"{raw}.log")
            if not raw.exists():
                lines = log.read_text(errors="replace").strip().splitlines() or ["it wrote nothing"]
                raise ToolError(f"py-spy: {lines[-1]}")
            log.unlink()
            raw.replace(final)
            written.append(final)
        side = self._stem.with_name(f"{self._stem.name}.pyspy.json")
        side.write_text(json.dumps({"started_at": self._started_at, "pid": os.getpid()}))
        self._spies = []
        return [*written, side]


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ray's workers block SIGINT in their threads, and what they start inherits that; py-spy is ended by it."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _permit(pid: int) -> None:
    """Where only ancestors may trace (yama), this process names py-spy as one that may."""
    try:
        ctypes: Any = importlib.import_module("ctypes")
        ctypes.CDLL(None).prctl(0x59616D61, pid, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        # Another system than Linux: its own rules apply.
        return


class MemoryTool:
    """CUDA: torch's memory snapshot. CPU: memray where it is installed, else tracemalloc. Options: frames, entries."""

    def __init__(self, plan: Plan, stem: Path) -> None:
        self._plan = plan
        self._stem = stem
        self._memray: Any = None
        self._memray_file: Path | None = None
        self._cuda: Any = None
        self._was_tracing = False

    def start(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            self._cuda = torch.cuda.memory
            self._cuda._record_memory_history(max_entries=int(self._plan.options.get("entries") or 100_000))
        if importlib.util.find_spec("memray") is not None:
            memray: Any = importlib.import_module("memray")
            self._memray_file = fresh_path(self._stem.with_name(f"{self._stem.name}.memray.bin"))
            self._memray = memray.Tracker(self._memray_file)
            self._memray.__enter__()
            return
        self._was_tracing = tracemalloc.is_tracing()
        if not self._was_tracing:
            tracemalloc.start(int(self._plan.options.get("frames") or 8))

    def stop(self) -> list[Path]:
        written = []
        if self._cuda is not None:
            path = fresh_path(self._stem.with_name(f"{self._stem.name}.cuda_memory.pickle"))
            self._cuda._dump_snapshot(str(path))
            self._cuda._record_memory_history(enabled=None)
            written.append(path)
        if self._memray is not None and self._memray_file is not None:
            self._memray.__exit__(None, None, None)
            return [*written, self._memray_file]
        return [*written, self._write_tracemalloc()]

    def _write_tracemalloc(self) -> Path:
        snapshot = tracemalloc.take_snapshot()
        current, peak = tracemalloc.get_traced_memory()
        if not self._was_tracing:
            tracemalloc.stop()
        lines = [
            {"file": top.traceback[0].filename, "line": top.traceback[0].lineno, "bytes": top.size, "count": top.count}
            | {"stack": [f"{frame.filename}:{frame.lineno}" for frame in top.traceback]}
            for top in snapshot.statistics("traceback")[:_TOP_LINES]
        ]
        path = fresh_path(self._stem.with_name(f"{self._stem.name}.memory.json"))
        body = {"tool": "tracemalloc", "current_bytes": current, "peak_bytes": peak, "allocations": lines}
        path.write_text(json.dumps(body, indent=1), encoding="utf-8")
        return path


class NsysTool:
    """Opens and closes nsys's window; the supervisor of this process looks after the report."""

    def __init__(self, plan: Plan, under: UnderNsys | None) -> None:
        if under is None:
            raise ToolError("this process does not run under nsys")
        self._plan = plan
        self._under = under

    def start(self) -> None:
        if self._under.mode == "cuda":
            if "torch" not in sys.modules:
                raise ToolError("nsys with --steps needs a worker that has imported torch")
            torch: Any = sys.modules["torch"]
            torch.cuda.cudart().cudaProfilerStart()
        elif self._under.mode == "session":
            output = str(report_path(self._under.output, os.getpid()))
            own = {
                name: value for name, value in self._plan.options.items() if name not in ("t", "trace", "o", "output")
            }
            quiet = [] if {"s", "sample"} & own.keys() else ["--sample=none", "--cpuctxsw=none"]
            self._nsys("start", f"--output={output}", "--stop-on-exit=true", *quiet, *option_words(own))

    def stop(self) -> list[Path]:
        if self._under.mode == "cuda":
            sys.modules["torch"].cuda.cudart().cudaProfilerStop()
        elif self._under.mode == "session":
            self._nsys("stop")
        return []

    def _nsys(self, word: str, *options: str) -> None:
        done = subprocess.run(
            [self._under.nsys, word, f"--session={self._under.session}", *options],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or [f"it ended with {done.returncode}"]
            raise ToolError(f"nsys {word}: {lines[0]}")
