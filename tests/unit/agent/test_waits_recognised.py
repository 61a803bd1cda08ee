"""Waits that are recognised by the objects on the stack: in threads of this process, and on recorded frames."""

import asyncio
import contextlib
import fcntl
import os
import select
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from rldbg.agent.waits.calls.blocking import wait_of
from rldbg.agent.waits.calls.client_calls import pool_wait
from rldbg.agent.waits.calls.library_calls import library_wait
from rldbg.agent.waits.calls.looking import Looking, lock_key
from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.processes.connected import connected_processes, is_listened, listening_at
from rldbg.agent.waits.processes.ended import ended_threads
from rldbg.agent.waits.processes.open_files import file_facts, listener
from rldbg.agent.waits.reading.file_locks import file_lock_holders
from rldbg.agent.waits.reading.kernel import all_processes
from rldbg.agent.waits.reading.objects import OwnObject, path_text
from rldbg.agent.waits.reading.process_views import OwnProcess
from rldbg.agent.waits.reading.unix_sockets import unix_peer
from rldbg.agent.waits.snapshot import snapshot
from rldbg.live.diagnosis.graph.wait_words import thing


class Store:
    """As torch.distributed's: its methods wait in C."""

    def __init__(self):
        self.answers = SimpleQueue()
        # Any argument that is true means that it waits.
        self.get = self.answers.get
        self.set = lambda key, value: None


@dataclass
class Environment:
    seconds: float
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def play(self):
        self.begun.set()
        while not self.over.is_set():
            time.sleep(self.seconds)


def _back_off():
    time.sleep(0.125)


def _ask_again(over):
    while not over.is_set():
        _back_off()


def _call_tools(over):
    for _ in iter(over.is_set, True):
        _back_off()


def _play(over):
    """The rounds are those of a caller, in an expression."""
    sum(_step() for _ in iter(over.is_set, True))


def _step():
    reward = 1
    _back_off()
    del reward
    return 1


def _wait_for(over):
    while not over.is_set():
        _step()


@pytest.mark.parametrize(
    ("work", "polls", "counted"),
    [
        (_ask_again, "until `over.is_set()`", False),
        (_call_tools, "", True),
        (_play, "", True),
        (_wait_for, "", False),
    ],
)
def test_a_function_that_only_sleeps_does_so_in_the_loop_of_its_caller(work, polls, counted):
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,))
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            wait = snapshot(OwnProcess(frozenset({thread.ident})))["threads"][0]["wait"]
            if wait["kind"] == "sleep":
                break
        assert wait["polls"].startswith(polls) and bool(wait["polls"]) == bool(polls) and wait["counted"] is counted
    finally:
        over.set()
        thread.join()


def test_the_seconds_of_a_sleep_are_known():
    environment = Environment(0.125)
    thread = threading.Thread(target=environment.play, name="environment")
    thread.start()
    environment.begun.wait()
    try:
        # Between two sleeps it is elsewhere.
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            (entry,) = snapshot(OwnProcess(frozenset({thread.ident})))["threads"]
            wait = entry["wait"]
            if wait["kind"] == "sleep":
                break
        assert wait["delay_s"] == 0.125
    finally:
        environment.over.set()
        thread.join()


