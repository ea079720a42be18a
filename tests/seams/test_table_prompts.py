"""APO and GEPA against everything that an agent may do: what counted, what did not, and why.

The agent talks to its model through the gateway, which also serves a judge of the user's. Its
reward is 1 with a prompt that says welcome, and 0 without; the first edit says so. What a case does
besides must not change that, unless the table says so.

The sums by hand. APO searches with 7 evaluations: the first prompt on 2 tasks for the critique, the
edited one on 1, and 4 more in the race. GEPA searches with 8: the first prompt on both tasks, both
prompts on a minibatch of 2, the new one on both tasks. The decision makes 9 pairs, one per held-out
task, and looks after 4, 8 and 9: eight perfect pairs are enough, so it ends with 8 pairs, which are
16 evaluations.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.models import entry

import agl
from agl.emitter import reward_attributes
from agl.plugins.registry import load
from agl.semconv import AGL_ANNOTATION
from agl_testing.echo_llm import EchoLLM, RawReply

from .scripted import Conversation, Script, judge, judge_entry

pytest.importorskip("agl_apo")

APO, GEPA = "apo", "gepa"
SEARCH = {APO: 7, GEPA: 8}

TABLE: dict[str, dict[str, Any]] = {
    "plain": {"decided": 16},
    # The judge answers all the while, and its words are not the agent's.
    "judged_by_another_model": {"decided": 16, "judged": {200: "each"}},
    # Both choices are shown to nobody but the agent, which goes on with the second.
    "second_choice": {"decided": 16},
    # Every first try fails, after a reward outside of reward_range that must not be read.
    "first_try_fails": {"decided": 16, "again": "each"},
    # The last reward counts; those of the calls before it do not.
    "credit_per_call": {"decided": 16},
    "two_agents": {"decided": 16},
    # On one held-out task the judge is out of order for both prompts, three times each. Its pair is
    # left out, and one more is needed.
    "swallowed_503": {"decided": 18, "left_out": 1, "failed": 2, "again": 4},
    # So it is for this case, too, and its rewards shall count all the same.
    "kept_503": {"decided": 16, "options": {"failures": {"infrastructure": "keep"}}},
    "truncated": {"decided": 16},
    # On one held-out task every reward is of no use, for both prompts, three times each.
    **{
        name: {"decided": 18, "left_out": 1, "failed": 2, "again": 4}
        for name in ("reward_is_text", "reward_is_nan", "reward_is_infinite", "reward_out_of_range")
    },
}
"""Case -> what differs from a run without failures.

``decided``: evaluations of the decision; ``left_out``: pairs of it; ``failed``: evaluations that no
mean has; ``again``: how many ran again; ``options``: of the algorithm.
"""


USELESS: dict[str, Any] = {
    "reward_is_text": "NaN",
    "reward_is_nan": float("nan"),
    "reward_is_infinite": float("inf"),
    "reward_out_of_range": 5.0,
}


def reward_spans(value: Any) -> list[agl.Span]:
    """A reward of any value, as only spans written by hand can have it."""
    attributes = {key: value if key.endswith(".value") else given for key, given in WHOLE.items()}
    return [agl.Span.from_attributes(name=AGL_ANNOTATION, attributes=attributes)]


WHOLE = reward_attributes(1.0)


def evaluation_of(rollout: agl.Rollout) -> tuple[Any, ...]:
    place = (rollout.metadata or {})["prompts"]
    return place["candidate"], place["split"], place["position"]


class Agent(Script):
    """Plays one case, and remembers what it saw."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case = case
        self.tries: Counter[tuple[Any, ...]] = Counter()

    def lit(self) -> agl.LitAgent[Any]:
        """It, for a trainer."""

        @agl.rollout
        async def greeter(
            task: dict, prompt_template: agl.PromptTemplate, llm: agl.LLM, rollout: agl.Rollout
        ) -> Any:
            evaluation = evaluation_of(rollout)
            self.tries[evaluation] += 1
            words = prompt_template.format(**task)
            talk, is_odd = Conversation(llm, {"words": words}), evaluation[1:] == ("held_out", 5)
            if self.case not in USELESS:
                await getattr(self, self.case)(talk, 2 if is_odd else 0, rollout)
            else:
                await talk.say()
                if is_odd:
                    return reward_spans(USELESS[self.case])
            return float("welcome" in words)

        return greeter

    async def first_try_fails(self, talk: Conversation, copy: int, rollout: Any) -> None:
        """A try with a call and a reward that fails, and then a good one."""
        await talk.say()
        if self.tries[evaluation_of(rollout)] == 1:
            agl.emit_reward(5.0)
            raise RuntimeError("the first try always fails")

    kept_503 = Script.swallowed_503

    async def two_agents(self, talk: Conversation, copy: int, rollout: Any) -> None:
        """What the second says can be told from what the first does."""
        await talk.say()
        words = [{"role": "user", "content": "the critic asks"}]
        await talk.ask(agent="critic", messages=words)


