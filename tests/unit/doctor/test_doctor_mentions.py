"""What a log says elsewhere about the things that an exception names, and where the program was when it was raised."""

from rldbg.doctor import diagnose


def said(tmp_path, index, text):
    (tmp_path / "run.log").write_text(text)
    return diagnose([tmp_path / "run.log"], index=index)


def traceback(message, *frames):
    lines = [f'  File "{file}", line 7, in {function}\n    {code}' for file, function, code in frames]
    return "\n".join(["Traceback (most recent call last):", *lines, message, ""])


def ordinary(count):
    return "".join(f"INFO loaded shard {number} of the table from disk\n" for number in range(count))


def test_lines_with_the_missing_key_are_shown(tmp_path, index):
    text = (
        ordinary(30)
        + "INFO task 5f1c-aa queued\nINFO task 77d0-bb queued\n"
        + "store: job-77d0-bb gave no answer within 600 s, put back\n"
        + ordinary(5)
        + traceback("KeyError: 'job-77d0-bb'", ("/w/agent/daemon.py", "collect", "rows[job]"))
    )
    found = said(tmp_path, index, text)
    assert [(quote.line, quote.text) for quote in found.also_says] == [
        (33, "store: job-77d0-bb gave no answer within 600 s, put back")
    ]


def test_a_part_of_a_name_tells_something_in_a_warning_or_a_setting(tmp_path, index):
    text = (
        "python train.py algo.skip_anchor_policy=true algo.rounds=3\n"
        + ordinary(10)
        + "INFO the anchor was painted green\n"
        + "WARNING anchor model is not built\n"
        + traceback(
            "AttributeError: 'PolicyWorker' object has no attribute 'anchor_state_dict'",
            ("/w/algo/workers.py", "use_anchor_model", "self.anchor_state_dict.items()"),
        )
    )
    told = [quote.text for quote in said(tmp_path, index, text).also_says]
    assert any("skip_anchor_policy=true" in line for line in told)
    assert any("is not built" in line for line in told)
    assert not any("green" in line for line in told)


def test_words_that_many_lines_or_many_failures_have_tell_nothing(tmp_path, index):
    text = (
        "WARNING the engine was started with 4 workers\n"
        + "".join(f"WARNING quorum {word} is late\n" for word in ("alpha", "beta", "gamma", "delta", "eta"))
        + traceback("KeyError: 'x'", ("/w/engine_worker/quorum.py", "vote", "ballots[x]"))
    )
    assert not said(tmp_path, index, text).also_says


def test_sizes_that_differ_by_a_parallel_size_are_told_with_it(tmp_path, index):
    text = (
        "python train.py policy.tensor_parallel_size=4 policy.sequence_parallel=true data.copies=3\n"
        + ordinary(5)
        + traceback(
            "RuntimeError: The size of tensor a (12288) must match the size of tensor b (3072) at dimension 2",
            ("/w/model/rope.py", "rotate", "q * cos + half(q) * sin"),
        )
    )
    first = said(tmp_path, index, text).also_says[0]
    assert (first.line, "tensor_parallel_size=4" in first.text, "12288 is 4 x 3072" in first.text) == (1, True, True)


def test_sizes_that_no_setting_explains_are_left_alone(tmp_path, index):
    text = "python train.py policy.tensor_parallel_size=2\n" + traceback(
        "RuntimeError: The size of tensor a (17) must match the size of tensor b (16) at dimension 1",
        ("/w/model/rope.py", "rotate", "q * cos"),
    )
    assert not said(tmp_path, index, text).also_says


def test_the_headline_of_an_unknown_exception_says_what_the_program_was_doing(tmp_path, index):
    text = traceback(
        "frob.errors.FrobError: the wibble is loose",
        ("/w/train.py", "<module>", "main()"),
        ("/w/app/weights.py", "receive", "post(payload)"),
        ("/w/app/clients.py", "post", "client.send(payload)"),
        ("/opt/lib/python3.12/site-packages/httpx/_client.py", "send", "raise error"),
    )
    headline = said(tmp_path, index, text).headline
    assert "raised by send (httpx/_client.py) in post (/w/app/clients.py), called by receive (" in headline


def test_a_family_is_proved_where_the_exception_was_raised(tmp_path, index):
    """What was only called on the way through a reward function, or while a checkpoint was saved, is no such cause."""
    for outer in (("/w/my_reward.py", "compute_score"), ("/w/trainer/checkpointing.py", "save_checkpoint")):
        text = traceback(
            "frob.errors.FrobError: the wibble is loose",
            ("/w/train.py", "<module>", "main()"),
            (*outer, "notify(step)"),
            ("/w/app/frob.py", "notify", "frob(step)"),
        )
        found = said(tmp_path, index, text)
        assert (found.verdict, found.root_causes) == ("unknown", ())


def test_a_library_that_a_reward_function_calls_raises_for_it(tmp_path, index):
    text = traceback(
        "frob.errors.FrobError: the wibble is loose",
        ("/w/train.py", "<module>", "main()"),
        ("/w/my_reward.py", "compute_score", "verify(answer)"),
        ("/opt/lib/python3.12/site-packages/frob/verify.py", "verify", "raise error"),
    )
    assert [cause.id for cause in said(tmp_path, index, text).root_causes] == ["reward-function-failed"]


def test_a_checkout_of_a_package_is_not_the_code_of_the_user(tmp_path, index):
    text = traceback(
        "frob.errors.FrobError: the wibble is loose",
        ("/w/train.py", "<module>", "main()"),
        ("/opt/frob-lm/src/frob/core/save.py", "save", "split(state)"),
        ("/opt/frob-lm/src/frob/core/split.py", "split", "raise error"),
    )
    steps = "\n".join(said(tmp_path, index, text).next)
    assert "it was raised by frob at /opt/frob-lm/src/frob/core/split.py" in steps
    assert "your code called it at /w/train.py" in steps
    assert "search the issues of frob" in steps


def test_a_message_that_ends_with_a_colon_goes_on_below(tmp_path, index):
    text = traceback("frob.errors.FrobError: these differ:", ("/w/train.py", "main", "check()"))
    below = "name=cos_cache error=2.0\nname=sin_cache error=1.0\n\nINFO closing\n"
    headline = said(tmp_path, index, text + below).headline
    assert "these differ: name=cos_cache error=2.0 name=sin_cache error=1.0" in headline
    assert "closing" not in headline


def test_what_rldbg_itself_wrote_about_the_failure_is_not_quoted(tmp_path, index):
    text = (
        ordinary(30)
        + "rldbg: crash file /runs/1/crashes/job-77d0-bb.json: rldbg attach /runs/1/crashes/job-77d0-bb.json\n"
        + traceback("KeyError: 'job-77d0-bb'", ("/w/agent/daemon.py", "collect", "rows[job]"))
    )
    assert not said(tmp_path, index, text).also_says
