"""NVIDIA's nsys from Debian's non-free packages, fetched once and only unpacked: nothing is installed."""

import fcntl
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".cache" / "debs" / "nsys"
PACKAGES = ("nsight-systems", "nsight-systems-target", "libssh-4")
SOURCE = (
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian {} main non-free\n"
)


def folder_of_nsys() -> Path:
    """The folder to put on PATH; the test is skipped where nsys can neither be found nor had."""
    found = shutil.which("nsys")
    if found:
        return Path(found).parent
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        binary = CACHE / "root" / "usr" / "bin" / "nsys"
        if not (CACHE / ".complete").exists():
            fetch()
        return binary.parent


def fetch() -> None:
    if not shutil.which("apt-get") or os.geteuid() != 0:
        pytest.skip("nsys cannot be had here: it needs root and Debian's packages")
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "bookworm")
    (CACHE / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (CACHE / "archives").mkdir(exist_ok=True)
    (CACHE / "sources.list").write_text(SOURCE.format(release))
    options = [
        word
        for name, value in (
            ("Dir::Etc::sourcelist", CACHE / "sources.list"),
            ("Dir::Etc::sourceparts", "/dev/null"),
            ("Dir::State::lists", CACHE / "lists"),
            ("Dir::Cache", CACHE / "archives"),
        )
        for word in ("-o", f"{name}={value}")
    ]
    try:
        for words in (["update"], ["download", *PACKAGES]):
            subprocess.run(["apt-get", *options, *words], cwd=CACHE, check=True, capture_output=True, timeout=300)
    except subprocess.SubprocessError as error:
        pytest.skip(f"Debian's non-free packages cannot be had: {error}")
    root = CACHE / "root"
    for package in CACHE.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        package.unlink()
    # nsys looks for its importer beside its target folder, where the packages have a link in the other direction only.
    for host in root.glob("usr/lib/nsight-systems/host-linux-*"):
        for target in root.glob("usr/lib/*/nsight-systems"):
            link = target / host.name
            if target != host.parent and not link.exists():
                link.symlink_to(os.path.relpath(host, target))
    (CACHE / ".complete").touch()
