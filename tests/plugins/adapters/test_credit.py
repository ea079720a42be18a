"""Which call gets what, by every rule; the arithmetic is in the comments."""

import pytest
from tests.training_rows import training_row

import agl
from agl.emitter import reward_attributes
from agl.errors import ConfigError
from agl.utils.otel import make_link_attributes
from agl_adapters import (
    Discounted,
    LlmProxyTraceToTriplet,
    Stepwise,
    TracerTraceToTriplet,
    TraceToRows,
)
from agl_learning.advantages.group_advantages import sibling_advantages
from agl_records.training_data import TrainingRow
from agl_records.types import Credit, StepCredit


def rewards(trace, credit) -> list[float | None]:
    """Per call, over rows and exclusions, in the order of the calls."""
    result = TraceToRows(credit=credit).adapt(trace.spans)
    found = {
        call_id: given.reward
        for row in result.rows
        for call_id, given in zip(row.call_ids, row.credits, strict=True)
    }
    found |= {e.call_id: e.credit.reward for e in result.ledger.exclusions if e.credit}
    return [found[s.span_id] for s in trace.spans if s.span_id in found]


def excluded_rewards(trace, credit) -> dict[str, str]:
    ledger = TraceToRows(credit=credit).adapt(trace.spans).ledger
    return {e.call_id: e.reason for e in ledger.exclusions if e.kind == "reward"}


def play(trace, *events) -> None:
    """In turn: a call of the agent of that name, or a reward, or rewards by name."""
    for number, event in enumerate(events):
        if isinstance(event, str):
            trace.gateway([2 * number + 1], [2 * number + 2], agent=event or None)
        elif isinstance(event, float):
            trace.reward(event)
        else:
            attributes = reward_attributes(event, next(iter(event)))
            trace.span("agentlightning.annotation", attributes)


THREE = ("", 0.25, "", "", 1.0)
"""Three calls: 0.25 after the first, nothing after the second, 1 after the third."""
TWO = ("writer", "critic", "writer")


def discounted(gamma):
    return {"type": "discounted", "gamma": gamma}


@pytest.mark.parametrize(
    ("events", "credit", "expected"),
    [
        (THREE, "final", [1.0, 1.0, 1.0]),
        # Call 1: 0.25. Call 2: nothing. Call 3: 1 + 0.5 = 1.5.
        ((*THREE, 0.5), "per_call", [0.25, None, 1.5]),
        # G3 = 1; G2 = 0 + 0.5 * 1 = 0.5; G1 = 0.25 + 0.5 * 0.5 = 0.5.
        (THREE, discounted(0.5), [0.5, 0.5, 1.0]),
        (THREE, discounted(1.0), [1.25, 1.0, 1.0]),  # the plain sum
        (THREE, discounted(0.0), [0.25, 0.0, 1.0]),  # own rewards
        (("", 1.0, ""), "discounted", [1.0, None]),  # nothing after the last reward
        ((*TWO, {"writer": 0.75, "critic": 0.0}), "per_agent", [0.75, 0.0, 0.75]),
        # The critic has a reward of its own; the writer has the one that is nobody's.
        ((*TWO, {"critic": 0.25}, 1.0), "per_agent", [1.0, 0.25, 1.0]),
        # A nameless reward is called "primary", and is not that of an agent of the name.
        (("primary", "critic", 1.0), "per_agent", [1.0, 1.0]),
        (("primary", "critic", 1.0, {"primary": 0.5, "critic": 0.25}), "per_agent", [0.5, 0.25]),
    ],
)
def test_each_call_gets_what_its_rule_says(trace, events, credit, expected):
    play(trace, *events)
    assert rewards(trace, credit) == expected


