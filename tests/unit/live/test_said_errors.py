"""Which errors that a job has said belong to a finding: those of who should have acted."""

from rldbg.live.diagnosis.graph.wait_graph import Edge, Node, WaitGraph
from rldbg.live.diagnosis.hang import HangDiagnosis
from rldbg.live.diagnosis.said_errors import with_said_errors

PLACE = {"file": "/job/engine.py", "line": 21, "function": "Engine.get"}
ERROR = {
    "message": "AssertionError: not cached",
    "logged": False,
    "place": PLACE,
    "caught": PLACE | {"line": 44, "function": "serve"},
    "ago_s": 12.2,
}
WAITS = {"kind": "queue_get", "name": "results"}
CLIENT, LOOP, OTHER = ("h", 1, "main"), ("h", 2, 7), ("h", 2, 8)


def _told(error, *, kind="never_filled", actors=(LOOP,), told=(CLIENT, LOOP), **more):
    threads = [{"thread": "loop", "ident": 7, "main": False}, {"thread": "other", "ident": 8, "main": False}]
    stacks = [
        {"host": "h", "pid": 1, "who": "client", "threads": [{"thread": "MainThread", "ident": 1, "main": True}]},
        {"host": "h", "pid": 2, "who": "engine", "threads": threads, "said": [error]} | more,
    ]
    labels = {CLIENT: "client", LOOP: "thread loop of engine", OTHER: "thread other of engine"}
    graph = WaitGraph([Node(identity, label, wait=WAITS) for identity, label in labels.items()])
    graph.nodes[CLIENT].edges.append(Edge(LOOP, "should put an item in"))
    cause = HangDiagnosis("client waits", kind, (), actors=frozenset(actors), told=frozenset(told))
    return with_said_errors([cause], graph, stacks)[0]


def test_the_error_of_who_should_have_acted_is_part_of_the_sentence():
    found = _told(ERROR | {"ident": 7, "thread": "loop"})
    assert found.verdict == (
        "client waits; thread loop of engine caught AssertionError: not cached (engine.py:21 (get), "
        "caught at :44 (serve)) 12 s ago and went on"
    )


def test_the_error_of_another_thread_is_listed_below():
    found = _told(ERROR | {"ident": 8, "thread": "other"})
    assert found.verdict == "client waits" and found.evidence[0].startswith("also said: thread other of engine caught")


def test_a_thread_that_has_ended_counts_only_where_nobody_else_should_have_acted():
    gone = ERROR | {"ident": 9, "thread": "feeder"}
    assert _told(gone).evidence[0].startswith("also said: thread feeder of engine caught")
    alone = _told(gone, actors=[LOOP], told=[LOOP])
    assert "; thread feeder of engine caught" in alone.verdict and alone.verdict.endswith("and has ended")


def test_a_child_that_is_told_to_have_ended_is_told_with_what_it_raised():
    gone = ERROR | {"gone": "process saver", "caught": None, "ago_s": None}
    assert not _told(gone).verdict.endswith("and has ended")
    threads = [{"thread": "loop", "ident": 7, "main": False}]
    graph = WaitGraph([Node(LOOP, "thread loop of engine", wait=WAITS)])
    cause = HangDiagnosis("process saver (pid 5) has ended", "ended", (), actors=frozenset([LOOP]), told=frozenset())
    stacks = [{"host": "h", "pid": 2, "who": "engine", "threads": threads, "said": [gone]}]
    (found,) = with_said_errors([cause], graph, stacks)
    said = "; process saver of engine raised AssertionError: not cached (engine.py:21 (get)) and has ended"
    assert found.verdict.endswith(said)


def test_what_the_sentence_tells_already_is_not_told_again():
    threads = [{"thread": "loop", "ident": 7, "main": False}]
    error = ERROR | {"message": "KeyError: 'logic'", "ident": 7}
    stacks = [{"host": "h", "pid": 2, "who": "engine", "threads": threads, "said": [error]}]
    cause = HangDiagnosis("rank 1 raised KeyError: logic", "raised", (), actors=frozenset([LOOP]))
    (found,) = with_said_errors([cause], WaitGraph([Node(LOOP, "thread loop of engine", wait=WAITS)]), stacks)
    assert found.verdict == cause.verdict and found.evidence == ()


