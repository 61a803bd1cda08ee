"""The zoo end to end: bugs built into real runs are found, placed and named; clean pairs are not accused."""

import json
from pathlib import Path

import pytest

from rldbg.reports.zoo import matrix_to_lines, score_to_markdown
from rldbg.trainer.zoo import BUGS, PAIRS, Cell, Reference, find_bug, score, score_matrix

pytestmark = pytest.mark.timeout(900)
RECIPE = Path("zoo")
SAMPLE = ("clip-high", "old-log-probs-shifted", "gradients-not-reduced", "advantage-clipped", "optimizer-is-sgd")
CLEAN = ("same-seed", "other-rank-count")


def judged(folder, bugs, pairs):
    return score(bugs, pairs, RECIPE, folder, processes=2)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A folder of runs, which later ones go on from, and what was said of them."""
    folder = tmp_path_factory.mktemp("zoo")
    clean = [pair for pair in PAIRS if pair.name in CLEAN]
    return folder, judged(folder, [find_bug(name) for name in SAMPLE], clean)


def test_a_few_bugs_are_found_and_named_and_clean_runs_are_not(scored):
    report = scored[1]
    assert report.false_alarms == ()
    for row in report.bugs:
        assert row.changed and row.found_by_compare and row.stage_right and row.cause_right, row
    assert report.totals()["late"].bugs == 2
    assert [row["name"] for row in report.to_dict()["rows"]] == [*SAMPLE, *CLEAN]
    assert any("| clip-high |" in line for line in score_to_markdown(report))


def test_nothing_in_a_recording_tells_which_bug_it_holds(scored):
    recordings = scored[0] / "recordings"
    files = [file for file in recordings.rglob("*") if file.is_file()]
    assert len(list(recordings.iterdir())) > len(SAMPLE)
    for file in files:
        content = file.read_bytes()
        for name in SAMPLE:
            assert name.encode() not in content and name not in str(file.relative_to(recordings))


def test_the_command_lists_and_runs(scored, rldbg_here):
    def command(*arguments):
        done = rldbg_here("zoo", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    listed = command("list", "--json")["bugs"]
    assert [item["name"] for item in listed] == [item.name for item in BUGS]
    found = command("run", "entropy-sign-flipped", "--folder", str(scored[0]), "--json")
    assert found["changed"] and found["compare"]["first_difference"]["stage"] == "loss"
    assert found["compare"]["explanations"][0]["id"] == "entropy-coefficient"
    assert found["compare"]["explanations"][0]["parameters"] == pytest.approx({"a": 0.01, "b": -0.01}, rel=1e-3)


@pytest.mark.soak
def test_the_whole_zoo(tmp_path):
    report = judged(tmp_path, BUGS, PAIRS)
    totals = report.totals()["all"]
    assert totals.changed == totals.found == totals.stage_right == totals.bugs
    assert totals.cause_right >= 0.9 * totals.bugs
    assert report.false_alarms == ()


def test_another_cut_on_other_kernels_is_no_difference_and_a_bug_in_it_is_found(tmp_path):
    kernel = {"ATEN_CPU_CAPABILITY": "default", "CUDA_VISIBLE_DEVICES": ""}
    chosen = [
        Cell("clean", Reference(0), kernel, ("policy.ranks=1",)),
        Cell("coarse", Reference(0, (), "bfloat16-compute"), kernel, ("policy.micro_batch_size=3",)),
        Cell("packed", Reference(0), kernel, variation="packed"),
        Cell("bug", Reference(0), kernel, ("policy.micro_batch_size=3",), "clip-high"),
    ]
    done = score_matrix(chosen, RECIPE, tmp_path, processes=2)
    *clean, spoiled = done.rows
    assert all(row.right and not row.wrongly_named for row in clean), clean
    assert spoiled.right and spoiled.named and not spoiled.wrongly_named, spoiled
    # What is judged is not run again, and nothing begins when time is up.
    again = []
    more = [*chosen, Cell("other", Reference(1), kernel, ("policy.ranks=1",))]
    rest = score_matrix(more, RECIPE, tmp_path, processes=2, minutes=1e-9, on_row=again.append)
    assert rest.rows == done.rows and rest.left == 1 and not again


def test_a_run_that_fails_is_a_row_and_a_bug_without_effect_is_called_that(tmp_path):
    kernel = {"CUDA_VISIBLE_DEVICES": ""}
    quick = ("warm_start.max_steps=1", "steps=1", "model.tiny.layers=1")
    chosen = [
        Cell("broken", Reference(0, quick), kernel, ("policy.ranks=5",)),
        Cell("whole", Reference(0, quick), kernel, ("policy.ranks=1",)),
        # With one micro-batch per rank the last one is all there is.
        Cell("inert", Reference(0, quick), kernel, ("policy.micro_batch_size=8",), "only-the-last-micro-batch-counts"),
    ]
    score = score_matrix(chosen, RECIPE, tmp_path, processes=1)
    assert score.rows[0].verdict == "failed" and score.rows[1].right
    assert score.rows[2].hidden == "no effect" and score.rows[2] not in score.wrong
    assert "policy.ranks=5" in score.rows[0].error and score.totals()["failed"] == 1
    lines = list(matrix_to_lines(score, kept=True))
    assert any("policy.ranks=5" in line for line in lines) and "clean pairs 1, false alarms 0" in lines[-2]