def test_a_rule_says_why_and_which_rewards_do_not_count(trace):
    play(trace, *THREE)
    assert excluded_rewards(trace, "final") == {trace.spans[1].span_id: "superseded_reward"}
    (row, *_) = TraceToRows().adapt(trace.spans).rows
    assert row.credits[0] == Credit(
        reward=1.0,
        rule="final",
        sources=[trace.spans[4].span_id],
        because="the last reward of the attempt is 1; 1 earlier of the attempt do not count",
    )
    trace.reward(0.5)
    result = TraceToRows(credit="per_call").adapt(trace.spans)
    assert result.ledger.reasons() == {"no_reward": 1}
    assert result.rows[1].credits[0].because == "the rewards of this call: 1 + 0.5 = 1.5"


class LastCall(agl.CreditRule):
    """As authors write one: it does not say where a reward is from."""

    uses_intermediate = False

    def assign(self, calls, spans):
        reward = agl.find_final_reward(spans)
        return [Credit(reward=None)] * (len(calls) - 1) + [Credit(reward=reward)]


def test_the_reward_of_a_rule_that_takes_the_final_one_is_used(trace):
    play(trace, *THREE)
    result = TraceToRows(credit=LastCall()).adapt(trace.spans)
    assert result.rows[0].credits[0].sources == [trace.spans[4].span_id]
    assert excluded_rewards(trace, LastCall()) == {trace.spans[1].span_id: "superseded_reward"}


def test_a_reward_that_a_rule_may_have_used_is_not_said_to_be_unused(trace, monkeypatch):
    monkeypatch.setattr(LastCall, "uses_intermediate", True)
    play(trace, *THREE)
    ledger = TraceToRows(credit=LastCall()).adapt(trace.spans).ledger
    why = {one.detail for one in ledger.exclusions if one.kind == "reward"}
    assert len(why) == 1
    assert why.pop().endswith("does not name it as a source of a credit")


def test_a_linked_reward_goes_to_its_call_whenever_it_comes(trace):
    first = trace.gateway([1], [2], response_id="c-1")
    trace.gateway([3], [4], response_id="c-2")
    reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5}
    for link in ({"gen_ai.response.id": "c-1"}, {"span_id": first.span_id}):
        trace.span("agentlightning.annotation", {**reward, **make_link_attributes(link)})
    nowhere = make_link_attributes({"gen_ai.response.id": "c-9"})
    lost = trace.span("agentlightning.annotation", {**reward, **nowhere})
    # Both links lead to call 1: 0.5 + 0.5 = 1.0.
    assert rewards(trace, "per_call") == [1.0, None]
    assert excluded_rewards(trace, "per_call") == {lost.span_id: "unused_reward"}


def test_a_broken_link_makes_its_reward_none(trace):
    trace.gateway([1], [2])
    trace.reward(1.0)
    trace.gateway([3], [4])
    broken = {"agentlightning.link.0.key_match": "span_id", "agentlightning.reward.0.value": 1.0}
    reward = trace.span("agentlightning.annotation", broken)
    assert rewards(trace, "per_call") == [1.0, None]
    assert excluded_rewards(trace, "per_call") == {reward.span_id: "refused_reward"}
    (excluded,) = [
        e for e in TraceToRows(credit="per_call").adapt(trace.spans).ledger.exclusions if e.credit
    ]
    assert excluded.reason == "refused_reward"
    assert "needs both key_match and value_match" in excluded.detail
    # What algorithms count as the rollout's reward agrees.
    assert agl.find_final_reward(trace.spans) is None


def test_a_call_that_is_not_trained_keeps_its_reward_from_others(trace):
    trace.gateway([1], [2])
    trace.gateway([3], [4], logprobs=[])
    trace.reward(1.0)
    # The reward follows the second call, which has no log-probabilities; the first gets nothing.
    result = TraceToRows(credit="per_call").adapt(trace.spans)
    assert result.ledger.reasons() == {"no_reward": 1, "no_logprobs": 1}


