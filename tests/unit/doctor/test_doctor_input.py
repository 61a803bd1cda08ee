"""Whatever is given as a log: both engines agree, bad input becomes a finding or a clear error, time stays bounded."""

import gzip
import os
import random

import pytest
import yaml

from rldbg.core import IncompleteDataError
from rldbg.doctor import Library, SearchIndex, diagnose
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.clock import stamp_in
from rldbg.doctor.logs.sources import CHUNK_BYTES, LogSource, chunks, find_sources
from rldbg.doctor.scan import Scanner
from rldbg.doctor.search.engines import GramEngine, HyperscanEngine

from .logs import healthy_lines

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def test_both_engines_find_the_same_places():
    rng = random.Random(1)
    anchors = [b"watchdog caught", b"out of memory", b"CUDA out of memory", b"\x00\xff binary", "无法连接".encode()]
    for _ in range(60):
        pieces = [rng.choice([*anchors, b"out of mem", b"w", b"\n", b"x" * rng.randrange(20)]) for _ in range(40)]
        text = b"".join(pieces)
        assert GramEngine(anchors).find(text) == HyperscanEngine(anchors).find(text)
        begin, end = sorted((rng.randrange(len(text) + 9), rng.randrange(len(text) + 9)))
        assert GramEngine(anchors).find(text, begin, end) == HyperscanEngine(anchors).find(text, begin, end)
    assert GramEngine(anchors).find(b"") == []


def test_what_healthy_programs_print_holds_hardly_any_anchor(index):
    """Every anchor found is a place that must be read as text: in a healthy log there are next to none."""
    lines = healthy_lines(2000, seed=3)
    found = index.engine.find("\n".join(lines).encode())
    assert len(found) < len(lines) // 100


def test_both_engines_give_the_same_diagnosis(library, index, tmp_path):
    lines = healthy_lines(300, seed=2)
    for entry in library.entries.values():
        for signature in entry.signatures:
            lines += [signature.examples[0], "filler"]
    (tmp_path / "all.log").write_text("\n".join(lines))
    one = diagnose([tmp_path / "all.log"], index=index).to_dict()
    two = diagnose([tmp_path / "all.log"], index=SearchIndex(library, "numpy")).to_dict()
    assert one.pop("read")["engine"] == "hyperscan"
    assert two.pop("read")["engine"] == "numpy"
    assert one == two


def test_lines_are_numbered_right_across_chunks(index, tmp_path):
    filler = "an ordinary line of a log that says nothing of interest at all\n"
    count = 3 * CHUNK_BYTES // len(filler)
    log = tmp_path / "long.log"
    log.write_text(filler * count + OOM + "\n" + filler * count)
    found = diagnose([log], index=index)
    assert [(quote.line, found.root_causes[0].count) for quote in found.root_causes[0].evidence] == [(count + 1, 1)]