def test_a_key_that_nobody_sets_is_named():
    version, store = 7, Store()

    def wait_for_weights(step):
        begun.set()
        store.get(f"weights/{step:02d}")

    def publish(step):
        store.set(f"weights/{step}", "ready")

    begun = threading.Event()
    thread = threading.Thread(target=wait_for_weights, args=(version,), name="weights")
    thread.start()
    begun.wait()
    try:
        while True:
            (entry,) = snapshot(OwnProcess(frozenset({thread.ident})))["threads"]
            if entry["wait"]["kind"] == "store":
                break
    finally:
        store.answers.put(None)
        thread.join()
    assert thing(entry["wait"]) == "a rank to set key `weights/07` of the torch.distributed store `store`"
    # AND how it is written, here and where others are set
    assert entry["wait"]["written"] == ["f'weights/{step:02d}'"]
    line = publish.__code__.co_firstlineno + 1
    assert entry["wait"]["set_as"] == {f"publish:{line}": "f'weights/{step}'"}


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_processes_at_the_other_ends_of_connections_are_found(family, tmp_path):
    listening = socket.socket(family)
    listening.bind(str(tmp_path / "s") if family == socket.AF_UNIX else ("127.0.0.1", 0))
    listening.listen()
    address = listening.getsockname()
    program = f"import socket\ns = socket.socket({int(family)})\ns.connect({address!r})\ninput()"
    with (
        listening,
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child,
        listening.accept()[0],
    ):
        everyone = all_processes()
        # Other tests may have left a connection to somebody.
        assert child.pid in connected_processes(os.getpid(), everyone, "python")
        assert connected_processes(child.pid, everyone, "python") == [os.getpid()]
        assert connected_processes(os.getpid(), everyone, "a library that nobody has loaded") == []
        child.communicate(b"\n")
    assert child.pid not in connected_processes(os.getpid(), all_processes(), "python")


class Socket(Store):
    """As pyzmq's: its `recv` waits in C."""

    def __init__(self):
        super().__init__()
        self.recv = self.answers.get


def test_a_message_that_is_waited_for_in_c_is_named():
    replies = Socket()

    def ask():
        begun.set()
        replies.recv()

    begun, thread = threading.Event(), threading.Thread(target=ask)
    thread.start()
    begun.wait()
    wait = _until_waits(thread.ident, "message")
    replies.answers.put(None)
    thread.join()
    assert thing(wait) == "a message on ZeroMQ socket `replies`"


def test_who_inherited_a_locked_file_holds_the_lock(tmp_path):
    path = tmp_path / "gpu0.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert file_lock_holders(os.getpid(), str(path)) == [os.getpid()]
        tool = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[file.fileno()])
    with tool:
        assert file_lock_holders(os.getpid(), str(path)) == [tool.pid]
        tool.communicate(b"")
    assert file_lock_holders(os.getpid(), str(path)) == []


@pytest.mark.parametrize("parts", [("shard_2", "model.safetensors"), ("/nowhere", "step_4")])
def test_paths_are_read_as_they_are_written(parts):
    assert path_text(OwnObject(Path(*parts))) == "/".join(parts)
    assert path_text(OwnObject("text")) == ""


def test_an_event_that_was_replaced_meanwhile_is_told():
    class Weights:
        def __init__(self):
            self.updated = threading.Event()

        def wait(self):
            self.updated.wait()

    weights = Weights()
    first, thread = weights.updated, threading.Thread(target=weights.wait)
    thread.start()
    assert not _until_waits(thread.ident, "event")["replaced"]
    weights.updated = threading.Event()
    wait = _until_waits(thread.ident, "event")
    first.set()
    thread.join()
    assert wait["replaced"] and wait["name"] == "self.updated"


def test_where_a_local_socket_listens_is_told(tmp_path):
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as other:
        server.bind(str(tmp_path / "engine.sock"))
        assert not file_facts(os.getpid(), server.fileno()).get("local")
        server.listen()
        other.connect(str(tmp_path / "engine.sock"))
        assert file_facts(os.getpid(), server.fileno())["local"] == str(tmp_path / "engine.sock")
        assert not file_facts(os.getpid(), other.fileno()).get("local")