@pytest.mark.parametrize("skew", [0.0, -5.0, 5.0, None])
@pytest.mark.parametrize("credit", ["per_call", {"type": "discounted", "gamma": 0.0}])
def test_rewards_are_matched_by_number_whatever_the_clocks_say(trace, credit, skew):
    for number in range(2):
        start = None if skew is None else 100.0 + 2 * number + skew
        trace.gateway([number + 1], [number + 5])
        times = {"start_time": start, "end_time": start and start + 1}
        trace.spans[-1] = trace.spans[-1].model_copy(update=times)
        trace.reward(number + 1.0, start_time=101.5 + 2 * number, end_time=101.5 + 2 * number)
    assert rewards(trace, credit) == [1.0, 2.0]
    assert excluded_rewards(trace, credit) == {}


@pytest.mark.parametrize(
    "value", ["abc", "NaN", "0.5", [1.0], float("nan"), float("inf"), 1.7e308, -2e12]
)
@pytest.mark.parametrize("credit", ["final", "per_call", "per_agent", "discounted", "stepwise"])
def test_a_reward_that_cannot_be_read_is_refused_and_trains_nothing(trace, credit, value):
    trace.gateway([1], [2])
    bad = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}
    reward = trace.span("agentlightning.annotation", bad)
    result = TraceToRows(credit=credit).adapt(trace.spans)
    assert result.rows == []
    assert result.ledger.reasons() == result.ledger.reasons("reward") == {"refused_reward": 1}
    result.ledger.check()
    assert agl.find_final_reward(trace.spans) is None
    assert agl.utils.rewards.reward_problem(reward)


def test_an_unreadable_reward_does_no_harm_to_a_later_one(trace):
    trace.gateway([1], [2])
    trace.span("agentlightning.annotation", {"agentlightning.reward.0.value": "abc"})
    play(trace, "", 0.5)
    assert rewards(trace, "final") == [0.5, 0.5]
    assert rewards(trace, "per_call") == rewards(trace, "discounted") == [None, 0.5]
    assert agl.find_final_reward(trace.spans) == 0.5


def test_per_agent_knows_a_reward_by_the_agent_around_it(trace):
    agent = trace.span("agent", {"agent.name": "critic"}, start_time=100.0, end_time=150.0)
    trace.gateway([3], [4], agent="critic", parent_id=agent.span_id)
    trace.gateway([1], [2], agent="writer")
    trace.reward(0.25, parent_id=agent.span_id)
    assert rewards(trace, "per_agent") == [0.25, None]


def test_stepwise_gives_the_final_reward_and_the_return_of_the_step(trace):
    play(trace, *THREE)
    rows = TraceToRows(credit={"type": "stepwise", "gamma": 0.5, "weight": 2.0}).adapt(trace.spans)
    credits = [credit for row in rows.rows for credit in row.credits]
    assert [credit.reward for credit in credits] == [1.0, 1.0, 1.0]
    assert [credit.step for credit in credits] == [
        StepCredit(group=f"call {n}", reward=reward, weight=2.0)
        for n, reward in ((1, 0.5), (2, 0.5), (3, 1.0))
    ]


def test_stepwise_can_compare_calls_with_the_same_prompt(trace):
    for prompt in ([1, 2], [3], [1, 2]):
        trace.gateway(prompt, [9])
    trace.reward(1.0)
    rows = TraceToRows(credit={"type": "stepwise", "same": "prompt"}).adapt(trace.spans).rows
    first, second, third = [c.step.group for row in rows for c in row.credits]
    assert first == third != second


@pytest.mark.parametrize(
    ("rule", "options", "in_file", "in_python"),
    [
        (Discounted, {"gamma": 1.5}, "gamma: .* less than or equal to 1; got 1.5", "at most 1"),
        (Stepwise, {"weight": -1.0}, "weight: .* greater than or equal to 0", "least 0; got -1"),
        (Stepwise, {"same": "state"}, "same", " is .state.; expected number or prompt"),
    ],
)
def test_options_out_of_range_are_refused(rule, options, in_file, in_python):
    with pytest.raises(ConfigError, match=in_file):
        TraceToRows(credit={"type": rule.__name__.lower(), **options})
    with pytest.raises(ConfigError, match=f"{rule.__name__}: {next(iter(options))}.*{in_python}"):
        rule(**options)


