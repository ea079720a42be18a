"""``agl explain``: from a token back to the reward, by the ledger of a real step."""

import functools
import json
from typing import Any

from agl.types import Span
from agl_records.types import Exclusion

from .traces import account, add, call_of, filled, reward_span


def call_span(number: int, prompt: list[int], answer: list[int]) -> Span:
    logprobs = [-0.1 * token for token in answer]
    return call_of("q", "a", prompt, answer, logprobs, number=number)


FIRST = [call_span(1, [10, 11], [1, 2]), reward_span(0.25, 2)]
SECOND = [call_span(3, [10, 11, 1, 2, 12], [3]), reward_span(1.0, 4)]
"""The second prompt goes on from the first answer: one row 10 11 [1 2] 12 [3]."""
OF_GROUP = {"metadata": {"group": 0, "step": 1}}


async def step(
    store: Any, credit: str, *traces: list[Span], leave_out: set[str] = frozenset()
) -> list[str]:
    """What a learning algorithm does, of which some calls are left out; ids of the rollouts."""
    ended = [await add(store, spans, **OF_GROUP) for spans in traces]
    await account(store, [ended], credit, functools.partial(train, leave_out=leave_out))
    return [rollout.rollout_id for rollout in ended]


def train(ledger, row, given, place, leave_out):
    kept = [n for n, call_id in enumerate(row.call_ids) if call_id not in leave_out]
    for n, call_id in enumerate(row.call_ids):
        if n not in kept:
            of = {"rollout_id": row.rollout_id, "attempt_id": row.attempt_id, "call_id": call_id}
            why = {"reason": "zero_advantage", "credit": row.credits[n], "advantage": given[n]}
            ledger.exclude(Exclusion(**of, **why))
    if kept:
        ledger.train(row.only(kept), [given[n] for n in kept], place)


def make_step(credit: str, *traces: list[Span], **options: Any) -> list[str]:
    return filled(lambda store: step(store, credit, *traces, **options))


OTHER = [call_span(5, [10, 11], [7]), reward_span(0.0, 6)]
"""A sibling: one call, reward 0."""


def test_a_token_leads_to_its_reward_by_rule_group_and_advantage(explain):
    one, other = make_step("final", [*FIRST, *SECOND], OTHER)
    code, text = explain(one, "--row", "0", "--token", "5")
    assert code == 0
    # Siblings have 1 and 0: mean 0.5, deviation sqrt((1/4 + 1/4) / 1), so 0.5 / 0.7071 = 0.7071.
    for part in (
        f"rollout    {one} (succeeded, mode train); step 1 of toy",
        "reward     1 (primary), span 0000000000000004 (#4 of attempt",
        f"siblings   {other} 0",
        "token 5    id 3, log-probability -0.3, token 0 of the answer of call 0000000000000003",
        "credit   1 by rule 'final': the last reward of the attempt is 1; 1 earlier",
        "advantage +0.7071: 1 against mean 0.5, std 0.7071 of 2 rollouts",
    ):
        assert part in text, text
    assert "0.25" not in text
    assert "0000000000000001" not in text


def test_json_has_the_same_chain(explain):
    one, other = make_step("per_call", [*FIRST, *SECOND], OTHER)
    value = json.loads(explain(one, "--row", "0", "--token", "3", "--json")[1])
    token = {"position": 3, "token_id": 2, "sampled": True, "logprob": -0.2, "place": 1}
    assert value["token"] == {**token, "call_id": "0000000000000001"}
    (row,) = value["rows"]
    (call,) = row["calls"]
    assert (call["reward"], call["rule"]) == (0.25, "per_call")
    assert call["sources"] == ["0000000000000002"]
    assert [reward["value"] for reward in value["rewards"]] == [0.25]
    assert value["siblings"] == {other: 0.0}


def test_a_given_token_teaches_nothing(explain):
    one, _ = make_step("final", [*FIRST, *SECOND], OTHER)
    text = explain(one, "--row", "0", "--token", "4")[1]
    assert "token 4    id 12: given to the model, not sampled by it" in text
    assert "advantage" not in text


def test_a_token_of_an_excluded_call_in_a_trained_row_says_why(explain):
    one, _ = make_step("per_call", [*FIRST, *SECOND], OTHER, leave_out={"0000000000000001"})
    text = explain(one, "--row", "0", "--token", "3")[1]
    assert "token 3    id 2, log-probability -0.2, token 1 of the answer of call 0000" in text
    assert "excluded zero_advantage: it did exactly as well as what it was compared with" in text


def test_the_whole_rollout_lists_rows_and_excluded_calls(explain):
    one, _ = make_step("per_call", [*FIRST, *SECOND, call_span(8, [1], [2])], OTHER)
    text = explain(one)[1]
    assert "row 0      6 tokens" in text
    assert "call     0000000000000001" in text
    assert "sampled tokens 2 to 3" in text
    assert "excluded no_reward: no reward reached it (no reward links to this call" in text


def test_without_a_ledger_the_adapter_says_what_it_would_read(explain):
    async def fill(store: Any) -> list[str]:
        return [(await add(store, FIRST, one)).rollout_id for one in ("succeeded", "failed")]

    good, bad = filled(fill)
    text = explain(good)[1]
    assert "no ledger: as the adapter 'rows' would read it" in text
    assert "credit   0.25 by rule 'final'" in text
    assert "advantage" not in text
    assert "excluded failed_attempt: no attempt of the rollout succeeded" in explain(bad)[1]


def test_what_is_not_there_is_named(explain):
    one, _ = make_step("final", [*FIRST, *SECOND], OTHER)
    for arguments, message in (
        (["ro-x"], "agl: the store has no rollout, attempt, call, span, task or run 'ro-x'. See: "),
        ([one, "--row", "3"], f"agl: rollout {one!r} has no training row 3; it has 0. See: "),
        ([one, "--row", "0", "--token", "6"], f"agl: row 0 of rollout {one!r} has 6 tokens; "),
        ([one, "--token", "1"], "agl: --token counts within a row, or an answer; give"),
        ([one, "--step", "4"], f"agl: rollout {one!r} has no account of step 4\n"),
    ):
        code, text = explain(*arguments)
        assert code == 2
        assert text.startswith(message)
