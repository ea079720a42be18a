"""``agl explain``: from a token back to the reward, by the ledger of a real step, and again."""

import functools
import json
import sqlite3
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from agl.semconv import ModelCallAttributes as Key
from agl.types import Span
from agl_adapters import TraceToRows
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.collect.results import Collected
from agl_learning.collect.rollout_reader import Reader
from agl_records.ledger.ledger import Ledger, save_ledger
from agl_records.types import Exclusion, Trained
from agl_runs.failures import DEFAULT
from agl_runs.records import RunStart
from agl_runs.store import begin_run
from agl_views.explanations import trace_reader
from agl_views.explanations.rollout_view import show
from agl_views.explanations.token_explanation import explain_token
from agl_views.explanations.trace_reader import Part

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
    text = explain(one, "--row", "0", "--token", "5")
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
    value = json.loads(explain(one, "--row", "0", "--token", "3", "--json"))
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
    text = explain(one, "--row", "0", "--token", "4")
    assert "token 4    id 12: given to the model, not sampled by it" in text
    assert "advantage" not in text


def test_a_token_of_an_excluded_call_in_a_trained_row_says_why(explain):
    one, _ = make_step("per_call", [*FIRST, *SECOND], OTHER, leave_out={"0000000000000001"})
    text = explain(one, "--row", "0", "--token", "3")
    assert "token 3    id 2, log-probability -0.2, token 1 of the answer of call 0000" in text
    assert "excluded zero_advantage: it did exactly as well as what it was compared with" in text


def test_the_whole_rollout_lists_rows_and_excluded_calls(explain):
    one, _ = make_step("per_call", [*FIRST, *SECOND, call_span(8, [1], [2])], OTHER)
    text = explain(one)
    assert "row 0      6 tokens" in text
    assert "call     0000000000000001" in text
    assert "sampled tokens 2 to 3" in text
    assert "excluded no_reward: no reward reached it (no reward links to this call" in text


def test_without_a_ledger_the_adapter_says_what_it_would_read(explain):
    async def fill(store: Any) -> list[str]:
        return [(await add(store, FIRST, one)).rollout_id for one in ("succeeded", "failed")]

    good, bad = filled(fill)
    text = explain(good)
    assert "no ledger: as the adapter 'rows' would read it" in text
    assert "credit   0.25 by rule 'final'" in text
    assert "advantage" not in text
    assert "excluded failed_attempt: no attempt of the rollout succeeded" in explain(bad)


def test_without_a_name_it_is_the_newest_rollout_from_which_an_update_learned(agl):
    async def fill(store: Any) -> str:
        used, unused = [await add(store, FIRST), await add(store, SECOND)]
        await account(store, [[used]])
        leave_out = {span.span_id for span in SECOND}
        await account(store, [[unused]], train=functools.partial(train, leave_out=leave_out))
        evaluated = await add(store, OTHER, mode="val")
        await account(store, [[evaluated]], step=2)
        return used.rollout_id

    used = filled(fill)
    told = agl("explain", "--path", "s.db")
    assert f"{used}, the newest rollout from which an update learned; see agl rollo" in told.err
    assert f"rollout    {used} (" in told.out


def test_what_is_not_there_is_named(explain):
    one, _ = make_step("final", [*FIRST, *SECOND], OTHER)
    rollout = f"agl: rollout {one!r}"
    for arguments, message in (
        ([one, "--row", "3"], f"{rollout} has no training row 3; it has 0. See: "),
        ([one, "--row", "0", "--token", "6"], f"agl: row 0 of rollout {one!r} has 6 tokens; "),
        ([one, "--token", "1"], "agl: --token counts within a row, or an answer; give"),
        ([one, "--step", "4"], f"{rollout} has no account of step 4\n"),
        ([one, "--call", "x", "--token", "0"], f"{rollout} has no token 0 in a call 'x'"),
        ([one, "--call", "c"], "agl: "),
    ):
        assert explain(*arguments, code=2).startswith(message)


FAILED = [call_span(9, [10, 11], [4])]
CLIP = {"low": 0.2, "high": 0.28}
OPTIONS = {"epochs": 1, "clip": CLIP, "loss": {"type": "grpo"}}


@dataclass(kw_only=True, eq=False, repr=False)
class Options(WeighingOptions):
    max_tokens: int | None = None


def unnamed(one: Trained) -> Trained:
    """As an algorithm writes it that does not say what made its advantages."""
    return one.changed(advantage=one.advantage and one.advantage.changed(estimator=""))


async def weighed(store, rollouts, options, is_named=True, **adapter: Any) -> None:
    """What a learning algorithm does in a step, as run ``r``."""
    ledger, reader = Ledger(), Reader(store, TraceToRows(**adapter), DEFAULT)
    ended = [await reader.read(one, 0, ledger) for one in rollouts]
    weigh(Collected(ended, ledger, 0.0), options)
    if not is_named:
        ledger.trained = [unnamed(one) for one in ledger.trained]
    await save_ledger(store, ledger, rollouts, step=1, algorithm="toy", run="r", generation=1)


