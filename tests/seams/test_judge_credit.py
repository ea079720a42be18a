"""A judge's scores are the rewards, and its calls are booked, whatever it answers."""

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from tests import fork_server

import agl
from agl.errors import AlgorithmError
from agl_records.calls.reader import model_calls
from agl_records.credit import GroupRule, Score
from agl_records.ledger.tables import Accounts
from agl_testing.echo_llm import EchoLLM, RawReply

from .scripted import Conversation

pytest.importorskip("torch")

import agl_torch
from agl_runs.replay import replay
from agl_runs.store import query_runs

from .table_model import MANY_WORDS, TINY, build_model, build_tokenizer

DOWN = RawReply(status=500, body=b'{"error": {"message": "out of order"}}')


@agl.rollout
async def says_a_word(task: dict, llm: agl.LLM) -> None:
    """One call, and no reward."""
    await Conversation(llm, task).say()


def attempts_of(request):
    """Attempt -> the last word that it said, as the judge is shown it."""
    shown = [json.loads(line) for line in request["messages"][1]["content"].splitlines()]
    return {one["attempt"]: one["messages"][-1]["content"] for one in shown if "attempt" in one}


def value_of(word):
    return sum(map(ord, word)) % 97 / 100


def honest(request):
    scores = [
        {"attempt": number, "why": f"it says {word}", "score": value_of(word)}
        for number, word in attempts_of(request).items()
    ]
    return json.dumps({"scores": scores})


def trainer_of(folder, url, store, *, tasks=2, copies=4, words=MANY_WORDS, budget=None, **options):
    """A trainer of a step or more, judged by a server at ``url``."""
    given = {**TINY, "model": lambda: build_model(words), "tokenizer": build_tokenizer(words)}
    given |= {"steps": 1, "groups_per_step": tasks, "group_size": copies}
    given["credit"] = {"type": "judge", "model": "wise", "base_url": url, "price": {}}
    algorithm = agl_torch.GRPO(**{**given, "run_dir": str(folder / "run"), **options})
    about = {"strategy": "shm", "n_runners": 1, "llm_proxy": agl.LLMProxy(run_budget=budget)}
    return agl.Trainer(algorithm=algorithm, store=store, **about)


def train(folder, reply, **options):
    """Likewise, of a server that answers with ``reply``; how often it was asked."""
    store = options.pop("store", None) or agl.InMemoryLightningStore()
    with contextlib.nullcontext(reply) if isinstance(reply, EchoLLM) else EchoLLM(reply) as server:
        trainer = trainer_of(folder, server.url, store, **options)
        try:
            trainer.fit(says_a_word, [{"words": "one"}, {"words": "two"}])
        finally:
            trainer.algorithm.asked = len(server.requests)
    return store, trainer.algorithm


def parts_of(store):
    return asyncio.run(agl.load_parts(store))


def bins(store):
    found = Counter()
    for part in parts_of(store):
        found["trained"] += len(part.trained)
        found.update(one.reason for one in part.excluded if one.kind == "call")
    return +found


def credits_of(store):
    """(rollout id, credit) of all calls that have one."""
    given = [(p.rollout_id, one.credit) for p in parts_of(store) for one in p.trained]
    given += [(p.rollout_id, one.credit) for p in parts_of(store) for one in p.excluded]
    return [(rollout_id, credit) for rollout_id, credit in given if credit is not None]


def metrics_of(folder):
    return json.loads((folder / "run/metrics.jsonl").read_text().splitlines()[0])


def word_of(store, rollout_id):
    spans = asyncio.run(store.query_spans(rollout_id))
    return model_calls(spans)[0].response["content"]


