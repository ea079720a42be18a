"""SFT, DPO, Azure and Tinker against everything that an agent may do: each call in its bin.

One iteration each, on all cases of ``scripted`` at once. SFT and DPO serve with ``agl serve`` and
train with TRL in child processes; Azure and Tinker are spoken to through their SDKs, on servers of
this machine.

The rollouts of a case have the rewards 1, 0 and 0. SFT trains what has at least 0.5, DPO one pair
per prompt, Azure everything, and Tinker by the advantage, of which every reward has one.
"""

import asyncio
import gc
import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from tests import fork_server

import agl
from agl.plugins.registry import load
from agl.utils.otel import make_link_attributes

from .scripted import (
    COPIES,
    REWARDS,
    TABLE as ALL_TRAINED,
    Conversation,
    Script,
    accounts,
    agent_of,
    judge,
    judge_entry,
)

pytest.importorskip("agl_unsloth")

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

FAILED = {"other_model": 3, "infrastructure": 1}
TABLE: dict[str, dict[str, dict[str, int]]] = {
    "sft": {
        "plain": {"trained": 1, "below_threshold": 2},
        "judged_by_another_model": {"trained": 1, "below_threshold": 2, "other_model": 3},
        "second_choice": {"trained": 2, "below_threshold": 4, "unused_choice": 3},
        "first_attempt_fails": {"trained": 1, "below_threshold": 2, "superseded_attempt": 3},
        "two_agents": {"trained": 1, "below_threshold": 2, "agent_not_selected": 3},
        "swallowed_503": {"trained": 1, "below_threshold": 1, **FAILED},
        "truncated": {"trained": 1, "below_threshold": 2, "truncated": 3},
    },
    "dpo": {
        # The answer with 1 and one with 0; the other one with 0 finds nobody.
        "plain": {"trained": 2, "not_paired": 1},
        "judged_by_another_model": {"trained": 2, "not_paired": 1, "other_model": 3},
        # The second calls follow different answers, and so answer different prompts.
        "second_choice": {"trained": 2, "not_paired": 4, "unused_choice": 3},
        "first_attempt_fails": {"trained": 2, "not_paired": 1, "superseded_attempt": 3},
        "two_agents": {"trained": 2, "not_paired": 1, "agent_not_selected": 3},
        "swallowed_503": {"trained": 2, **FAILED},
        # The first answers are cut off, and the second ones answer different prompts.
        "truncated": {"not_paired": 3, "truncated": 3},
    },
    "azure-sft": ALL_TRAINED,
    "tinker": ALL_TRAINED,
}
PER_CALL: dict[str, dict[str, int]] = {
    # Rewards [1, 1/4], [0, 1/4] and [0, 1/4]: one call of six has half a point.
    "sft": {"trained": 1, "below_threshold": 5},
    # The first calls differ in their own reward; the second ones answer different prompts.
    "dpo": {"trained": 2, "not_paired": 4},
    "azure-sft": {"trained": 6},
    # The mean of each step's rewards is theirs alone: 7/24, which none of the six equals.
    "tinker": {"trained": 6},
}
NAMES = list(TABLE)
SLOW = {"sft", "dpo"}
"""A server and a training in child processes each time."""


ALGORITHMS = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NAMES if name != "dpo"
]
# DPO goes the way of SFT but for what it pairs: at night.
ALGORITHMS.append(pytest.param("dpo", marks=pytest.mark.nightly))


class OwnWords(Script):
    """Each rollout goes on with words of its own, so that no two ask the same after their first."""

    async def credit_per_call(self, talk: Conversation, copy: int, rollout: Any) -> bool:
        """Says which call each reward is for: a model without a delay is quicker than the order.

        What an agent emits has its number when it is stored, and a call may be answered by then.
        """
        for value in (REWARDS[copy], 0.25):
            answer = await talk.say()
            link = make_link_attributes({"gen_ai.response.id": answer["id"]})
            agl.emit_reward(value, attributes=link)
        return True

    def converse(self, llm: agl.LLM, task: dict[str, Any], copy: int) -> Conversation:
        talk = super().converse(llm, task, copy)
        talk.next_words = ("one", "two", "three")[copy]
        return talk


