"""A batch of trajectories as one .pt file: a dictionary of padded tensors, and nothing but tensors.

`torch.load(weights_only=True)` gives the dictionary. `group_ids` and `run_ids` are numbers, one per row; the names
of the groups lie beside the tensors in the archive (`archive/rldbg.json`), where torch does not look.
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rldbg.core import SampleId
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.mapped_file import file_bytes
from rldbg.recording.formats.pt_writer import dump_pt
from rldbg.recording.formats.zip_archive import ZipArchive

GROUP_IDS, RUN_IDS = "group_ids", "run_ids"
_NAMES = "archive/rldbg.json"
_MOST_NAME_BYTES = 1 << 28


def write_batch(file: Path, tensors: Mapping[str, np.ndarray], samples: Sequence[SampleId]) -> None:
    """Writes the file under a temporary name and renames it: a file of this name is whole."""
    groups = list(dict.fromkeys(sample.group_id for sample in samples))
    numbers = {group: number for number, group in enumerate(groups)}
    content = dict(tensors) | {
        GROUP_IDS: np.array([numbers[sample.group_id] for sample in samples], np.int64),
        RUN_IDS: np.array([sample.run_id for sample in samples], np.int64),
    }
    temporary = file.with_name(f".{file.name}.tmp")
    dump_pt(content, temporary)
    with zipfile.ZipFile(temporary, "a") as archive:
        archive.writestr(_NAMES, json.dumps({"schema_version": 1, "groups": groups}))
    temporary.replace(file)


def group_names(file: Path) -> list[str]:
    """The names of a batch's groups by number; empty for a file that was not written by `write_batch`."""
    archive = ZipArchive(file_bytes(file))
    member = archive.members.get(_NAMES)
    if member is None:
        return []
    if member.size > _MOST_NAME_BYTES or not archive.check(_NAMES):
        raise Malformed("the names of its groups are damaged", "make the batch again")
    try:
        return [str(name) for name in json.loads(bytes(archive.read(_NAMES)))["groups"]]
    except (ValueError, TypeError, LookupError) as error:
        raise Malformed(f"the names of its groups are damaged: {error}", "make the batch again") from error