def test_a_match_on_the_border_of_two_chunks_is_found_once(index, tmp_path):
    for shift in (-9, 14):
        log = tmp_path / f"border{shift}.log"
        log.write_bytes(
            b"x" * 99 + b"\n" + (b"y" * 63 + b"\n") * ((CHUNK_BYTES - 100 + shift) // 64) + OOM.encode() + b"\n"
        )
        found = Scanner(index).read_all([LogSource(log)])
        assert [hit.entry for hit in found.hits] == ["torch-cuda-oom"]


def test_chunks_cover_every_byte_exactly_once(tmp_path):
    content = os.urandom(2 * CHUNK_BYTES + 12345)
    file = tmp_path / "x"
    file.write_bytes(content)
    with LogSource(file).open() as stream:
        pieces = [chunk.data[chunk.begin : chunk.end] for chunk in chunks(stream)]
    assert b"".join(pieces) == content


def test_gzip_is_read_and_a_damaged_one_is_a_finding(index, tmp_path):
    whole = tmp_path / "a.log.gz"
    whole.write_bytes(gzip.compress((OOM + "\n").encode()))
    assert diagnose([whole], index=index).root_causes[0].id == "torch-cuda-oom"
    body = gzip.compress(("\n".join(healthy_lines(4000)) + "\n").encode())
    (tmp_path / "cut.log.gz").write_bytes(body[: len(body) // 2])
    found = diagnose([tmp_path / "cut.log.gz"], index=index)
    assert [finding.id for finding in found.findings] == ["log-unreadable"]
    assert found.verdict == "healthy"
    body = gzip.compress("\n".join([OOM, *(f"noise {n * 7919 % 100003}" for n in range(9000))]).encode())
    (tmp_path / "cut.log.gz").write_bytes(body[: len(body) // 2])
    found = diagnose([tmp_path / "cut.log.gz"], index=index)
    assert found.root_causes[0].id == "torch-cuda-oom", "what was unpacked before the damage counts"
    assert [finding.id for finding in found.findings] == ["log-unreadable"]


def test_a_link_to_itself_is_a_finding(index, tmp_path):
    (tmp_path / "loop.log").symlink_to("loop.log")
    found = diagnose([tmp_path / "loop.log"], index=index)
    assert [finding.id for finding in found.findings] == ["log-unreadable"]


def test_the_words_that_matter_are_shown_of_a_huge_line(index, tmp_path):
    (tmp_path / "a.log").write_text("x" * 3000 + " OSError: [Errno 98] Address already in use " + "y" * 3000)
    (quote,) = diagnose([tmp_path / "a.log"], index=index).root_causes[0].evidence
    assert "Address already in use" in quote.text
    assert len(quote.text) < 700


def test_what_is_not_there_is_an_error_that_says_so(tmp_path):
    with pytest.raises(IncompleteDataError, match="does not exist"):
        find_sources([tmp_path / "nothing.log"])
    with pytest.raises(IncompleteDataError, match="no log files"):
        find_sources([tmp_path])


def test_an_unreadable_file_does_not_stop_the_others(index, tmp_path):
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    (tmp_path / "good.log").write_text(OOM + "\n")
    found = diagnose([tmp_path / "gone.log", tmp_path / "good.log"], index=index)
    assert found.root_causes[0].id == "torch-cuda-oom"
    assert [finding.id for finding in found.findings] == ["log-unreadable"]


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 200_000, b"a" * 3_000_000, bytes(range(256)) * 4000, "\ufeff".encode() * 999],
    ids=["empty", "zeros", "one huge line", "all bytes", "marks"],
)
def test_junk_is_healthy_and_quick(index, tmp_path, content):
    (tmp_path / "junk.log").write_bytes(content)
    assert diagnose([tmp_path / "junk.log"], index=index).verdict == "healthy"


def test_a_failure_inside_a_huge_line_and_in_utf16_is_found(index, tmp_path):
    (tmp_path / "huge.log").write_bytes(b"z " * 400_000 + OOM.encode() + b" y" * 400_000)
    assert diagnose([tmp_path / "huge.log"], index=index).root_causes[0].id == "torch-cuda-oom"
    (tmp_path / "wide.log").write_text("\ufeff" + OOM + "\n", encoding="utf-16-le")
    assert diagnose([tmp_path / "wide.log"], index=index).root_causes[0].id == "torch-cuda-oom"


def test_a_signature_that_costs_too_much_is_stopped_and_named(tmp_path):
    slow = {
        "id": "slow-one",
        "title": "Slow",
        "title_zh": "慢",
        "category": "local",
        "role": "root",
        "signatures": [{"match": "slow marker.*a.*b", "examples": ["slow marker a b"]}],
        "cause": "c",
        "fix": ["f"],
    }
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "own.yaml").write_text(yaml.safe_dump([slow]))
    log = tmp_path / "evil.log"
    log.write_text(("slow marker " + "a" * 3000 + "\n") * 400)
    scanner = Scanner(SearchIndex(Library.load([tmp_path / "k"])), budget_s=0.05)
    evidence = scanner.read_all([LogSource(log)])
    assert [finding.id for finding in evidence.findings] == ["signature-too-slow"]


def test_memory_stays_flat_when_one_symptom_floods_the_log(index, tmp_path):
    log = tmp_path / "flood.log"
    log.write_text((OOM + "\n") * 6_000)
    evidence = Scanner(index).read_all([LogSource(log)])
    assert len(evidence.hits) < 300
    assert evidence.counts["torch-cuda-oom"] >= 6_000
    assert evidence.hits[0].place.line == 1


def test_of_lines_that_count_only_before_a_trouble_the_latest_are_kept(index, tmp_path):
    log = tmp_path / "run.log"
    saves = [
        f"2026-11-15 0{hour}:{minute:02d}:00,000 INFO Saving latest checkpoint"
        for hour in range(9)
        for minute in range(60)
    ]
    wait = (
        "[rank1]:[E1115 09:09:00.000000000 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=26, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600007 milliseconds."
    )
    log.write_text("\n".join(["x"] * 3 + [line + "\n" + "working\n" * 40 for line in saves] + [wait]))
    assert [cause.id for cause in diagnose([log], index=index).root_causes] == ["nccl-slow-checkpoint"]


@pytest.mark.parametrize(
    ("line", "text", "speaker"),
    [
        ("\x1b[36m(WorkerDict pid=7, ip=10.0.0.2)\x1b[0m hello", "hello", ("WorkerDict", "7", "10.0.0.2", "")),
        ("(ActorWorker(train-1) pid=18, ip=10.0.0.3) x", "x", ("ActorWorker(train-1)", "18", "10.0.0.3", "")),
        ("(VllmWorker rank=3 pid=9) x", "x", ("VllmWorker", "9", "", "3")),
        ("(raylet, ip=10.0.0.9) gone", "gone", ("raylet", "", "10.0.0.9", "")),
        ("[rank5]: boom", "boom", ("", "", "", "5")),
        ("12: from srun", "from srun", ("", "", "", "12")),
        ('{"log":"shipped\\n","stream":"stderr"}', "shipped", ("", "", "", "")),
        ("msg\x1b[32m [repeated 7x across cluster]\x1b[0m", "msg", ("", "", "", "")),
        ("it’s “quoted”", 'it\'s "quoted"', ("", "", "", "")),
    ],
)
def test_a_line_is_read_as_a_person_reads_it(line, text, speaker):
    found = clean(line)
    who = found.speaker
    assert (found.text, (who.name, who.pid, who.node, who.rank)) == (text, speaker)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("[2025-03-04 19:28:30,014 E 1 1] x", "2025-03-04 19:28:30"),
        ("[rank3]:[E1023 02:44:30.941975491 P.cpp:1] x", "2026-10-23 02:44:30"),
        ("[rank7]:[E218 10:48:25.033625188 P.cpp:1] x", "2026-02-18 10:48:25"),
        ("ERROR 06-30 13:53:19 [core.py:515] x", "2026-06-30 13:53:19"),
        ("[2025-12-17 14:10:28 TP1] x", "2025-12-17 14:10:28"),
        ("12/02/2024 16:03:31 - INFO - x", "2024-12-02 16:03:31"),
        ("[Sun Nov 15 10:00:00 2026] x", "2026-11-15 10:00:00"),
        ("Nov 15 10:00:00 node kernel: x", "2026-11-15 10:00:00"),
        ("2026-11-15T10:00:00+08:00 x", "2026-11-15 02:00:00 UTC"),
        ("[12345.678] NVRM: x", "None"),
        ("2026-13-45 99:99:99 x", "None"),
    ],
)
def test_time_is_read_in_every_dialect(line, shown):
    assert str(stamp_in(line, year=2026)) == shown