def make(file="agl.yaml", is_named=True, **options: Any) -> list[str]:
    """A step of three rollouts of a task, of which the last failed."""

    async def fill(store: Any) -> list[str]:
        given = {"file": file, "algorithm": {**OPTIONS, **options}}
        await begin_run(store, RunStart(run_id="r", algorithm="toy", config=given))
        ended = [await add(store, one, **OF_GROUP) for one in ([*FIRST, *SECOND], OTHER)]
        ended.append(await add(store, FAILED, "failed", **OF_GROUP))
        estimated = Options(estimator=options.get("estimator", "grpo"))
        await weighed(store, ended, estimated, is_named)
        return [rollout.rollout_id for rollout in ended]

    return filled(fill)


def why_of(explain: Any, *arguments: str) -> dict[str, Any]:
    return json.loads(explain(*arguments, "--json"))["why"]


@pytest.mark.parametrize("is_trained", [True, False])
async def test_nothing_differs_where_a_call_is_compared_with_nothing(store, is_trained):
    # As in fine-tuning, or in an evaluation.
    await begin_run(store, RunStart(run_id="r", algorithm="toy", config={"algorithm": {}}))
    rollout = await add(store, FIRST, **OF_GROUP)
    made = TraceToRows().adapt(
        list(await store.query_spans(rollout.rollout_id)),
        attempts=list(await store.query_attempts(rollout.rollout_id)),
    )
    for row in made.rows:
        if is_trained:
            made.ledger.train(row)
        else:
            made.ledger.exclude_row(row, "not_trained_mode", "mode val")
    await save_ledger(store, made.ledger, [rollout], step=1, algorithm="toy", run="r")
    chain = (await show(store, rollout.rollout_id)).chain
    found = await explain_token(store, chain, made.rows[0].call_ids[0], 0, again=True)
    assert found.group is None
    assert found.again is not None
    assert (found.again.differs, found.again.problem) == (False, "")
    [credit] = found.again.numbers
    assert (credit.before, credit.now) == (0.25, 0.25)


async def test_computed_again_an_answer_that_was_cut_off_costs_as_much(store):
    options: dict[str, Any] = {"max_tokens": 10, "overlong": {"buffer": 5, "penalty": 0.5}}
    adapter: dict[str, Any] = {"truncated": "mask"}
    given = {"algorithm": options, "adapter": adapter}
    await begin_run(store, RunStart(run_id="r", algorithm="toy", config=given))
    cut = call_span(9, [10, 11], [4])
    cut.attributes[Key.FINISH_REASONS.value] = ["length"]
    rollout = await add(store, [cut, *FIRST], **OF_GROUP)
    other = await add(store, OTHER, **OF_GROUP)
    await weighed(store, [rollout, other], Options(**options), **adapter)
    chain = (await show(store, rollout.rollout_id)).chain
    found = await explain_token(store, chain, FIRST[0].span_id, 0, again=True)
    assert found.again is not None
    assert not found.again.differs, found.again
    credit, mean, advantage = [(one.before, one.now) for one in found.again.numbers]
    assert credit == (-0.25, -0.25)
    assert mean == (-0.125, -0.125)
    assert advantage[0] is not None


UNCLIPPED = {"clip": {"low": None, "high": None}}


@pytest.mark.parametrize(
    ("options", "above", "below"),
    [
        ({"clip": {**CLIP, "ratio_cap": 3.0}}, "up to 1.28, as", "from 0.8 up to 3, as"),
        ({"clip": {**CLIP, "ratio_cap": None}}, "up to 1.28, as", "from 0.8, as"),
        ({"clip": {"low": 3e-4, "high": 4e-4}}, "up to 1.0004, as", "from 0.9997, as"),
        ({**UNCLIPPED, "ratio_cap": 5.0}, "a ratio counts up to 5;", "a ratio counts up to 5;"),
        (UNCLIPPED, "no bound is among", "no bound is among"),
    ],
)
def test_bound_of_a_ratio_is_the_one_of_its_algorithm_and_sign(explain, options, above, below):
    better, worse, _ = make(**options)
    for rollout_id, expected in ((better, above), (worse, below)):
        rows = json.loads(explain(rollout_id, "--json"))["rows"]
        first = next(line["tokens"][0] for line in rows[0]["calls"] if line["tokens"])
        why = why_of(explain, rollout_id, "--row", "0", "--token", str(first))
        [clip] = [term for term in why["terms"] if term["name"] == "clip"]
        assert expected in clip["because"]


def test_computed_again_it_is_the_same_and_it_is_told_what_became_of_the_token(explain):
    one, _, _ = make()
    why = why_of(explain, one, "--row", "0", "--token", "5", "--again")
    numbers = why["again"]["numbers"]
    assert [each["what"] for each in numbers] == ["credit", "mean of the group", "advantage"]
    assert all(each["before"] == each["now"] for each in numbers)
    assert (why["num_shared"], why["num_calls"]) == (1, 2)
    assert (why["bin"]["name"], why["bin"]["row"], why["bin"]["position"]) == ("trained", 0, 5)
    assert (why["step"]["number"], why["step"]["num_trained"]) == (1, 2)