def row(rollout_id: str, *credits: Credit) -> TrainingRow:
    ranges = [(n, n + 1) for n in range(len(credits))]
    return training_row([0] * len(credits), ranges, rollout_id=rollout_id, credits=list(credits))


def values(rows_G, normalise_std=False) -> list[list[float]]:
    """Advantages per rollout, its rows joined."""
    return [
        [advantage.value for of_row in rows for advantage in of_row]
        for rows in sibling_advantages(rows_G, normalise_std)
    ]


def test_more_rows_or_calls_do_not_count_more():
    # Rollout a: 1.0 in one call. Rollout b: 0.0 in three calls, in two rows. Mean over rollouts
    # (1 + 0) / 2 = 0.5, not over calls (1 + 0 + 0 + 0) / 4 = 0.25.
    one, none = Credit(reward=1.0), Credit(reward=0.0)
    siblings = [[row("a", one)], [row("b", none, none), row("b", none)]]
    assert values(siblings) == [[0.5], [-0.5, -0.5, -0.5]]
    # Deviation sqrt((0.25 + 0.25) / 1) = 0.7071, so with it every distance is 0.5 / 0.7071.
    assert values(siblings, normalise_std=True) == [
        [pytest.approx(0.5**0.5, abs=1e-5)],
        [pytest.approx(-(0.5**0.5), abs=1e-5)] * 3,
    ]


def test_agents_are_compared_with_themselves():
    def both(rollout_id, writer, critic):
        given = {"agent writer": writer, "agent critic": critic}
        return row(rollout_id, *(Credit(reward=r, group=g) for g, r in given.items()))

    # Writers 1 and 0: mean 0.5. Critics 10 and 10: mean 10, no advantage, and none from the
    # writers' scale either.
    siblings = [[both("a", 1.0, 10.0)], [both("b", 0.0, 10.0)]]
    assert values(siblings) == [[0.5, 0.0], [-0.5, 0.0]]


def test_stepwise_adds_the_comparison_of_the_same_step():
    def credit(whole, group, step):
        return Credit(reward=whole, step=StepCredit(group=group, reward=step, weight=2.0))

    siblings = [
        [row("a", credit(1.0, "call 1", 0.5), credit(1.0, "call 2", 1.0))],
        [row("b", credit(0.0, "call 1", 0.5), credit(0.0, "call 2", 0.0))],
    ]
    # Whole: mean 0.5, so +-0.5. Step 1: 0.5 and 0.5, no difference. Step 2: 1 and 0, mean 0.5, so
    # 2 * +-0.5. Sums: a 0.5, 0.5 + 1 = 1.5; b -0.5, -0.5 - 1 = -1.5.
    assert values(siblings) == [[0.5, 1.5], [-0.5, -1.5]]
    of_second_call = sibling_advantages(siblings, normalise_std=False)[0][0][1]
    assert of_second_call.because == (
        "1 against mean 0.5, std 0.7071 of 2 rollouts; plus 2 times 1 against mean 0.5, std "
        "0.7071 of 2 rollouts (call 2)"
    )


def test_a_step_that_one_rollout_has_alone_adds_nothing():
    step = StepCredit(group="call 9", reward=7.0)
    siblings = [[row("a", Credit(reward=1.0, step=step))], [row("b", Credit(reward=0.0))]]
    assert values(siblings) == [[0.5], [-0.5]]


class Learner(agl.Algorithm):
    """Has the credit rule as an option."""

    default_adapter = "rows"

    def __init__(self, credit: str | None = None) -> None:
        if credit is not None:
            self.adapter_options = {"credit": credit}

    def run(self, train_dataset=None, val_dataset=None) -> None:
        self.used = self.get_adapter().credit_name


