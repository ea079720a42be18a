"""Answers that are held to a form, from the server to the gradient."""

import copy
from typing import Any

import pytest
from tests.models import entry

import agl

from .collecting import collect, rows_of

openai = pytest.importorskip("openai")
for name in ("agl_gateway", "agl_adapters", "agl_torch", "llguidance"):
    pytest.importorskip(name)

from tests.plugins.torch.conftest import byte_tokenizer  # noqa: E402, F401
from tests.plugins.torch.test_forms import byte_server, held_to  # noqa: E402, F401
from tests.plugins.torch.test_learner import OPTIONS, RULE, Learner, Sample  # noqa: E402


@agl.rollout
async def agent(task: dict[str, Any], main_llm: agl.LLM) -> float:
    async with openai.AsyncOpenAI(base_url=main_llm.endpoint, api_key="x") as client:
        said = [{"role": "user", "content": "where?"}]
        await client.chat.completions.create(model=main_llm.model, messages=said, **task)
    return 1.0


async def test_what_a_form_forced_is_recorded_as_certain_and_changes_no_weight(byte_server):  # noqa: F811
    gateway = agl.LLMProxy(model_list=[entry("model", byte_server.url)])
    tasks = ({**held_to({"const": "Oslo"}), "max_tokens": 20}, {"max_tokens": 6})
    held, free = rows_of(await collect(agent, gateway, served="model", tasks=tasks))
    assert held.logprobs == [0.0] * len(held.token_ids)
    assert sum(one < -3 for one in free.logprobs) == free.num_sampled
    for row, is_changed in ((held, False), (free, True)):
        learner = Learner(copy.deepcopy(byte_server.model), OPTIONS, RULE)
        before = copy.deepcopy(learner.model.state_dict())
        measured = learner.update([Sample(row, [1.0] * row.num_sampled)])
        after = learner.model.state_dict()
        assert any(not after[name].equal(before[name]) for name in before) is is_changed
        assert measured["logprob_gap"] == pytest.approx(0, abs=1e-3)


async def test_the_choices_that_a_form_left_are_no_other_temperature(byte_server):  # noqa: F811
    gateway = agl.LLMProxy(model_list=[entry("model", byte_server.url)])
    task = {**held_to({"enum": ["Oslo", "Rome"]}), "max_tokens": 20}
    (row,) = rows_of(await collect(agent, gateway, served="model", tasks=(task,)))
    assert min(row.logprobs) < -0.1
    learner = Learner(copy.deepcopy(byte_server.model), OPTIONS, RULE)
    measured = learner.update([Sample(row, [1.0] * row.num_sampled)])
    assert measured["logprob_gap"] == pytest.approx(0, abs=1e-3)
