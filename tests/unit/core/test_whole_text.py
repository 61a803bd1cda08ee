"""Files that are read while they are written again."""

import stat

from rldbg.core import write_whole


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    file = tmp_path / "facts.json"
    write_whole(file, "a long first text")
    write_whole(file, "é")
    assert file.read_bytes() == "é".encode() and list(tmp_path.iterdir()) == [file]


def test_a_private_file_is_never_readable_by_others(tmp_path):
    file = tmp_path / "broker.json"
    file.write_text("{}", encoding="utf-8")
    file.chmod(0o644)
    write_whole(file, "token", mode=0o600)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
