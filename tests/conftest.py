"""The order of the tests, and the line at the end that says what was skipped for want of third-party material."""

import random
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from third_party import MISSING

# How fast a machine is says nothing about the code under test.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

# Real clusters of several nodes, third-party clients, benchmarks: `make test-long`. Both lists begin with the longest,
# so that no test process is left alone with one at the end.
LONG = (
    "test_benchmarks",
    "test_demo",
    "test_doctor_real_failures",
    "test_waits_ray",
    "test_live_external_ray",
    "test_live_ray",
    "test_zoo",
    "test_training_service_clients",
    "test_serve_replay",
    "test_profile_nsys",
    "test_train_command",
    "test_train_remote_api",
    "test_profile_ray",
    "test_serve_clients",
    "test_run_end_to_end",
    "test_compare_on_ray",
    "test_waits_ranks",
    "test_profile_remote_collection",
    "test_rollout_command",
    "test_tunnel_slurm",
    "test_public_api",
    "test_standalone_loops",
    "test_rerun_loss_ranks",
    "test_run_ray",
    "test_serve_load",
    "test_ui_layouts",
)
FIRST = (
    "test_train_cluster",
    "test_waits",
    "test_serve_processes",
    "test_live_processes",
)
# Whole trainings, engines and searches among the unit tests: in `make test`, not in `make check`.
THOROUGH = (
    "test_doctor_survival",
    "test_doctor_attempts",
    "test_doctor_mixed",
    "test_noise",
    "test_hypotheses",
    "test_structure",
    "test_train_in_process",
    "test_mismatch_probe",
    "test_near_misses",
    "test_drawn_loops",
    "test_probe_changes",
    "test_input_shapes",
    "test_embedded_engine",
    "test_train_rerun",
    "test_route_fields",
    "test_rerun_loss",
    "test_conversations",
    "test_rollout_replay",
    "test_rollout_workflows",
    "test_doctor_knowledge",
    "test_service_http",
    "test_bisect",
    "test_routing",
    "test_tiny_model",
    "test_mutated_files",
)
# Files whose tests run in one test process, because they share what takes long to start; others are one group each.
TOGETHER = {"test_live_external_ray": "ray_cluster", "test_live_ray": "ray_cluster"}


def pytest_addoption(parser):
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="run the files, and the tests of each file, in an order drawn from SEED",
    )


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path.stem in LONG:
            item.add_marker(pytest.mark.long)
        if item.path.stem in THOROUGH:
            item.add_marker(pytest.mark.thorough)
    seed = config.getoption("--shuffle")
    if seed is None:
        rank = {name: number for number, name in enumerate((*LONG, *FIRST, *THOROUGH))}
        items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))
        return
    draw = random.Random(seed)
    files = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    draw.shuffle(files)
    for file in files:
        draw.shuffle(file)
    items[:] = [item for file in files for item in file]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Each file in one test process, which then makes its fixtures once.

    `--dist loadgroup` of pytest-xdist 3.8 sees no groups under pytest 9.2, and spreads every file without a word.
    """
    from xdist.scheduler import LoadScopeScheduling

    class OneProcessPerFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return TOGETHER.get(Path(file).stem, file)

    return OneProcessPerFile(config, log)


def pytest_unconfigure(config):
    """After everything else: pytest's own summaries come later than `pytest_terminal_summary`."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        missing = sum(MISSING in str(report.longrepr) for report in reporter.stats.get("skipped", ()))
        reporter.write_line(f"{missing} tests skipped because {MISSING} (see tests/third_party.py)")
