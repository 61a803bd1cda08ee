"""What a trainer sends and what an engine holds: fingerprints of tensors, name rules, and how a tensor is wrong."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.weights.adapters import LiveBases, LoraAdapter, is_adapter, read_adapter
    from rldbg.weights.faults import WeightFault, faults_by_replica, faults_of, grouped_faults
    from rldbg.weights.fingerprint import Fingerprint, FingerprintStream, fingerprints, fingerprints_of_pieces
    from rldbg.weights.naming import RULES, MappedName, NamingRule, map_names, unfused
    from rldbg.weights.places import Box
    from rldbg.weights.snapshots import (
        BaseWeight,
        WeightSnapshot,
        snapshot_fields,
        snapshots_of,
        tensor_names,
        value_fields,
    )

__getattr__, __dir__ = lazy_names(__name__)
