"""Settings of a replica process; `rldbg serve up` has flags of the same names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rldbg.core import setting


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One replica: what it serves, and where."""

    name: str
    """Name of the model for clients."""
    announce: Path
    """File that will say where it listens."""
    backend: Literal["transformers", "recording", "proxy"] = "transformers"
    """Backend."""
    model: Path | None = None
    """Folder of a Hugging Face causal model."""
    recording: Path | None = None
    """recording: what is served; proxy: where requests are recorded."""
    upstream: str = ""
    """proxy: engine to forward to, http://HOST:PORT."""
    nearest: bool = False
    """recording: answer an unknown prompt as the nearest one."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = setting(0, at_least=0, at_most=65535)
    """Port; 0 chooses a free one."""
    token_file: Path | None = None
    """File with the token that clients must send."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the weights."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the model."""
    threads: int = setting(0, at_least=0)
    """CPU threads; 0 leaves the choice to torch."""
    max_running: int = setting(256, at_least=1, at_most=4096)
    """Maximum number of sequences in a batch."""
    logprobs: Literal["temperature", "raw", "sampled"] = "temperature"
    """Log probs to report: after temperature, raw, or of the distribution sampled from."""
