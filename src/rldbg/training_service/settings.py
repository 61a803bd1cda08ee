"""Settings of a training service process; `rldbg serve up --backend train` has flags of the same names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rldbg.core import setting


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """One service: its model and its folders."""

    model: str
    """tiny, or the folder of a Hugging Face causal model."""
    folder: Path
    """Where snapshots are kept."""
    announce: Path
    """File that will say where it listens."""
    port: int = setting(0, at_least=0, at_most=65535)
    """Port; 0 chooses a free one."""
    alias: tuple[str, ...] = ()
    """Another name of the model for clients; may be repeated."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the model."""
    threads: int = setting(0, at_least=0)
    """CPU threads; 0 uses all cores, or one with --deterministic."""
    deterministic: bool = False
    """Give equal requests bit-equal results."""
