"""Sessions of Ray's legacy debugger (RAY_DEBUG=legacy), which only the cluster's key-value store knows.

Reading that store needs Ray itself, so it is done by a child process that imports Ray, prints JSON and ends:
`python -m rldbg.live.external_ray.legacy_listing GCS_ADDRESS`.
"""

import asyncio
import importlib
import json
import sys
from dataclasses import dataclass

from rldbg.core import Environment

_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class LegacySession:
    """One pdb that waits on a socket: where it stopped and where it listens."""

    key: str
    host: str
    port: int
    file: str
    line: int
    title: str
    worker_id: str
    pid: int = 0


async def legacy_sessions(gcs_address: str, token: str) -> list[LegacySession]:
    """Asks the cluster; empty when Ray is not installed here or the store does not answer."""
    environment = Environment().everything()
    if token:
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rldbg.live.external_ray.legacy_listing",
        gcs_address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            text, _ = await child.communicate()
        return [LegacySession(**row) for row in json.loads(text)]
    except (TimeoutError, ValueError, TypeError):
        return []
    finally:
        if child.returncode is None:
            child.kill()


def main() -> None:
    client = importlib.import_module("ray._raylet").GcsClient(address=sys.argv[1])
    rows = []
    for key in client.internal_kv_keys(b"RAY_PDB_", b"ray_pdb", timeout=10):
        value = client.internal_kv_get(key, b"ray_pdb", timeout=10)
        if value is None:
            continue
        data = json.loads(value)
        host, _, port = str(data["pdb_address"]).rpartition(":")
        rows.append(
            {
                "key": key.decode(),
                "host": host.strip("[]"),
                "port": int(port),
                "file": str(data.get("filename", "")),
                "line": int(data.get("lineno") or 0),
                "title": str(data.get("proctitle", "")),
                "worker_id": str(data.get("worker_id", "")),
            }
        )
    sys.stdout.write(json.dumps(rows))


if __name__ == "__main__":
    main()
