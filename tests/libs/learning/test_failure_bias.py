"""What failures leave out moves rewards only where it is no fair sample, and the meter says so."""

import math
import random
from statistics import fmean, pstdev
from typing import Any

import pytest

from agl.types import Rollout
from agl_learning.collect.failure_bias import failure_metrics
from agl_learning.collect.results import Ended
from agl_learning.reports.diagnostics import Diagnostics
from agl_runs.failures import RolloutFailure


def ended(group: int, reward: float | None, tokens: int, kind: Any = None) -> Ended:
    """A rollout that was kept, or one of ``group`` that a failure of this kind left out."""
    one = Ended(Rollout(rollout_id="ro", input=None, start_time=0.0), group, reward)
    one.tokens_left_out = (tokens, 0)
    if kind is not None:
        one.reward, one.unusable = None, ("failed_attempt", "no")
        one.failed = RolloutFailure(kind, "no")
    return one


def test_by_task_it_is_the_mean_kept_against_the_mean_asked_for():
    kept = [ended(0, reward, 10) for reward in (1.0, 1.0, 1.0, 0.0)]
    kept += [ended(1, reward, 10) for reward in (1.0, 0.0)]
    out = [ended(1, None, 10, "infrastructure") for _ in range(2)]
    lost = [ended(2, None, 10, "timeout")]
    # Kept 4/6; asked for (4 * 0.75 + 4 * 0.5) / 8 = 0.625; deviation of the rewards sqrt(2)/3.
    deviation = math.sqrt(2) / 3
    expected = {
        **{"excluded": 3, "tasks_lost": 1, "bias_length": 0.0},
        **dict.fromkeys(("bias", "bias_task"), (4 / 6 - 0.625) / deviation),
        # Variance of the means asked for 0.125^2, and 6 kept of 8.
        "bias_error": math.sqrt(0.125**2 * 2 / (6 * 7)) / deviation,
    }
    found = failure_metrics(kept + out + lost)
    assert found == pytest.approx({f"failures/{name}": one for name, one in expected.items()})
    assert failure_metrics(kept) == {}
    assert failure_metrics(lost) == {"failures/excluded": 1, "failures/tasks_lost": 1}


def test_by_length_it_is_the_slope_times_the_length_that_is_missing():
    kept = [ended(0, reward, tokens) for reward, tokens in ((1.0, 10), (0.5, 20), (0.0, 30))]
    # A reward of 1 per mean length; each of those left out is half a mean length longer than it.
    for kind, tokens in (("timeout", 0), ("agent", 30), ("grader", 90), ("infrastructure", 25)):
        found = failure_metrics([*kept, ended(0, None, tokens, kind)])
        assert found["failures/bias"] == pytest.approx(0.5 / 4 / pstdev([1.0, 0.5, 0.0]))
    for kind in ("agent", "infrastructure"):  # nothing is known of its length
        assert failure_metrics([*kept, ended(0, None, 0, kind)])["failures/bias"] == 0


def test_what_is_penalised_without_an_answer_to_train_is_left_out():
    one = ended(0, None, 0, "timeout")
    one.reward, one.unusable = -1.0, None
    found = failure_metrics([ended(0, 1.0, 10), ended(0, 0.0, 10), one])
    assert (found["failures/excluded"], found["failures/bias"]) == (1, 0.0)


def drawn(chance: random.Random, fails: Any) -> tuple[dict[str, float], float]:
    """A step of 64 rollouts whose wrong answers are longer: the metrics, and the true shift."""
    rollouts, kept, asked = list[Ended](), list[float](), list[float]()
    for task in range(8):
        ease = chance.uniform(0.1, 0.9)
        for _ in range(8):
            reward = float(chance.random() < ease)
            tokens = max(1, int(chance.gauss(350 - 150 * reward, 60)))
            kind = fails(chance, ease, tokens)
            rollouts.append(ended(task, reward, 0 if kind == "infrastructure" else tokens, kind))
            asked.append(reward)
            kept += [reward] * (kind is None)
    return failure_metrics(rollouts), (fmean(kept) - fmean(asked)) / pstdev(kept)


@pytest.mark.parametrize(
    ("fails", "part"),
    [
        (lambda chance, ease, tokens: "infrastructure" if chance.random() < 0.2 else None, ""),
        (lambda chance, ease, tokens: "grader" if chance.random() < 0.2 else None, ""),
        (lambda chance, ease, tokens: "agent" if chance.random() > ease + 0.1 else None, "task"),
        (lambda chance, ease, tokens: "timeout" if tokens > 350 else None, "length"),
    ],
)
def test_a_planted_shift_is_found_and_chance_is_none(fails, part):
    chance, watch = random.Random(7), Diagnostics(100)
    steps = [drawn(chance, fails) for _ in range(60)]
    bias = fmean(metrics["failures/bias"] for metrics, _ in steps)
    truth = fmean(shift for _, shift in steps)
    for number, (metrics, _) in enumerate(steps, 1):
        watch.add({"step": number, **metrics})
    codes = [one.code for one in watch.found()]
    if not part:
        assert abs(bias) < 0.02
        assert "biased_failures" not in codes
        spread = pstdev([metrics["failures/bias"] for metrics, _ in steps])
        error = fmean(metrics["failures/bias_error"] for metrics, _ in steps)
        assert 0.5 < spread / error < 1.5
        return
    assert "biased_failures" in codes
    assert bias == pytest.approx(truth, rel=0.4)
    assert bias > 0.1
    assert fmean(metrics[f"failures/bias_{part}"] for metrics, _ in steps) > 0.7 * bias
