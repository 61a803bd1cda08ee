"""The order of the files: long ones first, so that at the end no worker is left alone with one of them."""

from pathlib import Path

# Each takes more than half a minute on two cores; the longest first.
LONG = (
    "test_demo",
    "test_train_cluster",
    "test_zoo",
    "test_serve_replay",
    "test_doctor_real_failures",
    "test_live_processes",
    "test_train_command",
    "test_training_service_clients",
    "test_serve_processes",
    "test_profile_nsys",
    "test_profile_far_nodes",
    "test_live_ray",
    "test_rollout_command",
    "test_train_remote_api",
    "test_serve_clients",
    "test_rerun_loss_ranks",
)


def pytest_collection_modifyitems(items):
    rank = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(Path(item.path).stem, len(LONG)))