def test_a_function_that_is_handed_to_others_is_not_run_by_who_defines_it():
    ready = threading.Event()

    def starts():
        def sets():
            go_on.wait()
            ready.set()

        helper = threading.Thread(target=sets, name="helper")
        helper.start()
        begun.set()
        helper.join()

    def calls():
        def sets():
            ready.set()

        begun.set()
        go_on.wait()
        sets()

    begun, go_on = threading.Event(), threading.Event()
    for acting, expected in ((starts, {"helper"}), (calls, {"outer"})):
        begun.clear()
        go_on.clear()
        ready.clear()
        waiter = threading.Thread(target=lambda: ready.wait(), name="waiter")
        outer = threading.Thread(target=acting, name="outer")
        for thread in (waiter, outer):
            thread.start()
        begun.wait()
        _until_waits(waiter.ident, "event")
        entries = snapshot(OwnProcess(frozenset(thread.ident for thread in threading.enumerate())))["threads"]
        go_on.set()
        waiter.join()
        outer.join()
        (users,) = (entry["wait"]["users"] for entry in entries if entry["thread"] == "waiter")
        assert {user["who"] for user in users if user["acts"]} == expected


def test_a_server_without_requests_is_idle_and_nobody_is_expected_to_end_it():
    async def serve():
        async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as server:
            began.append((asyncio.get_running_loop(), asyncio.current_task()))
            with contextlib.suppress(asyncio.CancelledError):
                await server.serve_forever()

    began: list[tuple[asyncio.AbstractEventLoop, asyncio.Task]] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    found = []
    while thread.is_alive() and not found:
        tasks = snapshot(OwnProcess(frozenset({thread.ident})))["tasks"]
        found = [task["wait"]["kind"] for task in tasks if task["frames"][0]["function"].endswith("serve_forever")]
    loop, task = began[0]
    loop.call_soon_threadsafe(task.cancel)
    thread.join()
    assert found == ["serving"]


def test_connections_that_a_list_or_an_object_keeps_are_known():
    class Session:
        def __init__(self, connection):
            self.connection = connection

    def serve(kept, session):
        begun.set()
        go_on.wait()

    begun, go_on = threading.Event(), threading.Event()
    one, other = socket.socketpair()
    with one, other:
        thread = threading.Thread(target=serve, args=([one], Session(other)))
        thread.start()
        begun.wait()
        (entry,) = snapshot(OwnProcess(frozenset({thread.ident})))["threads"]
        expected = sorted([one.fileno(), other.fileno()])
        go_on.set()
        thread.join()
    assert entry["connections"] == expected


def test_what_a_thread_would_set_and_its_connection_are_known():
    def publish(store, version):
        begun.set()
        go_on.wait()
        store.set(f"ready/{version}", "1")
        store.set("weights/7", "1")

    one, other = socket.socketpair()

    def serve(connection):
        publish(Store(), 7)

    begun, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=serve, args=(one,))
    with one, other:
        thread.start()
        begun.wait()
        (entry,) = snapshot(OwnProcess(frozenset({thread.ident})))["threads"]
        expected = one.fileno()
        go_on.set()
        thread.join()
    assert entry["sets"] == ["ready/7", "weights/7"] and entry["connections"] == [expected]


def test_a_thread_has_ended_although_another_got_its_ident():
    first = threading.Thread(target=int, name="first")
    first.start()
    first.join()
    stop, others = threading.Event(), []
    while not others or (others[-1].ident != first.ident and len(others) < 50):
        others.append(threading.Thread(target=stop.wait, name="later"))
        others[-1].start()
    ended = [each["name"] for each in snapshot(OwnProcess(frozenset()))["ended"]]
    stop.set()
    for thread in others:
        thread.join()
    assert "first" in ended and "later" not in ended


@dataclass
class Recorded:
    """A frame as somebody saw it."""

    file: str
    function: str
    variables: dict
    line: int = 1
    locals: object = field(default=dict)

    def variable(self, name):
        return OwnObject(self.variables[name]) if name in self.variables else None


def _seen(*frames):
    looking = Looking([*frames, Recorded("/home/me/train.py", "main", {})], {}, Sources(os.getpid()), lambda _: "")
    return library_wait(frames, looking)