def test_the_group_says_who_was_left_out_and_who_shares_a_number(explain):
    one, other, failed = make()
    why = why_of(explain, one, "--row", "0", "--token", "3")
    assert (why["group"]["mean"], why["group"]["std"], why["num_shared"]) == (0.5, 0.5**0.5, 2)
    members = {member["rollout_id"]: member for member in why["group"]["members"]}
    assert next(iter(members)) == one
    assert [members[each]["reward"] for each in (one, other)] == [1.0, 0.0]
    assert not members[failed]["is_counted"]
    assert members[failed]["left_out"] == "no attempt of the rollout succeeded"
    text = explain(one, "--call", "0000000000000001", "--token", "1")
    assert "shared     by all 2 tokens of the answer" in text
    # One that was not trained ends with nothing.
    why = why_of(explain, failed, "--call", f"{9:016x}", "--token", "0")
    assert why["bin"]["reason"] == "failed_attempt"
    assert why["terms"] == []
    assert why["call"]["advantage"] is None


def test_a_reward_that_was_changed_since_comes_out(explain):
    one, other, _ = make()
    with sqlite3.connect("s.db") as store:
        name = '"agentlightning.reward.0.value":0.0'
        (before,) = store.execute("SELECT count(*) FROM span WHERE instr(body, ?)", [name])
        assert before == (1,)
        changed = name.replace("0.0", "0.5")
        store.execute("UPDATE span SET body = replace(body, ?, ?)", [name, changed])
    again = why_of(explain, one, "--again")["again"]  # of the first token that was sampled
    numbers = {number["what"]: (number["before"], number["now"]) for number in again["numbers"]}
    assert not again["numbers"][1]["same"]
    assert numbers["credit"] == (1.0, 1.0)
    assert numbers["mean of the group"] == (0.5, 0.75)
    text = explain(other, "--row", "0", "--token", "2", "--again")
    assert "again      credit: 0 in the ledger, 0.5 now DIFFERS" in text


def test_what_an_estimator_of_a_whole_step_did_is_one_term(explain):
    pytest.importorskip("torch")
    one, _, _ = make(estimator="rloo")
    why = why_of(explain, one, "--row", "0", "--token", "5", "--again")
    terms = {term["name"]: term for term in why["terms"]}
    assert "baseline" not in terms
    said = "estimator 'rloo': the distance from the mean of the others"
    assert said in terms["estimator"]["because"]
    assert [number["same"] for number in why["again"]["numbers"]] == [True] * 3
    assert why["again"]["numbers"][2]["now"] == 1.0  # of two the other is the mean of the others


def test_what_nobody_recorded_of_an_advantage_is_not_taken_for_grpo(explain):
    pytest.importorskip("torch")
    one, _, _ = make(estimator="rloo", is_named=False)
    why = why_of(explain, one, "--row", "0", "--token", "5", "--again")
    terms = {term["name"]: term["because"] for term in why["terms"]}
    assert "by which estimator is not recorded: rloo (" in terms["estimator"]
    assert "what made its advantage is not recorded" in why["again"]["problem"]
    assert [number["what"] for number in why["again"]["numbers"]] == ["credit", "mean of the group"]


def test_an_estimator_of_ones_own_is_found_beside_its_runs_file(explain, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    (folder := tmp_path / "elsewhere").mkdir()
    twice = "'Two rewards.'; return inputs.rollouts.mask_NT * 2 * inputs.outcomes_N[:, None]"
    (folder / "own_estimate.py").write_text(f"def twice(inputs): {twice}")
    with monkeypatch.context() as then:
        then.syspath_prepend(folder)
        one, _, _ = make(str(folder / "agl.yaml"), estimator="own_estimate:twice")
    monkeypatch.delitem(sys.modules, "own_estimate")
    monkeypatch.setattr(sys, "path", [*sys.path])
    why = why_of(explain, one, "--row", "0", "--token", "5", "--again")
    assert why["again"]["problem"] == ""
    assert [number["now"] for number in why["again"]["numbers"]] == [1.0, 2.0]
    assert why["call"]["advantage_because"].endswith("(Two rewards); its reward: 1")


async def test_of_a_part_of_a_long_trace_no_place_in_a_row_is_told(store, monkeypatch):
    monkeypatch.setattr(trace_reader, "MOST_SPANS", 1)
    one, _ = await step(store, "final", [*FIRST, *SECOND], [call_span(5, [10], [6])])
    for read, place in ((None, (0, 2)), (Part(), (None, None))):
        shown = await show(store, one, read=read)
        found = await explain_token(store, shown.chain, f"{1:016x}", 0)
        assert (found.bin.name, found.bin.row, found.bin.position) == ("trained", *place)
