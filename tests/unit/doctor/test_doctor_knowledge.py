"""The knowledge as a whole: every entry is complete, and every example line is found whatever a terminal did to it."""

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rldbg.core import UsageError
from rldbg.doctor import diagnose
from rldbg.doctor.knowledge.entries import PACKAGED, KnownFailure, Role
from rldbg.doctor.knowledge.families import family_of, kind_of
from rldbg.doctor.knowledge.library import Library, packaged, read_folder
from rldbg.doctor.logs.cleaning import Speaker, clean
from rldbg.doctor.logs.evidence import Failure, LogPlace
from rldbg.doctor.logs.sources import LogSource
from rldbg.doctor.scan import Scanner
from rldbg.doctor.search.anchors import anchors_of
from rldbg.doctor.search.expressions import Expression
from rldbg.frameworks import frameworks
from rldbg.reports.knowledge import failure_pages

COLLECTED = Path(__file__).with_name("collected_failures.txt").read_text().split()


def test_each_id_stands_once():
    ids = [entry.id for entry in packaged()]
    assert len(ids) == len(set(ids)), sorted(each for each in set(ids) if ids.count(each) > 1)


def matching_signature(entry, line):
    """The signature that matches a clean line on its own, by words only (context rules are the scanner's)."""
    for signature in entry.signatures:
        expression = Expression(signature.match)
        if expression.search(line) and not (signature.unless and Expression(signature.unless).search(line)):
            return signature
    return None


def test_every_example_matches_its_own_entry_and_contains_an_anchor(library):
    for entry in library.entries.values():
        for signature in entry.signatures:
            anchors = signature.anchors or anchors_of(signature.match)
            for example in signature.examples:
                assert matching_signature(entry, clean(example).text), (entry.id, example)
                assert any(anchor in example for anchor in anchors), (entry.id, example, anchors)


def test_the_packaged_expressions_are_safe():
    places = [PACKAGED, *(f for framework in frameworks() if (f := framework.file("knowledge.yaml")) is not None)]
    checked = [entry for place in places for entry in read_folder(place)]
    assert tuple(entry.id for entry in checked) == tuple(entry.id for entry in packaged())


def test_lines_that_only_look_similar_do_not_count(library, index, tmp_path):
    for entry in library.entries.values():
        for number, line in enumerate(entry.not_examples):
            log = tmp_path / f"{entry.id}-{number}.log"
            log.write_text(line + "\n")
            evidence = Scanner(index).read_all([LogSource(log)])
            assert entry.id not in {hit.entry for hit in evidence.hits}, (entry.id, line)


def as_printed(line):
    return line


def by_ray(line):
    return f"\x1b[36m(WorkerDict pid=4711, ip=10.0.0.7)\x1b[0m {line}"


def repeated_by_ray(line):
    return f"\x1b[33m(raylet, ip=10.0.0.7)\x1b[0m {line}\x1b[32m [repeated 7x across cluster]\x1b[0m"


def by_torchrun(line):
    return f"[rank3]: {line}"


def in_json(line):
    import json

    return json.dumps({"time": "2026-11-15T10:00:00Z", "level": "error", "message": line}, ensure_ascii=False)


def colours_without_escape(line):
    return f"[36m(TaskRunner pid=17)[0m {line}"


def cut_by_terminal(line):
    """A terminal 110 columns wide breaks anywhere, also inside a word."""
    shown = f"(WorkerDict pid=4711) 2026-11-15 10:00:00,123 ERROR worker.py:77 -- {line}"
    return "\n".join(shown[at : at + 110] for at in range(0, len(shown), 110))


def wrapped_at_words(line):
    """A logger wraps at words and indents what follows."""
    return "\n            ".join(textwrap.wrap(f"2026-11-15 10:00:00,123 ERROR {line}", 96, break_long_words=False))


VARIANTS = [as_printed, by_ray, repeated_by_ray, by_torchrun, in_json, colours_without_escape, cut_by_terminal]


def _examples_of_lines(entries):
    """Examples that are found wherever they stand."""
    for entry in entries:
        for signature in entry.signatures:
            if signature.near or signature.not_near or signature.raised_in or signature.last_before or signature.when:
                continue
            if signature.of_driver:
                continue  # a prefix says that a worker wrote the line
            yield from ((entry.id, example) for example in signature.examples)