def test_repeated_requests_name_the_last_answer():
    history = (("POST", "/update_weights", None, 503, None), ("POST", "/update_weights", None, 429, None))
    retry = Recorded("/site-packages/urllib3/util/retry.py", "Retry.sleep", {"self": SimpleNamespace(history=history)})
    words = "in urllib3 that asks /update_weights again: 2 times so far, the last answer was status 429"
    assert _seen(retry) == {"kind": "sleep", "polls": words}
    outcome = SimpleNamespace(_exception=TimeoutError("no engine"))
    state = SimpleNamespace(attempt_number=4, outcome=outcome)
    tenacity = Recorded("/site-packages/tenacity/__init__.py", "Retrying.__call__", {"retry_state": state})
    words = "in tenacity that tries again: 4 times so far, the last time it raised TimeoutError: no engine"
    assert _seen(tenacity) == {"kind": "sleep", "polls": words}


@pytest.mark.parametrize("local", ["canonical", "lock_filename"])
def test_the_file_of_a_file_lock_is_found_in_any_version_of_the_package(local):
    frame = Recorded("/site-packages/filelock/_api.py", "BaseFileLock.acquire", {"self": object(), local: "/a.lock"})
    assert _seen(frame)["path"] == "/a.lock"


def test_the_other_end_of_a_local_socket_is_known_to_the_kernel():
    one, other = socket.socketpair()
    with one, other:
        inodes = [os.fstat(each.fileno()).st_ino for each in (one, other)]
        assert unix_peer(str(inodes[0])) == str(inodes[1])
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        assert unix_peer(str(os.fstat(listener.fileno()).st_ino)) == ""


def test_who_listens_at_an_address_is_known_to_the_kernel():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listener(os.getpid(), f"127.0.0.1:{server.getsockname()[1]}") == str(os.fstat(server.fileno()).st_ino)


@pytest.mark.parametrize(
    ("proxy", "method", "kind"),
    [("AutoProxy[Queue]", "get", "queue_get"), ("EventProxy", "wait", "event"), ("DictProxy", "get", "managed")],
)
def test_what_a_manager_holds_is_named_by_its_proxy(proxy, method, kind):
    held = type(proxy, (), {})()
    frame = Recorded("/lib/python3.11/multiprocessing/managers.py", "_callmethod", {"self": held, "methodname": method})
    assert _seen(frame)["kind"] == kind


def test_processes_that_share_a_lock_of_a_manager_agree_on_its_key():
    base = type("BaseProxy", (), {})
    proxies = [type("AcquirerProxy", (base,), {})() for _ in range(2)]
    for proxy in proxies:
        proxy._token = SimpleNamespace(id="7f01")
    assert lock_key(OwnObject(proxies[0]), "a") == lock_key(OwnObject(proxies[1]), "b") == "shared:manager:7f01"


def _until_waits(ident, *kinds):
    while True:
        (entry,) = snapshot(OwnProcess(frozenset({ident})))["threads"]
        if entry["wait"]["kind"] in kinds:
            return entry["wait"]


@pytest.mark.parametrize("module", ["select", "epoll"])
def test_the_file_behind_a_poll_is_looked_at(module):
    one, other = socket.socketpair()
    with one, other, select.epoll() as poller:
        poller.register(one.fileno(), select.EPOLLIN)
        wait = (lambda: poller.poll()) if module == "epoll" else (lambda: select.select([one], [], []))
        thread = threading.Thread(target=wait)
        thread.start()
        found = _until_waits(thread.ident, "socket")
        other.send(b"x")
        thread.join()
    assert found["file"]["kind"] == "socket" and thing(found) == "data from a local socket"


async def _two_that_wait(group, future):
    async def wait_for(future):
        await future

    if group:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for(future), name="inner")
    for each in asyncio.as_completed([wait_for(future)]):
        await each


@pytest.mark.parametrize(("group", "words"), [(True, "the tasks of its TaskGroup"), (False, "the next of its tasks")])
def test_tasks_that_wait_for_others_say_for_which(group, words):
    async def main():
        future = asyncio.get_running_loop().create_future()
        outer = asyncio.create_task(_two_that_wait(group, future), name="outer")
        for _ in range(3):
            await asyncio.sleep(0)
        found = snapshot(OwnProcess(frozenset()))["tasks"]
        future.set_result(None)
        await outer
        return next(task["wait"] for task in found if task["task"] == "outer")

    assert words in thing(asyncio.run(main()))


