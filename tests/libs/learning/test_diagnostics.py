"""What keeps a run from learning is seen in the metrics of its steps, and told once."""

from types import SimpleNamespace

import pytest

from agl_learning.collect.prompt_checks import prompt_metrics
from agl_learning.reports.diagnostics import STEPS, Diagnostics, Finding
from agl_learning.reports.report import Report
from agl_runs.mixed_calls import Call, Ran


def step(number, **about):
    metrics = {
        **{"step": number, "reward/mean": 0.25 + 0.001 * (number % 2), "reward/std": 0.4},
        **dict.fromkeys(("rollouts/succeeded", "calls/total", "calls/trained"), 8),
        **dict.fromkeys(("prompts/different", "prompts/as_tokens"), 4),
        **{"tokens/given": 40, "tokens/sampled": 10, "tokens/unknown": 1},
        **{"grad_norm": 0.7, "entropy": 1.5},
    }
    return {**metrics, **{name.replace("__", "/"): value for name, value in about.items()}}


def watched(history, steps=100):
    found = Diagnostics(steps)
    for one in history:
        found.add(one)
    return found


def signs(history, steps=100):
    return watched(history, steps).found()


def codes(*history, steps=100):
    return [one.code for one in signs(history, steps)]


SAME = {"reward__std": 0.0, "reward__mean": 0.0}
IDLE = {"calls__trained": 0, "calls__excluded/zero_advantage": 8}


@pytest.mark.parametrize(
    ("about", "code"),
    [
        ({"grad_norm": 0.0}, "no_gradient"),
        ({**IDLE, **SAME}, "equal_rewards"),
        (IDLE, "equal_rewards"),
        ({"entropy": 1e-4}, "no_entropy"),
        ({"calls__trained": 0, "calls__excluded/no_token_ids": 8}, "no_tokens"),
        ({"calls__trained": 0, "calls__excluded/no_logprobs": 8}, "no_tokens"),
        ({"calls__trained": 0, "calls__total": 0}, "no_calls"),
        ({"calls__trained": 0, "calls__total": 0, "rollouts__unreadable": 8}, "unreadable"),
        ({"failures__bias": -0.07, "failures__bias_error": 0.01}, "biased_failures"),
    ],
)
def test_sign_is_seen_after_three_steps_that_look_alike(about, code):
    assert codes(step(1, **about), step(2, **about)) == []
    assert codes(*(step(n, **about) for n in (1, 2, 3))) == [code]
    assert codes(step(1, **about), step(2, **about), step(3)) == []
    assert codes(step(1, **about), steps=1) == [code]
    assert codes(*(step(n, **about) for n in (1, 2, 3)), steps=0) == [code]


async def test_rewards_are_no_reason_where_a_teacher_is_learned_from(tmp_path):
    of = {"": "", "pupil": "reverse_kl", "other": "grpo"}
    learns = Hooks(estimator_of=of.__getitem__)  # as a team has it
    report = Report(learns, "team", tmp_path, 3, 0, False)
    for number in (1, 2, 3):
        told = step(number, **IDLE)
        of_models = {f"{one}/{name}": at for one in of if one for name, at in told.items()}
        await report.step(number, {**told, **of_models})
    other, pupil = report.of_run()["warnings"]
    assert "model 'other': the rewards of each task's rollouts are equal in steps 1 to 3" in other
    assert "model 'pupil': the teacher finds each token as likely as the model does" in pupil


@pytest.mark.parametrize(
    ("about", "code"),
    [
        ({"prompts__as_tokens": 1}, "same_prompts"),
        ({"prompts__as_tokens": 2}, "same_prompts"),
        ({"tokens__unknown": 25}, "unknown_tokens"),
        ({"time__rollouts": 60, "time__rollouts_at_once": 1.1}, "one_by_one"),
    ],
)
def test_sign_that_needs_no_second_step_is_seen_after_one(about, code):
    assert codes(step(1, **about)) == [code]


@pytest.mark.parametrize("two", ["two", "actor", "agl", "train"])
def test_each_of_several_models_is_looked_at_for_itself(two):
    own = ("grad_norm", "entropy")

    def of_team(number, **other):
        steps = {"one": step(number), two: step(number, **other)}
        shared = {name: value for name, value in step(number).items() if name not in own}
        return shared | {
            f"{model}/{name}": value
            for model, metrics in steps.items()
            for name, value in metrics.items()
            if name in own or name.startswith(("calls/", "prompts/", "tokens/"))
        }

    assert codes(*(of_team(n) for n in (1, 2, 3))) == []
    still = [of_team(n, grad_norm=0.0) for n in (1, 2, 3)]
    (found,) = signs(still, 100)
    assert (found.code, found.model) == ("no_gradient", two)
    said = f"model {two!r}: the gradient was 0 in steps 1 to 3, with 24 calls"
    assert found.seen.startswith(said)
    assert not watched(still).is_unchanged
    assert watched([{**one, "one/grad_norm": 0.0} for one in still]).is_unchanged
    lost = {"calls__trained": 0, "calls__excluded/no_token_ids": 8}
    (found,) = signs([of_team(n, **lost) for n in (1, 2, 3)], 100)
    assert (found.code, found.model) == ("no_tokens", two)
    (found,) = signs([of_team(1, prompts__as_tokens=1)], 100)
    assert (found.code, found.model) == ("same_prompts", two)


