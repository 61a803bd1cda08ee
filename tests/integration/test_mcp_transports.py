"""`rldbg mcp` as agents start it: the SDK's client over standard input and output and over HTTP, on a stopped job."""

import asyncio
import json
import subprocess
import sys

import pytest
from live_job import LOOP, LiveJob, close_pipes, until

PATIENCE_S = 60


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Two ranks, stopped at a breakpoint."""
    with LiveJob(tmp_path_factory.mktemp("job")) as job:
        for rank in range(2):
            job.write(f"break_{rank}", "")
        job.ranks(job.write("loop.py", LOOP), 2)
        job.wait_stopped(2)
        yield job


async def _conversation(client):
    names = {tool.name for tool in (await client.list_tools()).tools}
    answers = {}
    for name, arguments in (
        ("list", {"run": "run"}),
        ("evaluate", {"run": "run", "expression": "total >= 0"}),
        ("evaluate", {"run": "run", "expression": "os.getpid()"}),
        ("hang", {"run": "run"}),
    ):
        answer = await client.call_tool(name, arguments)
        answers.setdefault(name, []).append((answer.is_error, answer.content[0].text))
    return names, answers


def _judge(names, answers):
    assert "evaluate" in names and "continue" not in names
    [(failed, listed)] = answers["list"]
    assert not failed and listed.count("stopped") >= 2
    (failed, value), (refused, reason) = answers["evaluate"]
    assert not failed and "True" in value and "citations:" in value
    assert refused and "--allow-control" in reason
    [(failed, said)] = answers["hang"]
    assert not failed and "loop.py" in said


def test_over_standard_input_and_output(job):
    from mcp import Client, StdioServerParameters, stdio_client

    async def talk():
        command = StdioServerParameters(command=sys.executable, args=["-m", "rldbg", "mcp", str(job.folder)])
        async with Client(stdio_client(command)) as client:
            return await _conversation(client)

    _judge(*asyncio.run(talk()))


def test_over_http_with_the_printed_token(job):
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    server = subprocess.Popen(
        [sys.executable, "-m", "rldbg", "mcp", str(job.folder), "--http", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        printed = json.loads(server.stdout.readline())
        assert printed["url"].startswith("http://127.0.0.1:")
        assert httpx2.post(printed["url"], json={}, timeout=PATIENCE_S).status_code == 401

        async def talk():
            headers = {"Authorization": f"Bearer {printed['token']}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=PATIENCE_S) as http,
                Client(streamable_http_client(printed["url"], http_client=http)) as client,
            ):
                return await _conversation(client)

        _judge(*asyncio.run(talk()))
    finally:
        server.terminate()
        server.wait(PATIENCE_S)
        close_pipes(server)


def test_with_leave_to_control_an_agent_evaluates_calls_and_resumes(job):
    """The last test of this file: the ranks run afterwards."""
    from mcp import Client

    from rldbg.mcp import Workspace, build_server

    async def talk():
        async with Client(build_server(Workspace((str(job.folder),), allow_control=True))) as client:
            called = await client.call_tool("evaluate", {"run": "run", "expression": "len(str(total))"})
            where = await client.call_tool("command", {"run": "run", "text": "where", "who": "0"})
            resumed = await client.call_tool("continue", {"run": "run"})
        return [(answer.is_error, answer.content[0].text) for answer in (called, where, resumed)]

    (bad_call, _), (bad_where, stack), (bad_resume, said) = asyncio.run(talk())
    assert not (bad_call or bad_where or bad_resume), (stack, said)
    assert "loop.py" in stack and said.count("resumed") == 2
    until(lambda: not job.stopped(), "the ranks run")