def test_a_process_that_has_ended_of_it_raised_it():
    """It told so at its end; the finding names who started it."""
    found = _told(ERROR | {"caught": None}, actors=[CLIENT], told=[CLIENT], threads=[], started_by=[1])
    assert found.verdict.endswith(
        "engine raised AssertionError: not cached (engine.py:21 (get)) 12 s ago and has ended"
    )


def test_what_belongs_to_no_finding_is_listed_below_the_one_that_names_its_process():
    graph = WaitGraph([Node(CLIENT, "client", wait=WAITS), Node(OTHER, "thread other of engine", wait=WAITS)])
    threads = [{"thread": "other", "ident": 8, "main": False}]
    stacks = [{"host": "h", "pid": 2, "who": "engine", "threads": threads, "said": [ERROR | {"ident": 8}]}]
    causes = [
        HangDiagnosis(text, "never_set", (), told=frozenset([node])) for text, node in (("a", CLIENT), ("b", LOOP))
    ]
    first, second = with_said_errors(causes, graph, stacks)
    assert first.evidence == () and "also said: thread other of engine" in second.evidence[0]


def test_one_of_several_that_print_into_a_file_is_joined_if_all_of_them_should_have_acted():
    assert "one of client, engine caught" in _told(ERROR | {"one_of": [1, 2]}).evidence[0]
    assert "; one of client, engine caught" in _told(ERROR | {"one_of": [1, 2]}, actors=[CLIENT, LOOP]).verdict


def test_what_another_process_may_have_printed_is_only_listed():
    found = _told(ERROR | {"caught": None, "caught_in": PLACE, "one_of": [2], "or_others": True})
    said = "also said: engine, or another process that prints into the same file, caught AssertionError: not cached ("
    assert found.verdict == "client waits" and found.evidence[0].startswith(said)
    assert found.evidence[0].endswith("caught in Engine.get) 12 s ago")


def test_a_process_that_has_ended_belongs_to_those_that_started_it():
    ended = {"threads": [], "started_by": [1]}
    found = _told(ERROR, actors=[CLIENT], told=[CLIENT], **ended)
    assert "; engine caught" in found.verdict and found.verdict.endswith("and has ended")
    assert _told(ERROR, told=[("h", 5, "main")], **ended).verdict == "client waits"


def test_healthy_jobs_stay_as_they_are():
    for kind in ("none", "moving", "computing", "busy"):
        found = _told(ERROR | {"ident": 7, "thread": "loop"}, kind=kind)
        assert found.verdict == "client waits" and not found.evidence


def test_what_is_told_already_is_not_told_again_and_secrets_are_not_told():
    assert _told(ERROR | {"message": "client waits"}).evidence == ()
    assert "hf_" not in _told(ERROR | {"message": "OSError: hf_abcdefghijklmnopqrstuv", "ident": 7}).verdict


RAYS = (
    "Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): \x1b[36mray::Store.publish()\x1b[39m (pid=18, "
    'ip=127.0.0.1, actor_id=7b, repr=<job.Store object at 0x7f00>)\n  File "/job.py", line 16, in _validate\n'
    "ValueError: embed: expected 64 elements"
)


def test_an_error_that_quotes_a_traceback_is_told_in_one_line_without_colours():
    logged = ERROR | {"message": RAYS, "logged": True, "place": None, "caught": None}
    # Such threads are named by Python, and only while they run it.
    found = _told(logged | {"ident": 9, "thread": "Dummy-1"}, actors=[CLIENT])
    assert found.evidence == (
        "also said: engine logged Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): "
        "ray::Store.publish(): ValueError: embed: expected 64 elements 12 s ago and went on",
    )


def test_an_error_whose_exception_is_told_already_is_not_told_again():
    threads = [{"thread": "loop", "ident": 7, "main": False}]
    stacks = [{"host": "h", "pid": 2, "who": "engine", "threads": threads, "said": [ERROR | {"message": RAYS}]}]
    cause = HangDiagnosis("Store.publish has failed: ValueError: embed: expected 64 elements", "never_set", ())
    (found,) = with_said_errors([cause], WaitGraph([Node(LOOP, "loop", wait=WAITS)]), stacks)
    assert found.evidence == () and found.verdict == cause.verdict