def fit(name, services, folder, cases, **adapter) -> dict[str, dict[str, int]]:
    """One run of one iteration; its accounts."""
    shared = {"iterations": 1, "run_dir": str(folder / "run"), "show_progress": False}
    options = {**services[name], **shared}
    if name in SLOW:
        from .table_model import MANY_WORDS, save_model

        options["model"] = str(save_model(folder / "model", MANY_WORDS))
        options["python"] = str(fork_server.program(folder / "python"))
    algorithm = load("agl.algorithms", name)(**options)
    adapter = {"type": "chats" if name == "azure-sft" else "rows", **adapter}
    store = agl.InMemoryLightningStore()
    with judge() as server:
        agl.Trainer(
            algorithm=algorithm,
            store=store,
            strategy="shm",
            n_runners=1,
            runner=agl.LitAgentRunner(agl.OtelTracer(), concurrency=1),
            adapter={"agent_match": "writer", "truncated": "mask", **adapter},
            llm_proxy=agl.LLMProxy(model_list=[judge_entry(server)]),
        ).fit(agent_of(OwnWords()), [{"case": case, "words": "one two"} for case in cases])
    return asyncio.run(accounts(store))


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, Any]]:
    """Options per algorithm; what serves them starts when it is first asked for."""
    found = Services()
    yield found
    for server in found.servers:
        server.stop()
    with warnings.catch_warnings():
        # The SDK of Tinker leaves a connection of each of its clients to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Services(dict[str, dict[str, Any]]):
    """Algorithm -> the options that lead it to its service."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: list[Any] = []

    def __missing__(self, name: str) -> dict[str, Any]:
        self[name] = getattr(self, name.replace("-", "_"))()
        return self[name]

    def sft(self) -> dict[str, Any]:
        pytest.importorskip("trl")
        pytest.importorskip("agl_torch")
        return {"min_reward": 0.5, "keep_fraction": 1.0, **LOCAL}

    def dpo(self) -> dict[str, Any]:
        pytest.importorskip("trl")
        pytest.importorskip("agl_torch")
        return {"pairing": "best", **LOCAL}

    def azure_sft(self) -> dict[str, Any]:
        pytest.importorskip("azure.mgmt.cognitiveservices")
        from ..plugins.azure.azure_server import Azure, Login  # noqa: TID252

        azure = Azure(guesses=tuple(f"word{number}" for number in range(1000)))
        azure.min_examples = 1
        azure.server.start()
        self.servers.append(azure.server)
        login = {"credential": Login(azure.token)}
        return {**azure.options(), **login, "rollouts_per_task": COPIES}

    def tinker(self) -> dict[str, Any]:
        pytest.importorskip("tinker")
        pytest.importorskip("transformers")
        from ..plugins.tinker import tinker_server  # noqa: TID252
        from .table_model import WORDS, build_tokenizer

        end, agent = WORDS.index("<end>"), WORDS.index("<agent>")

        def make_table() -> tinker_server.Table:
            """After ``<agent>`` a word, and then the end."""
            table = tinker_server.Table(len(WORDS))
            table.weights[agent, :4] = table.weights[4:] = -20.0
            table.weights[4:, end] = 9.0
            return table

        tinker = tinker_server.Tinker(len(WORDS), end)
        tinker.make_table = make_table
        tinker.server.start()
        self.servers.append(tinker.server)
        model = {"base_model": "tiny/table", "tokenizer": build_tokenizer()}
        model["rollouts_per_task"] = COPIES
        return {**model, "api_key": tinker.key, "base_url": tinker.server.url}


LOCAL = {
    "engine": "trl",
    "server": {"type": "torch", "arguments": ["--threads", "1"]},
    "torch_threads": 1,
    "lora": None,
    "rollouts_per_task": COPIES,
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_call_is_in_the_bin_that_a_person_names_and_those_named_trained_are_sent(
    name, services, tmp_path, monkeypatch
) -> None:
    def config(**given: Any) -> agl.RolloutConfig:
        """Fine-tuning runs only lost attempts again; here those that failed, too."""
        return agl.RolloutConfig(**{**given, "retry_condition": ["unresponsive", "failed"]})

    monkeypatch.setattr("agl_learning.trainer.base.RolloutConfig", config)
    found = fit(name, services, tmp_path, TABLE[name])
    assert found == TABLE[name]
    lines = (tmp_path / "run/iterations/0001/examples.jsonl").read_text().splitlines()
    examples = [json.loads(line) for line in lines]
    trained = sum(bins.get("trained", 0) for bins in found.values())
    # Each answer is a word and the end.
    if name == "azure-sft":
        answers = [m for e in examples for m in e["messages"] if m["role"] == "assistant"]
        assert sum(answer.get("weight") != 0 for answer in answers) == trained
    elif name == "dpo":
        sides = [pair[side] for pair in examples for side in ("chosen_ids", "rejected_ids")]
        assert [len(side) for side in sides] == [2] * trained
    elif name == "sft":
        assert sum(label != -100 for e in examples for label in e["labels"]) == 2 * trained
    else:
        assert sum(weight != 0 for e in examples for weight in e["weights"]) == 2 * trained


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in SLOW)) for name in NAMES]
)
def test_credit_per_call_chooses_calls(name, services, tmp_path, monkeypatch) -> None:
    if name == "azure-sft":
        monkeypatch.setattr("agl_azure.algorithm.MIN_EXAMPLES", 1)
    found = fit(name, services, tmp_path, ["credit_per_call"], credit="per_call")
    assert found == {"credit_per_call": PER_CALL[name]}
