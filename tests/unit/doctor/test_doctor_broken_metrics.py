"""What the other metrics of the first step with NaN say of the policy, and where to look."""

WELL = (
    "step:{n} - actor/loss:0.31 - actor/grad_norm:0.20 - actor/ppo_kl:0.001 - reward/mean:0.4 - reward/max:1.0 - "
    "reward/min:0.0\n"
)
BAD = (
    "step:{n} - actor/pg_loss:nan - actor/grad_norm:nan - quilt/reward/mean:-0.500 - quilt/reward/max:-0.500 - "
    "quilt/reward/min:-0.500 - other_reward/mean:0.1 - response_length/mean:900.0 - response_length/clip_ratio:{clip}\n"
)


def cause_of(verdict, text):
    cause = verdict(text).root_causes[0]
    assert cause.id == "nan-gradients"
    return cause


def test_rewards_and_lengths_of_the_first_step_tell_that_it_was_broken_before(verdict):
    cause = cause_of(verdict, BAD.format(n=40, clip="1.000"))
    assert "from step 40 on" in cause.detail
    assert "rewards do not differ (quilt/reward: all are -0.5)" in cause.detail
    assert "every response ends at the length limit (response_length/clip_ratio is 1)" in cause.detail
    assert "was likely broken before this step" in cause.detail
    assert "the log shows no step before it" in cause.detail
    assert cause.fix[0].startswith("Look at earlier steps")
    assert any("that the policy did not sample" in step for step in cause.fix)


def test_steps_before_tell_what_grew(verdict):
    steps = "".join(WELL.format(n=n) for n in range(1, 6))
    grown = WELL.format(n=6).replace("grad_norm:0.20", "grad_norm:38.1").replace("ppo_kl:0.001", "ppo_kl:0.9")
    cause = cause_of(verdict, steps + grown + BAD.format(n=7, clip="0.1"))
    assert "actor/grad_norm was 38.1 in step 6, and 0.2 before" in cause.detail
    assert "actor/ppo_kl was 0.9 in step 6" in cause.detail
    assert "no step before it" not in cause.detail
    assert "broken before" not in cause.detail


def test_metrics_that_say_nothing_are_not_told(verdict):
    line = (
        "step:7 - actor/loss:nan - reward/mean:0.4 - reward/max:1.0 - reward/min:0.0 - response_length/clip_ratio:0.2\n"
    )
    detail = cause_of(verdict, "".join(WELL.format(n=n) for n in range(1, 7)) + line).detail
    assert "; " not in detail
    only_mean = "step:7 - actor/loss:nan - reward/mean:0.4\n"
    assert "do not differ" not in cause_of(verdict, WELL.format(n=6) + only_mean).detail
