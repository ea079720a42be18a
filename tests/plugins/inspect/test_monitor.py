"""The reward monitor: each signal by hand, and when it warns."""

import json
import logging
from collections import Counter
from statistics import fmean

import pytest

import agl
from agl.errors import ConfigError
from agl_inspect.monitor import RewardMonitor, RolloutAnswers, measures, repetition
from agl_records.ledger.documents import put_parts

from .traces import add, call_of, ids_of, reward_span


def said(*answers, failed=False, reward=1.0, name="r"):
    return RolloutAnswers(name, answers, failed, reward)


def mean_of(signal, said):
    return fmean(one[signal] for one in measures(said))


def test_repetition_is_the_share_of_n_grams_that_came_before():
    assert repetition("a b a b a", 2) == 0.5  # ab ba ab ba
    assert repetition("a b c d", 2) == 0.0
    assert repetition("a", 2) == 0.0


def test_length_is_the_mean_over_rollouts():
    # 3 + 2 characters, and 1.
    assert mean_of("length", [said("abc", "de"), said("f")]) == 3.0


def test_equal_is_the_share_of_rollouts_that_are_not_alone():
    found = [said("a", "b"), said("a", "b"), said("ab"), said("c")]
    assert mean_of("equal", found) == 0.5


def test_hidden_are_errors_of_tools_that_cost_nothing_and_are_not_spoken_of():
    found = [
        said("done", failed=True, reward=1.0),  # hides it
        said("it failed, sorry", failed=True, reward=1.0),
        said("done", failed=True, reward=0.0),  # less than the mean, 0.75
        said("done", reward=1.0),
    ]
    assert mean_of("hidden", found) == 0.25


def monitor_after(*steps, **options):
    monitor = RewardMonitor(window=1, **options)
    fair = {"reward": 0.0, "length": 10.0, "repetition": 0.1, "equal": 0.0, "hidden": 0.0}
    for number, changes in enumerate(steps, 1):
        monitor._steps[number] = {**fair, **changes}
    return monitor


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"length": 20.0}, "answers became longer (characters): 10 then, 20 now"),
        ({"length": 5.0}, "answers became shorter (characters): 10 then, 5 now"),
        ({"repetition": 0.31}, "answers repeat themselves (share of repeated n-grams): 0.1 then"),
        ({"equal": 0.3}, "more rollouts say the same (share of the step): 0 then, 0.3 now"),
        ({"hidden": 0.1}, "errors of tools are passed over"),
    ],
)
def test_a_rising_reward_with_worse_answers_is_said_once(changes, words):
    monitor = monitor_after({}, {"reward": 0.5, **changes})
    (warning,) = monitor.warnings(2).values()
    assert warning.startswith("step 2: the reward rose from 0 (steps 1 to 1) to 0.5 (steps 2 to 2)")
    assert words in warning
    assert monitor.warnings(2) == {}
    # Without the rise nothing is said, however bad the answers are; nor with it, of good ones.
    assert monitor_after({}, changes).warnings(2) == {}
    assert monitor_after({}, {"reward": 0.5, "length": 19.0, "equal": 0.2}).warnings(2) == {}


@pytest.mark.parametrize(
    "options", [{"window": 0}, {"longer": 1.0}, {"equals": 1.5}, {"rise": 0.0}, {"ngram": 1}]
)
def test_senseless_options_are_refused(options):
    with pytest.raises(ConfigError, match=f"RewardMonitor: {next(iter(options))}"):
        RewardMonitor(**options)


class Algorithm:
    """A run's place."""

    def __init__(self, folder):
        self.folder = folder

    def get_run(self):
        return "run-1", 1

    def get_run_folder(self):
        return self.folder


async def step_of(store, step, answer, reward=None, status="succeeded"):
    for _ in range(2):
        spans = [call_of("Hi", answer), *([] if reward is None else [reward_span(reward)])]
        rollout = await add(store, spans, status, {"q": 1})
        call = agl.Exclusion(**ids_of(rollout), call_id="c", reason="zero_advantage")
        of = {"rollout_id": rollout.rollout_id, "run": "run-1", "step": step, "mode": "train"}
        await put_parts(store, [agl.LedgerPart(**of, excluded=[call])])


async def test_it_reads_a_step_from_the_store_and_goes_on_in_its_file(tmp_path, caplog):
    store, algorithm = agl.InMemoryLightningStore(), Algorithm(tmp_path)
    await step_of(store, 1, "short")
    await step_of(store, 2, "a long answer, and much longer")
    first = RewardMonitor(window=1, equals=1.0)
    first.on_run_start(algorithm, store)
    await first.on_step_end(algorithm, 1, {"reward/mean": 0.1})
    second = RewardMonitor(window=1, equals=1.0)  # of the next start
    second.on_run_start(algorithm, store)
    with caplog.at_level(logging.WARNING, "agl.inspect"):
        await second.on_step_end(algorithm, 2, {"reward/mean": 0.6})
    assert "answers became longer (characters): 5 then, 30 now. Look at agl show ro-" in caplog.text
    lines = map(json.loads, (tmp_path / "reward-monitor.jsonl").read_text().splitlines())
    found = [(one["step"], one["length"], one["equal"]) for one in lines]
    assert found == [(1, 5.0, 1.0), (2, 30.0, 1.0)]


async def test_what_a_failed_rollout_was_given_on_the_way_is_no_reward_of_it(store):
    await step_of(store, 1, "short", reward=1.0)
    await step_of(store, 1, "short", reward=5.0, status="failed")
    monitor = RewardMonitor()
    monitor.on_run_start(Algorithm(None), store)
    found = [one.reward for one in await monitor._said("run-1", 1)]
    assert Counter(found) == {1.0: 2, None: 2}