def test_run_that_does_well_has_no_sign():
    assert codes(*(step(n) for n in range(1, 9))) == []
    assert codes(step(1, prompts__different=1, prompts__as_tokens=1)) == []
    assert codes(step(1, prompts__as_tokens=3)) == []


def test_what_has_been_learned_is_no_sign():
    solved = {"reward__mean": 1.0, "reward__std": 0.0, "entropy": 0.0, **IDLE}
    assert codes(step(1), step(2), *(step(n, **solved) for n in (3, 4, 5))) == []
    collapsed = {**solved, "reward__mean": 0.0}
    found = codes(step(1), step(2, reward__mean=0.6), *(step(n, **collapsed) for n in (3, 4, 5)))
    assert found == ["equal_rewards", "no_entropy"]


def test_gradient_of_zero_says_the_tokenizer_where_that_is_at_fault():
    history = [step(n, grad_norm=0.0, prompts__as_tokens=1) for n in (1, 2, 3)]
    (_, gradient) = signs(history, 100)
    assert gradient.code == "no_gradient"
    assert "tokenizer" in gradient.likely
    assert "steps 1 to 3, with 24 calls trained" in gradient.seen


def test_as_much_is_kept_of_many_steps_as_of_few():
    found = watched(step(n, reward__mean=n / 1000) for n in range(1, 1001))
    assert len(found._last) == STEPS
    assert found.found() == []
    for n in (1001, 1002, 1003):
        found.add(step(n, reward__mean=0.001, **dict.fromkeys(("reward__std", "entropy"), 0.0)))
    assert [one.code for one in found.found()] == ["no_entropy"]


def test_what_is_no_number_is_no_sign():
    odd = {"grad_norm": "x", "entropy": float("nan"), "calls__trained": 10**400}
    assert codes(*(step(n, **odd) for n in (1, 2, 3))) == []


def test_weights_are_unchanged_where_every_gradient_is_zero():
    assert watched([step(1, grad_norm=0.0), step(2, grad_norm=0.0)]).is_unchanged
    assert not watched([step(1, grad_norm=0.0), step(2)]).is_unchanged
    assert not watched([{"step": 1}]).is_unchanged


class Hooks(SimpleNamespace):
    async def tell(self, name, **about):
        pass


async def test_finding_is_told_once_by_every_report(tmp_path, caplog):
    broken = {"prompts__as_tokens": 1}
    report = Report(Hooks(), "grpo", tmp_path, 5, 0, False)
    await report.step(1, step(1, **broken))
    await report.step(2, step(2, **broken))
    again = Report(Hooks(), "grpo", tmp_path, 5, 2, False)
    again.go_back(2, False, ())
    await again.step(3, step(3, **broken))
    assert [one.code for one in Finding.read(tmp_path)[0]] == ["same_prompts"]
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "4 prompts of step 1 that differ reach the model as 1 sequence" in caplog.text
    assert again.of_run()["warnings"] == [str(one) for one in Finding.read(tmp_path)[0]]
    assert "weights_changed" not in again.of_run()


async def test_a_run_that_goes_on_looks_at_its_steps_before(tmp_path):
    report = Report(Hooks(), "grpo", tmp_path, 5, 0, False)
    for number in (1, 2):
        await report.step(number, step(number, grad_norm=0.0))
    again = Report(Hooks(), "grpo", tmp_path, 5, 2, False)
    assert again.go_back(2, False) == {1, 2}
    assert again.of_run()["weights_changed"] is False
    await again.step(3, step(3, grad_norm=0.0))
    assert [one.code for one in Finding.read(tmp_path)[0]] == ["no_gradient"]


def asked(ended, name, request, tokens, calls=1, others=()):
    one = ended(name, 0, [(tokens, [9], 1.0)])
    made = [Call(request, f"{name}-{n}") for n in range(calls)]
    one.ran = Ran(name, "p", 0.0, 1.0, (*others, *made))
    return one


@pytest.mark.parametrize(
    ("step", "mean", "std", "is_said"),
    [
        *((0, 1.0, 0.0, True), (0, 0.0, 0.0, False), (0, 1.0, 0.5, False), (5, 1.0, 0.0, False)),
        (0, 5.0, 0.0, True),  # of ten, perhaps
    ],
)
async def test_held_out_rewards_that_may_not_rise_are_said_before_training(
    tmp_path, step, mean, std, is_said
):
    metrics = {"step": step, "val/reward/mean": mean, "val/reward/std": std}
    await Report(Hooks(), "toy", tmp_path, 3, 0, False).evaluation(step, metrics)
    found = Finding.read(tmp_path)[0]
    assert [one.code for one in found] == ["nothing_to_gain"] * is_said
    assert all("; if no reward can be higher, " in one.seen for one in found)


def test_prompts_are_compared_as_they_were_said_and_as_tokens(ended):
    batch = [asked(ended, name, name[0], [2, 2, 2]) for name in ("a1", "a2", "b1", "c1")]
    expected = {"prompts/different": 3, "prompts/as_tokens": 1, "tokens/unknown": 12}
    assert prompt_metrics(batch, 2) == expected
    # The first call of a rollout need not be of the model that is trained: the row says which is.
    by_others = [Call(name, f"other-{name}") for name in "xy"]
    batch = [asked(ended, one.request, "z", [1, 2], others=[one]) for one in by_others]
    assert prompt_metrics(batch, None) == {"prompts/different": 1, "prompts/as_tokens": 1}
    assert prompt_metrics([asked(ended, "a", "x", [1, 2], calls=0)], None) == {}
