"""The file system as the script of a dry run sees it: the real one for reading, a throw-away layer for writing.

Every folder of the root directory becomes an overlay whose upper layer lies in memory; a folder that holds other
mounts is taken apart, because the kernel does not overlay those. Where an overlay is refused, the folder is shown for
reading only. Sockets, devices and kernel settings of the machine are not shown at all.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from rldbg.launch.dry_run import kernel

_MEMORY = "size=256m,mode=755"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_HIDDEN = frozenset({"/proc", "/sys", "/dev", "/run", "/lost+found"})
_ESCAPED = re.compile(r"\\([0-7]{3})")


def mount_points(table: str) -> frozenset[str]:
    """Where something is mounted, from the text of /proc/self/mountinfo."""
    return frozenset(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), line.split()[4]) for line in table.splitlines())


class SandboxRoot:
    """The new root directory, built below `layers`."""

    def __init__(self, layers: Path, *, writable: Iterable[Path], mounted: frozenset[str]) -> None:
        self.root = layers / "root"
        self._layers = layers
        self._writable = [place for path in writable for place in (*reversed(path.parents), path)]
        self._mounted = mounted
        self._overlays = 0

    def show(self, path: Path) -> None:
        """`path` and all below it."""
        target = self.root / path.relative_to("/")
        if not any(other.startswith(f"{str(path).rstrip('/')}/") for other in self._mounted):
            self._overlay(path, target)
            return
        target.mkdir(exist_ok=True)
        target.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IRWXU)
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except OSError:
            return  # what the user cannot read, the script cannot either
        for entry in entries:
            if entry.path not in _HIDDEN and not Path(entry.path).is_relative_to(self._layers):
                with contextlib.suppress(OSError):
                    self._show_entry(entry)

    def _show_entry(self, entry: "os.DirEntry[str]") -> None:
        target = self.root / entry.path.lstrip("/")
        if entry.is_symlink():
            target.symlink_to(Path(entry.path).readlink())
        elif entry.is_dir():
            self.show(Path(entry.path))
        elif entry.is_file():
            target.touch()
            kernel.bind_read_only(entry.path, str(target))

    def _overlay(self, path: Path, target: Path) -> None:
        target.mkdir(exist_ok=True)
        self._overlays += 1
        upper, work = self._layers / f"upper{self._overlays}", self._layers / f"work{self._overlays}"
        upper.mkdir()
        upper.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IRWXU)
        work.mkdir()
        self._open_for_writing(path, upper)
        lower = str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        for extra in (",userxattr", ""):
            try:
                kernel.mount("overlay", str(target), "overlay", 0, options + extra)
            except OSError:
                continue
            return
        kernel.bind_read_only(str(path), str(target))

    def _open_for_writing(self, path: Path, upper: Path) -> None:
        """Makes folders of the script's own in the upper layer: without it the kernel would have to copy the real
        ones first, which it cannot when they belong to another user (/tmp does)."""
        for folder in self._writable:
            if folder.is_relative_to(path) and folder != path and os.path.isdir(folder):  # noqa: PTH112 - never raises
                copy = upper / folder.relative_to(path)
                if not copy.exists():
                    copy.mkdir()
                    copy.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IRWXU)


def build(layers: Path, *, writable: Iterable[Path], shared: Path) -> str:
    """Builds the view below `layers` and returns its root. `shared` stays the real folder: results are left there."""
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    mounted = mount_points(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    kernel.mount("tmpfs", str(layers), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, _MEMORY)
    view = SandboxRoot(layers, writable=writable, mounted=mounted | {"/proc"})
    view.root.mkdir()
    # A mount of its own, because pivot_root wants one.
    kernel.mount(str(view.root), str(view.root), "", kernel.MS_BIND)
    view.show(Path("/"))
    _private(view.root)
    kernel.mount(str(shared), str(view.root / shared.relative_to("/")), "", kernel.MS_BIND)
    return str(view.root)


def _private(root: Path) -> None:
    """/dev with nothing but the harmless devices, /proc of the sandbox alone, an empty /run, /sys for reading."""
    for name in ("dev", "run", "proc", "sys"):
        (root / name).mkdir(exist_ok=True)
    devices = root / "dev"
    graphics = [path.name for path in Path("/dev").glob("nvidia*") if path.is_char_device()]
    for name in (*_DEVICES, *graphics):
        with contextlib.suppress(OSError):
            (devices / name).touch()
            kernel.mount(f"/dev/{name}", str(devices / name), "", kernel.MS_BIND)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (devices / name).symlink_to(f"/proc/self/fd/{number}")
    (devices / "fd").symlink_to("/proc/self/fd")
    (devices / "shm").mkdir()
    (devices / "shm").chmod(0o1777)
    try:
        kernel.mount("proc", str(root / "proc"), "proc", kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV)
    except OSError:
        # Containers hide parts of /proc and then forbid a fresh one; theirs is shown for reading.
        kernel.bind_read_only("/proc", str(root / "proc"))
    with contextlib.suppress(OSError):
        kernel.bind_read_only("/sys", str(root / "sys"))
