"""Recordings behind URLs: a real S3-compatible server, a real HTTP server, and fsspec's memory."""

import functools
import http.server
import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import boto3
import botocore.exceptions
import fsspec
import numpy as np
import pytest
from free_networks import free_port

import rldbg
from rldbg.core import Environment, Identity, IncompleteDataError, PrerequisiteError, UnreachableError
from rldbg.recording import RecordKey
from rldbg.recording.remote import RemoteTree


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A small recording on disk, made by a real Recorder."""
    root = tmp_path_factory.mktemp("recorded") / "recording"
    recorder = rldbg.Recorder(root, identity=Identity(rank=0))
    for step in range(2):
        samples = [("g0", 0), ("g0", 1)]
        recorder.record(
            "forward_data", step=step, micro=0, samples=samples, log_probs=np.full((2, 3), -0.5, np.float32)
        )
        recorder.record("loss", step=step, micro=0, samples=samples, loss=0.25)
    assert recorder.close()
    return root


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("RLDBG_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def s3(recorded):
    """A moto server in its own process, with the recording in a bucket."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    credentials = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=address, **credentials)
    try:
        _wait_until(lambda: client.create_bucket(Bucket="runs"), server)
        for file in recorded.rglob("*"):
            if file.is_file():
                client.upload_file(str(file), "runs", f"today/{file.relative_to(recorded).as_posix()}")
        yield address, client
    finally:
        server.terminate()
        server.wait(timeout=20)


