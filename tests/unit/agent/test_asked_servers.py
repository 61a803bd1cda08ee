"""The address of a server that a loop asks again and again."""

import ast
import sys

import pytest

from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.others.looked_for import asked_address
from rldbg.agent.waits.reading.objects import OwnFrame

LOOPS = {
    'urlopen("http://127.0.0.1:8000/health", timeout=5)': "127.0.0.1:8000",
    "urlopen(url)": "localhost:30000",
    'get(f"{url}/health_generate", timeout=5)': "localhost:30000",
    'get(url + "/health")': "localhost:30000",
    'get(f"http://{host}:{port}/metrics")': "10.0.0.7:6006",
    "connect((host, port))": "10.0.0.7:6006",
    "stub(address)": "node-3:50051",
    # Nothing of these is an address, or there are several.
    'log("step 3:17 done")': "",
    'get("/health")': "",
    "get(url); get(address)": "",
    "get(unknown)": "",
}


@pytest.mark.parametrize("asks", LOOPS)
def test_the_address_is_read_from_what_a_loop_asks(tmp_path, asks):
    seen = []

    def wait():
        seen.append(asked_address(OwnFrame(sys._getframe(1)), Sources(0)))
        raise StopIteration

    names = {name: lambda *_, **__: None for name in ("urlopen", "get", "connect", "stub", "log")}
    known = {"url": "http://localhost:30000", "host": "10.0.0.7", "port": 6006, "address": "node-3:50051"}
    file = tmp_path / "client.py"
    file.write_text(f"def main():\n    while True:\n        {asks}\n        wait()\n")
    scope = {**names, **known, "unknown": object(), "wait": wait}
    exec(compile(ast.parse(file.read_text()), str(file), "exec"), scope)
    with pytest.raises(StopIteration):
        scope["main"]()
    assert seen == [LOOPS[asks]]