@pytest.mark.parametrize("variant", [*VARIANTS, wrapped_at_words], ids=lambda f: f.__name__)
def test_examples_are_found_in_every_dress(library, index, tmp_path, variant):
    wanted, found = [], set()
    # A log of all of them at once would be a flood of errors, in which not every line is tried.
    every = [*library.entries.values()]
    for number in range(0, len(every), 40):
        log, lines = tmp_path / f"{number}.log", []
        for entry, example in _examples_of_lines(every[number : number + 40]):
            dressed = variant(example.strip()).split("\n")
            wanted.append((entry, example, {(entry, log.name, len(lines) + 2 + n) for n in range(len(dressed))}))
            lines += ["ok", *dressed, "ok"]
        log.write_text("\n".join(lines))
        hits = Scanner(index).read_all([LogSource(log)]).hits
        found |= {(hit.entry, log.name, hit.place.line) for hit in hits}
    missed = [(entry, text) for entry, text, places in wanted if not places & found]
    assert len(wanted) > 250
    # A cut in the middle of "FileNotFoundError: " cannot be told from a new record.
    assert len(missed) <= 2, missed


def told_alone(library, index, log, entry):
    """An example by which an entry is named when it stands alone, or None where its context decides."""
    for signature in entry.signatures:
        log.write_text(signature.examples[0] + "\n")
        found = diagnose([log], index=index)
        if [cause.id for cause in found.root_causes] == [entry.id]:
            return signature.examples[0]
    return None


@pytest.mark.parametrize("part", [0, *(pytest.param(number, marks=pytest.mark.soak) for number in range(1, 4))])
def test_without_its_line_a_cause_is_never_replaced_by_a_wrong_one(library, index, tmp_path, part):
    """For every entry: its line above those of all it can lead to; then without it. Each run tries a quarter."""
    log = tmp_path / "x.log"
    causes = [entry for entry in library.entries.values() if entry.can_be_cause and entry.severity == "error"]
    quiet = {
        entry.id: entry.signatures[0].examples[0]
        for entry in library.entries.values()
        if entry.role is Role.SYMPTOM and entry.signatures
    }
    tried = 0
    for entry in causes[part::4]:
        line = told_alone(library, index, log, entry)
        fallout = [quiet[name] for name in sorted(library.direct_effects[entry.id]) if name in quiet]
        if line is None or not fallout:
            continue
        tried += 1
        log.write_text("\n".join([line, "---", *fallout, ""]))
        assert diagnose([log], index=index).root_causes[0].id == entry.id
        log.write_text("\n".join([*fallout, ""]))
        found = diagnose([log], index=index)
        assert (found.verdict, found.root_causes) == ("unknown", ()), entry.id
    assert tried > 15, tried


def test_relations_are_known_and_no_root_is_its_own_cause(library):
    for name, effects in library.effects.items():
        assert library.entries.keys() >= effects
        if library.entries[name].role is Role.ROOT:
            for other in effects:
                mutual = name in library.effects[other]
                assert not (mutual and library.entries[other].role is Role.ROOT), (name, other)


def test_every_entry_is_written_out(library):
    for entry in library.entries.values():
        assert entry.sources and entry.cause and entry.fix, entry.id
        assert any("一" <= char <= "鿿" for char in entry.title_zh), entry.id
        if entry.role in (Role.SYMPTOM, Role.EITHER):
            assert entry.look or not entry.signatures, f"{entry.id} does not say where the cause is to be found"


def test_all_collected_failures_are_covered(library):
    assert set(COLLECTED) <= set(library.entries)


def test_sixty_entries_beyond_the_first_rest_on_reports_of_this_year(library):
    """Only those with example lines count, which other tests try; the page says how many there are in all."""
    reported = {entry.id for entry in library.entries.values() if 2026 in entry.years}
    tried = {name for name in reported if library.entries[name].signatures or library.entries[name].family}
    assert len(tried - set(COLLECTED)) >= 60
    assert f"- 2026: {len(reported)} entries: " in failure_pages(library)["index.md"]


def test_every_variant_is_told_by_a_line_of_its_own_entry(library, index, tmp_path):
    for entry in library.entries.values():
        for variant in entry.variants:
            frame, _bar, line = variant.example.rpartition(" | ") if variant.raised_in else ("", "", variant.example)
            is_kind = entry.family and Expression(entry.family.exception).search(line)
            is_of_clues = not entry.signatures and entry.family is None  # a test of the clue reads whole logs
            assert is_kind or is_of_clues or entry.id in index.known(line), (entry.id, line)
            told = entry.as_told_by([line], [frame])
            assert told.title != entry.title, (entry.id, variant.example)
            assert "{" not in f"{told.title}{told.title_zh}", told.title
    assert library["torch-shm-object"].as_told_by(["a line"]) is library["torch-shm-object"]