def test_scores_are_the_rewards_and_say_why(tmp_path):
    store, algorithm = train(tmp_path, honest)
    assert algorithm.asked == 2  # one call per group
    given = credits_of(store)
    assert len(given) == 8
    for rollout_id, credit in given:
        word = word_of(store, rollout_id)
        assert (credit.reward, credit.rule) == (value_of(word), "judge")
        assert f"of 4: it says {word}" in credit.because
    assert bins(store)["judge"] == 2
    assert sum(bins(store).values()) == algorithm.summary["calls"] == 8 + 2
    metrics = metrics_of(tmp_path)
    assert (metrics["judge/groups"], metrics["judge/failed"]) == (2, 0)
    mean = sum(credit.reward for _, credit in given) / 8
    assert metrics["reward/mean"] == pytest.approx(mean)


def test_equal_texts_are_shown_once_and_one_text_needs_no_judge(tmp_path):
    shown = []

    def reply(request):
        shown.append(attempts_of(request))
        return honest(request)

    store, _ = train(tmp_path, reply, words=MANY_WORDS[:6], copies=6)
    assert all(len(set(one.values())) == len(one) <= 3 for one in shown)
    by_word = {}
    for rollout_id, credit in credits_of(store):
        by_word.setdefault(word_of(store, rollout_id), set()).add(credit.reward)
    assert all(len(rewards) == 1 for rewards in by_word.values())


def test_equal_scores_train_nothing_and_are_counted(tmp_path):
    def tie(request):
        scores = [{"attempt": n, "why": "as good", "score": 0.5} for n in attempts_of(request)]
        return json.dumps({"scores": scores})

    store, _ = train(tmp_path, tie)
    assert bins(store) == {"zero_advantage": 8, "judge": 2}
    assert metrics_of(tmp_path)["judge/equal"] == 2


def test_an_answer_that_cannot_be_read_is_asked_for_once_more(tmp_path):
    asked = []

    def second_time(request):
        asked.append(request["messages"][-1]["content"])
        return "the first" if len(request["messages"]) == 2 else honest(request)

    store, _ = train(tmp_path, second_time, tasks=1)
    assert "it is no JSON: 'the first'. Answer with the JSON alone" in asked[1]
    assert bins(store) == {"trained": 4, "judge": 2}


def test_rollouts_whose_judge_cannot_be_read_are_left_out(tmp_path):
    def half(request):
        return honest(request) if "one" in str(request["messages"][1]) else "no idea"

    store, algorithm = train(tmp_path, half)
    assert bins(store) == {"trained": 4, "no_reward": 4, "judge": 3}
    excluded = [one for part in parts_of(store) for one in part.excluded]
    why = next(one.detail for one in excluded if one.reason == "no_reward")
    assert why == "its judge gave no scores: it is no JSON: 'no idea'"
    assert metrics_of(tmp_path)["judge/failed"] == 1
    assert algorithm.asked == 3


class Careless(GroupRule):
    """A judge of one's own, which gives what it should not."""

    judge = "policy"  # what the gateway serves

    def __init__(self, gives):
        self.gives = gives

    async def score(self, task, attempts, ask):
        return self.gives


@pytest.mark.parametrize("gives", [[0.5] * 4, [Score("1", "")] * 4])
def test_scores_that_are_none_are_said_with_the_judge_that_gave_them(tmp_path, gives):
    with pytest.raises(AlgorithmError) as caught:
        train(tmp_path, honest, tasks=1, credit=Careless(gives))
    assert f"judge 'Careless' gave {gives!r} for" in str(caught.value)
    assert "expected a list of as many agl_records.credit.Score" in str(caught.value)


def test_a_judge_that_is_down_is_said_and_the_run_goes_on_with_the_same_rollouts(tmp_path):
    replies = [lambda _: DOWN]
    with EchoLLM(lambda request: replies[-1](request)) as server:
        store = agl.SqliteLightningStore(tmp_path / "store.db")
        why = r"infrastructure failed all 8 train rollouts.*its judge.*out of order"
        with pytest.raises(AlgorithmError, match=why):
            train(tmp_path, server, store=store)
        assert bins(store) == {}
        asyncio.run(store.close())
        replies.append(honest)
        store = agl.SqliteLightningStore(tmp_path / "store.db")
        train(tmp_path, server, store=store)
    found = bins(store)
    assert found["trained"] + found["zero_advantage"] == 8
    rollouts = asyncio.run(store.query_rollouts())
    assert len([one for one in rollouts if one.mode == "train"]) == 8
    assert found["judge"] == 2 * 2 + 2  # those that failed are booked, too
    asyncio.run(store.close())


