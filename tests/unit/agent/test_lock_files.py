"""Loops that wait until a lock file is removed: which file is meant, and whether who wrote it has ended."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rldbg.agent.waits.calls.lock_files import awaited_absence, lock_file
from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.reading.objects import OwnFrame


def while_it_exists(path):
    while os.path.exists(path):  # noqa: PTH110
        return sys._getframe()
    return None


def until_it_does_not(path):
    while True:
        if not Path(path).is_file():
            break
        return sys._getframe()


def made_exclusively(path):
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            return None
        except FileExistsError:
            return sys._getframe()


def made_as_a_folder(path):
    lock = Path(path)
    for _ in range(3):
        try:
            lock.mkdir()
        except (OSError, ValueError):
            return sys._getframe()
    return None


def put_together(path):
    folder, name = os.path.split(path)
    while os.path.isfile(os.path.join(folder, name)) or (Path(folder) / "b.lock").exists():  # noqa: PTH113, PTH118
        return sys._getframe()
    return None


class Store:
    def __init__(self, path):
        self.lock = Path(path)

    def is_locked(self):
        return self.lock.exists()

    def save(self):
        while self.is_locked():
            return sys._getframe()
        return None


def asked_of_an_object(path):
    return Store(path).save()


def until_it_exists(path):
    while not (os.path.exists(path) and False):  # noqa: PTH110
        return sys._getframe()
    return None


def until_it_exists_inside(path):
    while True:
        if os.path.exists(path) and path == "":  # noqa: PTH110
            return None
        return sys._getframe()


def outside_of_the_loop(path):
    while os.path.exists(path + "x"):  # noqa: PTH110
        pass
    return sys._getframe()


@pytest.fixture
def path(tmp_path):
    (tmp_path / "a.lock").touch()
    return str(tmp_path / "a.lock")


@pytest.mark.parametrize(
    "function",
    [while_it_exists, until_it_does_not, made_exclusively, made_as_a_folder, put_together, asked_of_an_object],
)
def test_the_file_whose_removal_a_loop_waits_for_is_found(path, function):
    assert awaited_absence(OwnFrame(function(path)), Sources(os.getpid())) == path


@pytest.mark.parametrize("function", [until_it_exists, until_it_exists_inside, outside_of_the_loop])
def test_a_loop_that_waits_for_a_file_to_appear_waits_for_no_removal(path, function):
    assert awaited_absence(OwnFrame(function(path)), Sources(os.getpid())) == ""


@pytest.fixture(scope="module")
def ended():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("{pid}", True),
        ("{pid}\n", True),
        ("{pid}\n{host}\n", True),
        ('{{"pid": {pid}}}', True),
        ('{{"pid": {pid}, "host": "another-node"}}', False),
        ("{pid}\nanother-node\n", False),
    ],
)
def test_a_process_has_ended_only_where_it_was_one_of_this_host(path, ended, text, certain):
    Path(path).write_text(text.format(pid=ended, host=socket.gethostname()))
    found = lock_file(os.getpid(), path)
    assert found["pid"] == ended and found.get("ended") == (True if certain else None)


@pytest.mark.parametrize("text", ["", "2026-11-17 10:00", "1763372342.5", "99999999999", "locked by the trainer"])
def test_other_texts_name_no_process(path, text):
    Path(path).write_text(text)
    assert set(lock_file(os.getpid(), path)) == {"path", "age_s"}


def test_the_number_of_a_process_that_began_after_the_file_is_another_one(path):
    Path(path).write_text(str(os.getpid()))
    assert lock_file(os.getpid(), path)["ended"] is False
    os.utime(path, (1000, 1000))
    found = lock_file(os.getpid(), path)
    assert found["ended"] is True and found["age_s"] > 1e8


def test_a_folder_has_an_age_and_a_file_that_is_not_there_has_none(tmp_path):
    assert set(lock_file(os.getpid(), str(tmp_path))) == {"path", "age_s"}
    assert lock_file(os.getpid(), str(tmp_path / "absent")) == {}