@agl.rollout
def nothing(task) -> float:
    return 1.0


def test_an_algorithm_may_choose_the_rule_of_its_adapter():
    for credit, used in ((None, "final"), ("per_agent", "per_agent")):
        learner = Learner(credit)
        agl.Trainer(algorithm=learner, strategy="shm", n_runners=1).fit(nothing)
        assert learner.used == used


def test_a_rule_in_two_places_is_refused():
    trainer = agl.Trainer(
        algorithm=Learner("per_agent"), adapter=TraceToRows(), strategy="shm", n_runners=1
    )
    with pytest.raises(ConfigError, match="Give 'credit' to the adapter, or leave the adapter out"):
        trainer.fit(nothing)


@pytest.mark.parametrize("credit", ["final", "per_call", "discounted", "stepwise", "per_agent"])
def test_only_the_grade_of_a_graded_attempt_counts(trace, credit) -> None:
    """Though its agent emits rewards, one that looks like a grade among them."""
    forged = {"agentlightning.graded": True, "agentlightning.reward.0.value": 9.0}
    play(trace, "", 7.0)
    trace.span("agentlightning.annotation", forged)
    trace.gateway([3], [4])
    emitted = [span.span_id for span in trace.spans[1:3]]
    assert max(found := [r or 0.0 for r in rewards(trace, credit)]) >= 7.0, found
    trace.span("agentlightning.annotation", {**forged, "agentlightning.reward.0.value": 0.5})
    assert {r for r in rewards(trace, credit) if r} <= {0.5, 0.95 * 0.5}
    found_why = excluded_rewards(trace, credit)
    assert [found_why[span_id] for span_id in emitted] == ["superseded_reward"] * 2
    result = TraceToRows(credit=credit).adapt(trace.spans)
    for row in result.rows:
        result.ledger.train(row)
    result.ledger.check()


@pytest.mark.parametrize("adapter", [TracerTraceToTriplet, LlmProxyTraceToTriplet])
@pytest.mark.parametrize("value", [0.5, None])
def test_triplets_of_a_graded_attempt_have_its_grade_alone(trace, adapter, value) -> None:
    play(trace, "", 7.0, "")
    assert [triplet.reward for triplet in adapter().adapt(trace.spans)] == [7.0, None]
    reward = {} if value is None else {"agentlightning.reward.0.value": value}
    trace.span("agentlightning.annotation", {"agentlightning.graded": True, **reward})
    assert [triplet.reward for triplet in adapter().adapt(trace.spans)] == [None, value]


@pytest.mark.parametrize(("writer", "counts"), [("agent", False), (None, True)])
def test_an_agents_span_that_looks_like_a_rules_earns_nothing_beside_a_grade(trace, writer, counts):
    """Those of the rules are made when they are read, so that no store has any."""
    trace.gateway([1], [2])
    forged = {"agentlightning.air.rule": "tool", "agentlightning.reward.0.value": 9.0}
    trace.span("agentlightning.annotation", forged)
    trace.spans[-1] = trace.spans[-1].model_copy(update={"writer": writer})
    trace.gateway([3], [4])
    grade = {"agentlightning.graded": True, "agentlightning.reward.0.value": 0.5}
    trace.span("agentlightning.annotation", grade)
    assert (9.0 in rewards(trace, "per_call")) is counts


def test_a_reward_that_links_to_a_tool_is_of_the_call_that_asked_for_it(trace) -> None:
    trace.gateway([1], [2])
    tool = trace.span("search", {"tool.name": "search"})
    trace.gateway([3], [4])
    link = make_link_attributes({"span_id": tool.span_id})
    reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.25}
    trace.span("agentlightning.annotation", {**reward, **link})
    assert rewards(trace, "per_call") == [0.25, None]