def test_a_request_without_a_free_connection_is_told_with_the_limit():
    pool = SimpleNamespace(_max_connections=2)
    frames = [
        Recorded("/site-packages/httpcore/_sync/connection_pool.py", "PoolRequest.wait_for_connection", {"self": 1}),
        Recorded("/site-packages/httpcore/_sync/connection_pool.py", "ConnectionPool.handle_request", {"self": pool}),
    ]
    looking = Looking([*frames, Recorded("/home/me/train.py", "main", {})], {}, Sources(os.getpid()), lambda _: "")
    assert thing(library_wait(frames, looking)) == "a free connection of its HTTP client (its limit is 2)"
    assert pool_wait(frames[1:]) is None


def test_the_rank_of_a_process_that_joins_a_group_is_read_from_the_call():
    folder = "/site-packages/torch/distributed"
    told = {"rank": 1, "world_size": 3}
    joins = Recorded(f"{folder}/distributed_c10d.py", "init_process_group", told)
    wait = {"kind": "rendezvous", "call": "init_process_group", **told, "meets_at": ""}
    assert _seen(joins) == wait
    # AND the address where it looks for the others
    store = Recorded(f"{folder}/rendezvous.py", "_create_c10d_store", {"hostname": "127.0.0.1", "port": 4000} | told)
    assert _seen(store, joins) == wait | {"meets_at": "127.0.0.1:4000"}


def test_a_group_that_a_library_makes_is_known_by_its_name():
    file = "/site-packages/torch/distributed/distributed_c10d.py"
    told = {"group_name": "weights", "group_rank": 1, "group_size": 3, "global_ranks_in_group": []}
    assert _seen(Recorded(file, "_new_process_group_helper", told)) == {
        "kind": "rendezvous",
        "call": "group weights",
        "group": "weights",
        "rank": 1,
        "world_size": 3,
    }


def test_whether_anybody_listens_at_an_address_of_this_host_is_known():
    with socket.socket() as listening, socket.socket() as bound:
        for each in (listening, bound):
            each.bind(("127.0.0.1", 0))
        listening.listen()
        ports = [each.getsockname()[1] for each in (listening, bound)]
        assert [is_listened(os.getpid(), f"127.0.0.1:{port}") for port in ports] == [True, False]
        assert [is_listened(os.getpid(), f"localhost:{port}") for port in ports] == [True, False]
        own = listening_at(os.getpid())
        assert [f"127.0.0.1:{port}" in own for port in ports] == [True, False]
    # AND nothing of other hosts
    assert is_listened(os.getpid(), "192.0.2.77:4000") is is_listened(os.getpid(), "trainer-0:4000") is None


def test_the_members_of_a_group_that_is_made_are_read_from_the_call():
    file = "/site-packages/torch/distributed/distributed_c10d.py"
    call = Recorded(file, "new_group", {"ranks": [2, 0]})
    made = Recorded(file, "_new_group_with_tag", {"ranks": [0, 2], "group_name": "1"})
    joins = Recorded(file, "_new_process_group_helper", {"global_ranks_in_group": [0, 2], "group_name": "1"})
    found = _seen(joins, made, call)
    assert (found["kind"], found["call"], found["group"], found["members"]) == ("rendezvous", "new_group", "1", [0, 2])
    # AND at last all ranks meet, or the members only
    meets = Recorded(file, "_store_based_barrier", {"rendezvous_count": 4, "group_name": "1"})
    assert _seen(meets, made, call)["members"] == [0, 1, 2, 3]
    meets = Recorded(file, "_store_based_barrier", {"rendezvous_count": 2, "group_name": "1"})
    assert _seen(meets, made, call)["members"] == [0, 2]
    assert _seen(Recorded(file, "new_group", {}))["members"] is None


