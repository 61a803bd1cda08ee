"""The memory of snapshots: bounded, never handed out twice, whole again when everything is given back."""

import os
import random
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rldbg.recording.formats.checksum import join
from rldbg.recording.recorder import whole_file
from rldbg.recording.recorder.arena import Arena
from rldbg.recording.recorder.memory import ArenaMemory, NoRoom, TooLarge

MIB = 2**20


@pytest.mark.parametrize("seed", range(5))
def test_blocks_never_overlap_and_come_back_whole(seed: int) -> None:
    chance = random.Random(seed)
    arena = Arena(MIB)
    taken = {}
    for number in range(2000):
        if taken and chance.random() < 0.5:
            mark = chance.choice(list(taken))
            block = taken.pop(mark)
            assert (arena.view(block) == mark % 251).all(), "somebody else wrote into a block that was in use"
            arena.give_back(block)
            continue
        block = arena.take(chance.choice([1, 64, 100, 5000, 70_000]))
        if block is not None:
            arena.view(block)[:] = number % 251
            taken[number] = block
    for block in taken.values():
        arena.give_back(block)
    assert arena.free_bytes() == arena.capacity
    assert arena.take(arena.capacity) is not None, "free memory is in pieces although nothing is in use"


def test_the_low_end_is_used_again_so_that_pages_stay_warm() -> None:
    arena = Arena(8 * MIB)
    first = arena.take(MIB)
    arena.give_back(first)
    assert arena.take(MIB).start == first.start


def test_a_full_arena_asks_and_then_gets_what_is_given_back() -> None:
    arena = Arena(MIB)
    held = ArenaMemory(arena, on_full=lambda: None)
    held.take(MIB)
    waiting = ArenaMemory(arena, on_full=lambda: threading.Thread(target=held.release).start())
    assert waiting.take(MIB // 2).nbytes == MIB // 2


def test_giving_up_is_the_policys_decision() -> None:
    arena = Arena(MIB)
    ArenaMemory(arena, on_full=lambda: None).take(MIB)

    def refuse() -> None:
        raise NoRoom("full")

    with pytest.raises(NoRoom):
        ArenaMemory(arena, on_full=refuse).take(1)


def test_what_can_never_fit_is_said_at_once() -> None:
    memory = ArenaMemory(Arena(MIB), on_full=lambda: pytest.fail("there is nothing to wait for"))
    memory.take(MIB // 2)
    with pytest.raises(TooLarge):
        memory.take(MIB)


def test_joined_checksums_are_those_of_the_whole() -> None:
    chance = random.Random(0)
    for _ in range(50):
        first, second = chance.randbytes(chance.randrange(2000)), chance.randbytes(chance.randrange(50_000))
        assert join(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@pytest.mark.parametrize("helpers", [0, 1, 3])
@pytest.mark.parametrize(
    "sizes", [[], [10], [40_000, 3], [9_000_001], [1, 2**20, 5_000_000, 77, 12_345_678], [10] * 5000]
)
def test_a_file_does_not_depend_on_who_writes_which_piece(tmp_path: Path, sizes: list[int], helpers: int) -> None:
    source = np.random.default_rng(0)
    buffers = [memoryview(source.bytes(size)) for size in sizes]
    threads: list[threading.Thread] = []

    def offer(help: Callable[[], None]) -> None:
        threads.extend(threading.Thread(target=help) for _ in range(helpers))
        for thread in threads:
            thread.start()

    path = tmp_path / "file"
    size, crc32 = whole_file.write(str(path), buffers, offer)
    for thread in threads:
        thread.join()
    whole = b"".join(buffers)
    assert path.read_bytes() == whole
    assert (size, crc32) == (len(whole), zlib.crc32(whole))


def test_an_error_of_a_helper_is_an_error_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    writing = whole_file.SharedWriting(descriptor, whole_file.cut([memoryview(bytes(9_000_000))]))
    writing.help()
    with pytest.raises(OSError, match="Bad file descriptor"):
        writing.finish()
    os.close(descriptor)


@pytest.mark.parametrize("error", [MemoryError("no memory"), ValueError("closed"), KeyboardInterrupt()])
def test_any_error_of_a_helper_is_raised_where_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    write_piece = whole_file._write_piece

    def fail_in_helper(descriptor: int, piece: whole_file.FilePiece) -> int:
        if threading.current_thread().name == "helper":
            raise error
        return write_piece(descriptor, piece)

    def offer(help: Callable[[], None]) -> None:
        helper = threading.Thread(target=help, name="helper")
        helper.start()
        helper.join()

    monkeypatch.setattr(whole_file, "_write_piece", fail_in_helper)
    with pytest.raises(type(error)):
        whole_file.write(str(tmp_path / "file"), [memoryview(bytes(9_000_000))], offer)


def test_more_memory_than_there_can_be_names_the_setting() -> None:
    with pytest.raises(OSError, match="set buffer_bytes to less"):
        Arena(2**60)


_FORKS_BESIDE_ARENAS = """
import os
from rldbg.recording.recorder.arena import Arena

machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
arenas = [Arena(machine_bytes) for _ in range(3)]
child = os.fork()
if child == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(
    Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2", reason="this kernel counts every mapping"
)
def test_a_process_with_large_buffers_can_still_fork() -> None:
    ended = subprocess.run([sys.executable, "-c", _FORKS_BESIDE_ARENAS], capture_output=True, text=True)
    assert ended.stdout.strip() == "7", ended.stderr


def test_a_closed_arena_returns_its_memory_once_nobody_looks_at_it() -> None:
    arena = Arena(MIB)
    block = arena.take(64)
    assert block is not None
    view = arena.view(block)
    mapping = arena._mapping
    view[:] = 5
    arena.close()
    assert arena.take(64) is None and (view == 5).all()
    del view
    mapping.close()
    assert mapping.closed
    idle = Arena(MIB)
    idle.close()
    assert idle._mapping.closed