def _wait_until(attempt, server, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return attempt()
        except botocore.exceptions.BotoCoreError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            threading.Event().wait(0.1)


@pytest.fixture
def s3_environment(s3, monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3[0],
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    return s3


def test_s3_lists_without_fetching_data_and_reads_file_by_file(s3_environment, cache, recorded):
    recording = rldbg.open("s3://runs/today")
    assert recording.layout.name == "rldbg"
    assert recording.keys() == rldbg.open(recorded).keys()
    assert _cached(cache) == {".jsonl"}, "the journal tells what there is"
    record = recording.read(RecordKey("forward_data", 1))
    assert record.array("log_probs").tolist() == [[-0.5] * 3] * 2
    assert len(list(cache.rglob("*.safetensors"))) == 1
    assert recording.verify() == []
    assert recording.summary().to_dict() == rldbg.open(recorded).summary().to_dict()


def test_s3_file_that_changed_is_fetched_again(s3_environment, cache, recorded):
    _, client = s3_environment
    name = "forward_data/step_000000_rank0.safetensors"
    original = (recorded / name).read_bytes()
    first = rldbg.open("s3://runs/today")
    first.read(RecordKey("forward_data", 0))
    client.put_object(Bucket="runs", Key=f"today/{name}", Body=original[:-4])
    fsspec.filesystem("s3").invalidate_cache()
    try:
        found = rldbg.open("s3://runs/today").verify()
        assert [(finding.id, finding.where) for finding in found] == [("truncated-file", f"s3://runs/today/{name}")]
    finally:
        client.put_object(Bucket="runs", Key=f"today/{name}", Body=original)
        fsspec.filesystem("s3").invalidate_cache()


def test_s3_nothing_there_and_nobody_there(s3_environment, cache, monkeypatch):
    with pytest.raises(IncompleteDataError):
        rldbg.open("s3://runs/tomorrow")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(UnreachableError):
        rldbg.open("s3://other/today")
    fsspec.filesystem("s3").clear_instance_cache()


@contextmanager
def _served(handler):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(timeout=20)


@pytest.fixture
def web(recorded):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(recorded.parent))
    handler.log_message = lambda *_: None
    with _served(handler) as url:
        yield url


def test_http_folder_and_single_file(web, cache, recorded):
    recording = rldbg.open(f"{web}/recording/")
    assert recording.keys() == rldbg.open(recorded).keys()
    assert recording.verify() == []
    assert recording.summary().to_dict()["kinds"] == rldbg.open(recorded).summary().to_dict()["kinds"]
    single = rldbg.open(f"{web}/recording/forward_data/step_000001_rank0.safetensors")
    assert single.keys() == (RecordKey("forward_data", 1),)
    assert single.read(single.keys()[0]).samples[1].run_id == 1


def test_http_without_an_answer(cache):
    with pytest.raises(UnreachableError) as error:
        rldbg.open(f"http://127.0.0.1:{free_port()}/x")
    assert error.value.exit_code == 5


class _Unruly(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; the first part of the path says what goes wrong with its files."""

    def do_HEAD(self):
        self._answer(is_head=True)

    def do_GET(self):
        self._answer(is_head=False)

    def _answer(self, is_head: bool) -> None:
        fault, _, rest = self.path.strip("/").partition("/")
        place = Path(self.directory) / rest
        if fault.startswith("all-") or (fault.isdecimal() and not place.is_dir()):
            self.send_error(int(fault.removeprefix("all-")))
            return
        if place.is_dir():
            names = [f"{item.name}/" if item.is_dir() else item.name for item in place.iterdir()]
            links = "".join(f'<a href="{name}">x</a>' for name in [*names, "../", "?C=N", "gone.pt", "//other/y.pt"])
            self._send(links.encode(), is_head=is_head)
        elif place.is_file():
            data = place.read_bytes()
            self._send(data[: len(data) // 2] if fault == "short" and not is_head else data, is_head=is_head)
        else:
            self.send_error(404)

    def _send(self, data: bytes, *, is_head: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(b"" if is_head else data)

    def log_message(self, *_):
        pass


@pytest.fixture
def unruly(recorded):
    with _served(functools.partial(_Unruly, directory=recorded)) as url:
        yield url


def test_http_refusal_asks_for_credentials(unruly, cache):
    for status in (401, 403):
        with pytest.raises(PrerequisiteError, match=str(status)) as error:
            rldbg.open(f"{unruly}/all-{status}")
        assert "credentials" in error.value.hint
    with pytest.raises(IncompleteDataError, match="not found"):
        rldbg.open(f"{unruly}/all-404")


def test_http_links_that_lead_nowhere_are_no_harm(unruly, cache, recorded):
    assert rldbg.open(f"{unruly}/fine").keys() == rldbg.open(recorded).keys()


@pytest.mark.parametrize(("fault", "evidence"), [("short", "bytes arrived"), ("500", "500"), ("403", "no permission")])
def test_http_files_that_do_not_arrive_are_findings(unruly, cache, fault, evidence):
    recording = rldbg.open(f"{unruly}/{fault}", "rldbg")
    unreadable = [finding for finding in recording.verify() if finding.id in ("unreadable-file", "corrupt-file")]
    assert unreadable
    assert all(evidence in " ".join(finding.evidence) for finding in unreadable)
    assert not _cached(cache)


def test_command_line_takes_urls(web, cache):
    command = [sys.executable, "-c", "from rldbg.cli import main; main()", "show", f"{web}/recording", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["kinds"]["loss"]["records"] == 2


def test_memory_and_secrets_in_urls(cache):
    memory = fsspec.filesystem("memory")
    memory.pipe("/dumps/verl/3.jsonl", b'{"input": "a", "output": "b", "score": 1.0}\n')
    try:
        assert rldbg.open("memory://dumps/verl").steps() == (3,)
    finally:
        memory.rm("/dumps", recursive=True)
    assert "hunter2" not in RemoteTree("memory://user:hunter2@host/x", Environment({"RLDBG_CACHE": str(cache)})).title


def test_an_unknown_protocol_and_a_missing_package(cache):
    with pytest.raises(IncompleteDataError, match="Protocol not known"):
        rldbg.open("gopher://x/y")
    with pytest.raises(PrerequisiteError) as error:
        rldbg.open("gs://bucket/x")
    assert "pip install" in error.value.hint


def _cached(folder):
    return {path.suffix for path in folder.rglob("*") if path.is_file()}