def make(name: str, url: str, folder: Path, **more: Any) -> Any:
    """The smallest algorithm that decides."""
    shared: dict[str, Any] = {"base_url": url, "api_key": "none", "run_dir": str(folder / "best")}
    shared |= more
    shared |= {"agents": {"prompt_template": "writer"}, "max_repeats": 1}
    shared["unresponsive_seconds"] = 2.0
    if name == GEPA:
        given = {"reflection_minibatch_size": 2, "max_evaluations": 27}
        return load("agl.algorithms", "gepa")(reflection_model="critic", **given, **shared)
    given = {"beam_width": 1, "branch_factor": 1, "beam_rounds": 1, "gradient_batch_size": 2}
    given |= {"val_batch_size": 4, "run_initial_validation": False}
    return agl.APO(gradient_model="critic", apply_edit_model="editor", **given, **shared)


def speak(body: dict[str, Any]) -> str | RawReply:
    """What the policy says: the last message, unless that is cut off."""
    said = str(body["messages"][-1]["content"])
    if body.get("max_tokens") != 1:
        return said
    choice = {"index": 0, "message": {"role": "assistant", "content": said.split()[0]}}
    return RawReply(200, json.dumps({"choices": [{**choice, "finish_reason": "length"}]}).encode())


def answer(body: dict[str, Any]) -> str:
    """What critic and editor say; GEPA takes the text in the fences."""
    return "```\n{guest}, welcome.\n```"


def fit(name: str, agent: Agent, folder: Path) -> tuple[Any, list[str]]:
    """One run; the algorithm, and what its models were shown."""
    with judge() as server, EchoLLM(speak) as policy, EchoLLM(answer) as critic:
        gateway = agl.LLMProxy(model_list=[judge_entry(server), entry("policy", policy.url)])
        algorithm = make(name, critic.url, folder, **TABLE[agent.case].get("options", {}))
        prompt = agl.PromptTemplate(template="{guest}.")
        resources = {"prompt_template": prompt, "llm": gateway.as_resource(model="policy")}
        about = {"llm_proxy": gateway, "initial_resources": resources}
        held_out = [{"guest": f"Guest {number}"} for number in range(9)]
        agl.Trainer(algorithm=algorithm, strategy="shm", n_runners=1, **about).fit(
            agent.lit(), [{"guest": "Ada"}, {"guest": "Alan"}], val_dataset=held_out
        )
        shown = [str(body["messages"]) for body in critic.requests]
    return algorithm, shown


@pytest.mark.parametrize("case", TABLE)
@pytest.mark.parametrize("name", [APO, GEPA])
def test_what_counts_is_what_a_person_counts(name, case, tmp_path, caplog) -> None:
    if name == GEPA:
        pytest.importorskip("gepa")
    agent, wanted = Agent(case), TABLE[case]
    algorithm, shown = fit(name, agent, tmp_path)
    result, decision = algorithm.result, algorithm.result.decision
    evaluations = SEARCH[name] + wanted["decided"]
    again = {"each": evaluations}.get(wanted.get("again"), wanted.get("again", 0))
    assert (result.evaluations, result.evaluations_again) == (evaluations, again)
    assert result.evaluations_held_out == wanted["decided"]
    assert result.failed_evaluations == wanted.get("failed", 0)
    assert decision.left_out == wanted.get("left_out", 0)
    assert agent.tries.total() == evaluations + again
    # Every mean is of rewards that the agent gave for good: no failure is a 0, and no 5 a 1.
    assert (decision.seed_mean, decision.challenger_mean) == (0.0, 1.0)
    assert (decision.tasks, result.accepted) == (8, True)
    # The models that criticise see what the agent "writer" said to its model, and nothing else.
    assert any("Ada" in text for text in shown)
    assert not any("well done" in text or "the critic asks" in text for text in shown)
    if "judged" in wanted:
        assert agent.judged == {200: evaluations}
    if "failed" in wanted:
        assert f"{wanted['failed']} evaluations failed as often as they were run" in caplog.text