def test_a_judge_counts_within_the_budget_of_the_run(tmp_path, caplog):
    # Eight calls of the agent, and one of the two that the judge would need.
    store, algorithm = train(tmp_path, honest, budget={"calls": 9})
    assert algorithm.asked == 1
    assert algorithm.summary["steps"] == 0
    (run,) = asyncio.run(query_runs(store))
    assert run.status == "stopped"
    assert "the budget of the run is spent (calls 9 of 9)" in caplog.text


def test_a_task_with_one_rollout_cannot_be_judged(tmp_path):
    with pytest.raises(AlgorithmError, match="of 2 nothing can be trained: a judge compares"):
        train(tmp_path, honest, copies=1, estimator="reinforce_plus_plus")


AGAIN = {"deterministic": True, "steps": 2, "checkpoints": 2}


def test_a_judged_step_is_trained_again_with_what_the_judge_said_then(tmp_path):
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    with EchoLLM(honest) as server:
        _, algorithm = train(tmp_path, server, store=store, **AGAIN)
        found = replay(trainer_of(tmp_path, server.url, store, **AGAIN), says_a_word, 2)
        assert len(server.requests) == algorithm.asked > 0
    asyncio.run(store.close())
    assert (found.begun_at, found.first_difference) == (0, None)
    same = {one.what: one.same for one in found.compared}
    assert same["rewards"] is same["bins"] is same["weights after step 2"] is True


def run_judged(folder, url):
    """In a process of its own; goes on where a killed one ended."""
    store = agl.SqliteLightningStore(Path(folder) / "store.db", durability="process")
    resumes = {"resume_from": f"{folder}/run"} if (Path(folder) / "run").exists() else {}
    trainer = trainer_of(Path(folder), url, store, **{**AGAIN, **resumes})
    trainer.fit(says_a_word, [{"words": "one"}, {"words": "two"}])


@pytest.mark.timeout(1200)
def test_a_judged_run_that_is_killed_asks_about_no_scored_group_again(tmp_path):
    code = f"import sys; from {__name__} import run_judged; run_judged(*sys.argv[1:])"
    processes = []

    def start():
        command = ["-c", code, tmp_path, server.url]
        with (tmp_path / "told").open("w") as file:
            started = {"stdout": file, "stderr": file, "cwd": Path(__file__).parents[2]}
            processes.append(fork_server.start(command, **started))
        return processes[-1].wait(), (tmp_path / "told").read_text()[-3000:]

    def reply(request):
        if len(server.requests) == 3:  # the first of step 2; no checkpoint has step 1
            os.kill(processes[0].pid, signal.SIGKILL)
        return honest(request)

    with EchoLLM(reply) as server:
        code_of_killed, told = start()
        assert code_of_killed == -signal.SIGKILL, told
        code_of_second, told = start()
        assert code_of_second == 0, told
        asked = [request["messages"][1]["content"] for request in server.requests]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    accounts = asyncio.run(Accounts.read(store))
    rollouts = asyncio.run(store.query_rollouts())
    asyncio.run(store.close())
    assert (accounts.problems, accounts.without) == ([], 0)
    assert accounts.total["calls", "total"] == summary["calls"]
    done = [one.metadata or {} for one in rollouts if one.status == "succeeded"]
    judged = Counter(tuple(one["judges"]) for one in done if "judges" in one)
    assert list(judged.values()) == [1] * 4
    # The groups of step 1 were trained again with what the judge had said of them.
    assert [Counter(asked)[one] for one in asked[:2]] == [1, 1]
    assert len({*asked}) == 4
