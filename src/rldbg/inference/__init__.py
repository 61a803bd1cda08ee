"""Inference: a sampler in this process; servers that outlive the shell, with their protocols and backends; their
registry.

The sampler serves the embedded trainer: batches in the order it is given them, random numbers keyed by sample and
position. Servers batch in the order of arrival.
"""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.inference.allocation import (
        Allocation,
        ArealConfiguration,
        parse_allocation,
        read_areal_configuration,
    )
    from rldbg.inference.batch_sampler import Generation, GenerationRequest, Sampler
    from rldbg.inference.deployment import (
        PROXY_HEALTH,
        Listening,
        devices_of,
        model_path,
        replica_command,
        replica_count,
        require,
    )
    from rldbg.inference.engine_commands import EngineCommand, announce_engine
    from rldbg.inference.http_sampling import HttpSampling
    from rldbg.inference.json_body import BodyError, parse_object
    from rldbg.inference.keyed_random import sample_key, uniform
    from rldbg.inference.registry import Registry, Server
    from rldbg.inference.replica_process import ServerProcess
    from rldbg.inference.scoring import score_embedded, score_over_http
    from rldbg.inference.server import run_server

__getattr__, __dir__ = lazy_names(__name__)