def test_no_text_of_an_entry_is_cut_by_a_comment():
    """In YAML a number sign after a blank begins a comment, unless the text is quoted."""
    source = PACKAGED.parents[1]
    for file in (*PACKAGED.glob("*.yaml"), *source.glob("frameworks/*/knowledge.yaml")):
        text = file.read_text(encoding="utf-8")
        read = str(yaml.safe_load(text)).replace("\\", "")
        for line in (each for each in text.splitlines() if not each.lstrip().startswith("#")):
            _before, _sign, after = line.partition(" #")
            assert after[:12].replace("''", "'") in read, (file.name, line)


def test_a_folder_of_ones_own_adds_and_replaces(tmp_path, library):
    (tmp_path / "own.yaml").write_text(
        yaml.safe_dump(
            [
                {
                    "id": "our-gateway-down",
                    "title": "Our gateway is down",
                    "title_zh": "网关不可用",
                    "category": "local",
                    "role": "root",
                    "signatures": [{"match": "gateway said no to \\w+", "examples": ["gateway said no to rank3"]}],
                    "cause": "It restarts on Sundays.",
                    "fix": ["Wait."],
                    "leads_to": ["ray-actor-died"],
                }
            ]
        )
    )
    own = Library.load([tmp_path])
    assert own["our-gateway-down"].title == "Our gateway is down"
    assert len(own.entries) == len(library.entries) + 1
    assert "ray-actor-died" in own.effects["our-gateway-down"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"role": "culprit"}, "role"),
        ({"colour": "red"}, "colour"),
        ({"signatures": [{"match": "(a+)+b", "examples": ["aab"]}]}, "repetition inside a repetition"),
        ({"signatures": [{"match": r"(x)\1 long enough", "examples": ["xx"]}]}, "back-references"),
        ({"signatures": [{"match": ".*a.*b.*c literal text", "examples": ["abc"]}]}, "wide repetitions"),
        ({"signatures": [{"match": r"\d+", "examples": ["1"]}]}, "no literal text"),
        ({"signatures": [{"match": "(", "examples": ["("]}]}, "regular expression"),
        ({"signatures": [{"match": "two spaces {2,}here", "examples": ["two spaces  here"]}]}, "regular expression"),
        ({"leads_to": ["nobody"]}, "nobody"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_reason(library, tmp_path, change, complaint):
    entry = {
        "id": "x",
        "title": "t",
        "title_zh": "标题",
        "category": "local",
        "role": "root",
        "cause": "c",
        "fix": ["f"],
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump([entry | change]))
    with pytest.raises(UsageError, match=complaint):
        Library([*library.entries.values(), *read_folder(tmp_path)])


def test_yaml_that_is_no_list_is_refused(tmp_path):
    (tmp_path / "own.yaml").write_text("id: x\n")
    with pytest.raises(UsageError, match="not a list"):
        read_folder(tmp_path)
    with pytest.raises(UsageError, match="no knowledge"):
        read_folder(tmp_path / "nowhere")


def test_a_key_given_twice_is_refused(tmp_path):
    (tmp_path / "own.yaml").write_text("- id: x\n  cause: one\n  cause: two\n")
    with pytest.raises(UsageError, match="'cause' is defined twice"):
        read_folder(tmp_path)


def test_an_unknown_id_names_its_neighbours(library):
    with pytest.raises(UsageError) as raised:
        library["torch-cuda-oon"]
    assert "torch-cuda-oom" in raised.value.hint


def test_a_symptom_is_never_a_cause():
    entry = KnownFailure(id="s", title="t", title_zh="标", category="ray", role="symptom", cause="c", fix=["f"])
    assert not entry.can_be_cause


def test_a_relation_that_one_entry_states_is_in_both():
    def entry(name, **relations):
        return KnownFailure(id=name, title="t", title_zh="标", cause="c", fix=["f"], **relations)

    library = Library([entry("a", leads_to=["b"]), entry("b"), entry("c", downstream_of=["a"])])
    assert library["a"].leads_to == ["b", "c"]
    assert library["b"].downstream_of == library["c"].downstream_of == ["a"]
    with pytest.raises(UsageError, match="c refers to d"):
        Library([entry("c", downstream_of=["d"])])


def test_every_example_of_a_family_belongs_to_it(library):
    place = LogPlace("a.log", 1, 0, Speaker(), None)
    entries = list(library.entries.values())
    families = [entry for entry in entries if entry.family is not None]
    assert len(families) >= 4
    for entry in families:
        for example in entry.family.examples:
            frames, _, headline = example.partition(" | ")
            kind, _, message = headline.partition(": ")
            failure = Failure(kind, message, place, frames=("/x/train.py:3 in main", *frames.split(" > ")))
            asked = kind_of if entry.family.beside_only else family_of
            assert asked(failure, entries) is entry, example
            elsewhere = family_of(replace(failure, frames=("/x/train.py:3 in main",)), entries)
            assert elsewhere is not entry or entry.family.raised_in is None or entry.family.asked_last, example
