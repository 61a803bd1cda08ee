"""Reads back what `rldbg track` logged, by the trackers' own libraries: tracker -> step -> name -> number."""

import json
import sqlite3
import struct
import sys
from collections import defaultdict
from pathlib import Path

BLOCK = 32768


def wandb_numbers(file: Path) -> dict[int, dict[str, float]]:
    """An offline run is a file of W&B's own messages, in the framing of LevelDB's logs behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, place, message = file.read_bytes(), 7, b""
    found: dict[int, dict[str, float]] = {}
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        _crc, length, kind = struct.unpack_from("<IHB", data, place)
        message = (
            data[place + 7 : place + 7 + length] if kind in (1, 2) else message + data[place + 7 : place + 7 + length]
        )
        place += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record.FromString(message)
            if record.WhichOneof("record_type") == "history":
                items = {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
                }
                found[record.history.step.num] = {name: value for name, value in items.items() if name[0] != "_"}
    return found


def mlflow_numbers(project: str) -> dict[int, dict[str, float]]:
    from mlflow import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name(project).experiment_id])
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            found[metric.step][name] = metric.value
    return found


def trackio_numbers(file: Path) -> dict[int, dict[str, float]]:
    with sqlite3.connect(file) as database:
        rows = database.execute("select step, metrics from metrics").fetchall()
    return {step: json.loads(text) for step, text in rows}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (offline,) = (folder / "run" / "wandb").glob("offline-run-*/*.wandb")
    numbers = {
        "wandb": wandb_numbers(offline),
        "mlflow": mlflow_numbers("rldbg"),
        "trackio": trackio_numbers(folder / "trackio" / "rldbg.db"),
    }
    print(json.dumps(numbers))