def test_a_lock_is_held_where_the_body_of_its_with_is_on_the_same_line():
    lock, event, begun = threading.Lock(), threading.Event(), threading.Event()

    def hold():
        begun.set()
        with lock: event.wait()  # fmt: skip # noqa: E701

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    _until_waits(thread.ident, "event")
    (entry,) = snapshot(OwnProcess(frozenset({thread.ident})))["threads"]
    event.set()
    thread.join()
    assert [each["name"] for each in entry["holds"]] == ["lock"]


def test_a_thread_that_a_ray_actor_keeps_is_told_with_its_attribute():
    kept, other = (threading.Thread(target=int, name=name) for name in ("kept", "other"))
    for thread in (kept, other):
        thread.start()
        thread.join()
        # The kernel's own thread ends a moment later.
        while Path(f"/proc/self/task/{thread.native_id}").exists():
            time.sleep(0.01)
    worker = SimpleNamespace(actors={1: SimpleNamespace(loop=kept)})
    modules = {"threading": threading, "ray._private.worker": SimpleNamespace(global_worker=worker)}
    found = ended_threads({name: OwnObject(value) for name, value in modules.items()}, os.getpid())
    named = {each["name"]: each["kept_as"] for each in found}
    assert (named["kept"], named["other"]) == ("loop", "")


def test_who_handles_a_request_does_not_wait_for_one():
    def frame(file, function):
        return SimpleNamespace(file=file, line=1, function=function, variable=lambda name: None, locals=dict)

    serving = frame("/lib/python3.11/socketserver.py", "BaseServer.serve_forever")
    handling = frame("/lib/python3.11/socketserver.py", "BaseServer._handle_request_noblock")
    polling = frame("/lib/python3.11/selectors.py", "_PollLikeSelector.select")
    for frames, found in (([polling, serving], {"kind": "serving"}), ([handling, serving], None)):
        assert library_wait(frames, Looking(frames, {}, Sources(os.getpid()), lambda process: "")) == found


class Work:
    """As torch.distributed's: it waits in C."""

    def __init__(self):
        self.answers = SimpleQueue()
        self.wait = self.answers.get


class dist:  # noqa: N801 - as torch.distributed is called
    """Begins nothing."""

    begun = Work()

    @classmethod
    def all_reduce(cls, tensor, *, group=None, async_op):
        return cls.begun

    broadcast = isend = irecv = all_reduce


def begin_one(tensor):
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()


def begin_several(tensors, pair):
    works = []
    for tensor in tensors:
        works.append(dist.all_reduce(tensor, group=pair, async_op=True))
    for each in works:
        each.wait()


def begin_in_a_list(tensors):
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for each in works:
        each.wait()


def begin_different_ones(tensor):
    for each in [dist.all_reduce(tensor, async_op=True), dist.irecv(tensor, async_op=True)]:
        each.wait()


@pytest.mark.parametrize(
    ("begins", "given", "op"),
    [
        (begin_one, [1], "all_reduce"),
        (begin_several, [[1], dist.begun], "all_reduce"),
        (begin_in_a_list, [[1]], "all_reduce"),
        (begin_different_ones, [1], "wait"),
    ],
)
def test_what_was_begun_and_is_waited_for_is_told(begins, given, op):
    thread = threading.Thread(target=begins, args=given)
    thread.start()
    try:
        while True:
            (view,) = OwnProcess(frozenset({thread.ident})).threads()
            wait = wait_of(Looking(view.frames, {}, Sources(os.getpid()), lambda _: ""))
            if wait["kind"] == "collective":
                break
    finally:
        for _ in range(2):
            dist.begun.answers.put(None)
        thread.join()
        while not dist.begun.answers.empty():
            dist.begun.answers.get()
    group = {begin_several: f"{id(dist.begun):#x}", begin_different_ones: ""}.get(begins, "default")
    assert (wait["op"], wait["group"], wait.get("begun", False)) == (op, group, op != "wait")
