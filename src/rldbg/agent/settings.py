"""What the environment tells the agent. Read once, when the agent starts; `rldbg run` sets all of it.

The agent cannot use `rldbg.core.environment` (it must work where rldbg is not installed), so its variables are read
here and only here; `rldbg.core.environment.VARIABLES` lists them for the documentation.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

BROKER_WAIT_S = 60.0
"""For how long a stop waits for the next broker when its own was killed; `rldbg run` starts one within two seconds."""


@dataclass(frozen=True)
class Settings:
    """The run this process belongs to, and what was asked for."""

    run: Path
    role: str = ""
    coordinates: str = ""
    post_mortem_wait_s: float = 0.0
    ray_breakpoints: bool = False
    redact: bool = True
    collective_timeout_s: float = 0.0
    debugpy: str = ""
    pass_exceptions: tuple[str, ...] = ()
    broker_wait_s: float = BROKER_WAIT_S

    @classmethod
    def from_environment(cls, values: Mapping[str, str] = os.environ) -> "Settings | None":
        """None when this process belongs to no run."""
        run = values.get("RLDBG_RUN", "")
        if not run:
            return None
        return cls(
            run=Path(run),
            role=values.get("RLDBG_ROLE", ""),
            coordinates=values.get("RLDBG_COORDINATES", ""),
            post_mortem_wait_s=_seconds(values, "RLDBG_POST_MORTEM"),
            ray_breakpoints=values.get("RLDBG_RAY_BREAKPOINTS", "") == "1",
            redact=values.get("RLDBG_REDACT", "1") != "0",
            collective_timeout_s=_seconds(values, "RLDBG_COLLECTIVE_TIMEOUT_S"),
            debugpy=values.get("RLDBG_DEBUGPY", ""),
            pass_exceptions=tuple(name for name in values.get("RLDBG_PASS_EXCEPTIONS", "").split(",") if name),
            broker_wait_s=_seconds(values, "RLDBG_BROKER_WAIT_S", BROKER_WAIT_S),
        )


@dataclass(frozen=True)
class BrokerAddress:
    """Where the run's broker is, from RUN/broker.json: readable by its owner only, because it holds the token."""

    host: str
    port: int
    token: str
    node: str = ""
    owner_pid: int = 0
    # Further addresses of the same broker, for hosts on other networks.
    also: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        return (self.host, *self.also)

    @property
    def place(self) -> str:
        """Host and port as one, as URLs write them; all of them where there are several."""
        return " and ".join(f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}" for host in self.hosts)

    def from_here(self, host: str) -> "BrokerAddress":
        """The same with `host` first, if it is one of them: it was reached before."""
        if host not in self.also:
            return self
        return replace(self, host=host, also=tuple(each for each in self.hosts if each != host))

    def is_out_of_reach(self, node: str) -> bool:
        """Whether only processes of another host can connect: the broker does not know yet that it is needed here."""
        return (self.host.startswith("127.") or self.host == "::1") and self.node not in ("", node)

    @classmethod
    def read(cls, run: Path) -> "BrokerAddress | None":
        """None when the run has no broker (yet, or any more)."""
        try:
            data = json.loads((run / "broker.json").read_text(encoding="utf-8"))
            node = str(data.get("node") or "")
            owner_pid = int(data.get("owner_pid") or 0)
            hosts = [str(each) for each in data.get("hosts") or []]
            # A copy of the file for a tunnel names another host, and no further ones.
            also = tuple(hosts[1:]) if hosts[:1] == [str(data["host"])] else ()
            return cls(str(data["host"]), int(data["port"]), str(data["token"]), node, owner_pid, also)
        except (OSError, ValueError, KeyError, TypeError):
            return None


def has_breakpoints(run: Path) -> bool:
    """Whether the run's broker keeps any; a process that starts then has something to wait for."""
    try:
        return bool(json.loads((run / "breakpoints.json").read_text(encoding="utf-8"))["breakpoints"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _seconds(values: Mapping[str, str], name: str, default: float = 0.0) -> float:
    text = values.get(name, "").strip()
    try:
        return float(text) if text else default
    except ValueError:
        # A typo in a variable must not keep a training job from starting: use the default.
        say(f"{name}={text!r} is not a number of seconds and is ignored")
        return default


def say(text: str) -> None:
    """One line on the process's own stderr, the only place an agent may talk to the user without a broker."""
    try:
        sys.stderr.write(f"rldbg: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        # stderr may be closed or replaced; there is no other place to report it.
        pass
