"""Each algorithm of agl-torch against everything that an agent may do.

Each call is in the bin that a person names.
"""

import asyncio

import pytest

import agl

from .scripted import CASES, COPIES, TABLE, Script, accounts, agent_of, judge, judge_entry

pytest.importorskip("torch")

import agl_torch

from .table_model import TINY, build_model

ALGORITHMS = ["CISPO", "Distillation", "GRPO", "GSPO", "PPO", "RLOO", "ReinforcePlusPlus"]


def build_teacher():
    """Less sure than the model, so that no answer of it is as likely."""
    teacher = build_model()
    teacher.get_output_embeddings().weight.data *= 0.9
    return teacher


OWN_OPTIONS = {"Distillation": {"teacher": build_teacher}}


def train(folder, cases, *, adapter, algorithm="GRPO", script=None, store=None, val=0, **options):
    """A run over these cases, each a task of its own, the first ``val`` held out as well."""
    script, store = script or Script(), store or agl.InMemoryLightningStore()
    tasks = [{"case": case, "words": "one two"} for case in cases]
    given = {**TINY, "steps": 1, "groups_per_step": len(cases), "group_size": COPIES}
    given |= {"run_dir": str(folder / "run"), **OWN_OPTIONS.get(algorithm, {}), **options}
    algorithm = getattr(agl_torch, algorithm)(**given)
    algorithm.rollout_config = algorithm.rollout_config.model_copy(
        update={"retry_condition": ["unresponsive", "failed"]}
    )
    with judge() as server:
        agl.Trainer(
            algorithm=algorithm,
            store=store,
            strategy="shm",
            n_runners=1,
            adapter={"type": "rows", **adapter},
            llm_proxy=agl.LLMProxy(model_list=[judge_entry(server)]),
        ).fit(agent_of(script), tasks, val_dataset=tasks[:val] or None)
    return script, store


@pytest.fixture(scope="module", params=ALGORITHMS)
def run(request, tmp_path_factory):
    """All cases in one step, each a task of its own."""
    adapter = {"agent_match": "writer", "truncated": "mask"}
    folder = tmp_path_factory.mktemp("table")
    return train(folder, list(TABLE), adapter=adapter, algorithm=request.param)


@pytest.mark.parametrize("case", CASES)
async def test_each_call_is_in_the_bin_that_a_person_names(run, case):
    _, store = run
    assert (await accounts(store))[case] == TABLE[case]


def test_the_judge_of_the_user_answers_while_the_policy_is_trained(run):
    script, _ = run
    assert script.judged == {200: 2 * COPIES - 1, 503: 1}


def test_credit_per_call_trains_what_its_own_reward_sets_apart(tmp_path):
    _, store = train(tmp_path, ["credit_per_call"], adapter={"credit": "per_call"})
    # Rollouts have [1, 1/4], [0, 1/4] and [0, 1/4]; their mean is 7/24, which no reward equals.
    assert asyncio.run(accounts(store)) == {"credit_per_call": {"trained": 6}}
