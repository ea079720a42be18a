"""``APO.optimize``: prompts improved on recorded attempts, by models that are scripted."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

import agl
from agl.cli import cli
from agl.errors import AlgorithmError, ConfigError
from agl_testing.echo_llm import EchoLLM, RawReply

WORDS = ("briefly", "politely", "in French")
SEED = "Answer the guest."


def worth(prompt: str) -> float:
    """The planted truth: a third for each word that the prompt has."""
    return sum(word in prompt for word in WORDS) / len(WORDS)


class Models:
    """Critic, editor and judge; the judge is off by ``offset`` for prompts that were recorded."""

    def __init__(self, offset: float = 0.0, recorded: tuple[str, ...] = ()) -> None:
        self.offset, self.recorded = offset, recorded

    def __call__(self, body: dict[str, Any]) -> str:
        text = body["messages"][0]["content"]
        if "Predict the reward" in text:
            prompt = re.search(r"<candidate>\n(.*)\n</candidate>", text, re.S)[1]
            off = self.offset if prompt in self.recorded else 0.0
            count = len(re.findall(r"<task number=", text))
            return "\n".join(f"{n}: {worth(prompt) + off}" for n in range(1, count + 1))
        prompt = re.search(r"<prompt>\n(.*?)\n</prompt>", text, re.S)[1]
        if body["model"] == "critic":
            return next((f"ADD {word}" for word in WORDS if word not in prompt), "ADD nothing")
        return f"{prompt} {re.search('ADD (.*)', text)[1]}"


def algorithm(llm: EchoLLM, **options: Any) -> agl.Algorithm:
    return agl.APO(
        base_url=llm.url,
        api_key="none",
        gradient_model="critic",
        apply_edit_model="editor",
        **{"beam_width": 2, "branch_factor": 1, "beam_rounds": 3, **options},
    )


def attempts(*prompts: str, num_tasks: int = 8) -> list[dict[str, Any]]:
    return [
        {"prompt": prompt, "input": f"question {number}", "output": "well", "reward": worth(prompt)}
        for prompt in prompts
        for number in range(num_tasks)
    ]


def test_an_edited_prompt_is_best_and_its_evidence_says_that_it_was_never_run() -> None:
    recorded = (SEED, f"{SEED} briefly")
    with EchoLLM(Models(-0.1, recorded)) as llm:
        result = algorithm(llm).optimize(attempts(*recorded))
    assert worth(result.best_prompt) == 1.0
    assert result.is_new
    assert result.evidence.startswith("off-policy: this prompt was never run.")
    # The judge says 0 (cut off) for the first, and 1/3 - 0.1 for the second: off by 0 and 0.1.
    assert result.prediction_error == pytest.approx(0.05)
    assert [(one.text, one.attempts) for one in result.logged] == [(recorded[1], 8), (SEED, 8)]
    assert result.logged[0].mean == pytest.approx(1 / 3)
    assert result.logged[0].lower < result.logged[0].mean < result.logged[0].upper
    assert result.candidates[0].text == result.best_prompt
    assert result.candidates[0].predicted == pytest.approx(1.0)
    assert result.tokens > 0


def test_a_gain_within_the_error_of_predictions_leaves_the_best_recorded_prompt() -> None:
    recorded = (f"{SEED} briefly politely", SEED)
    # 2/3 is predicted as 2/3 + 0.4, cut to 1, which no edit can exceed.
    with EchoLLM(Models(0.4, recorded)) as llm:
        result = algorithm(llm, beam_rounds=1).optimize(attempts(*recorded))
    assert result.best_prompt == recorded[0]
    assert not result.is_new
    assert "the best recorded prompt stays" in result.evidence
    assert "not assigned to tasks at random" in result.evidence


def test_an_edit_without_a_prediction_is_ranked_last_whatever_rewards_there_are() -> None:
    recorded, edits = "p", iter(["nobody predicts this", "better"])

    def models(body: dict[str, Any]) -> Any:
        text = body["messages"][0]["content"]
        if "Predict the reward" not in text:
            return "Say more." if body["model"] == "critic" else next(edits)
        prompt = re.search(r"<candidate>\n(.*)\n</candidate>", text, re.S)[1]
        reward = {recorded: -8, "better": -2}.get(prompt)
        return "\n".join(f"{n}: {reward}" for n in range(1, 5))

    data = [{**one, "reward": -8} for one in attempts(recorded)]
    with EchoLLM(models) as llm:
        options = {"branch_factor": 2, "rounds": 1, "reward_range": (-10.0, -1.0)}
        result = algorithm(llm, beam_rounds=3, **options).optimize(data)
    assert [one.predicted for one in result.candidates] == pytest.approx([-2, -8, None])
    assert (result.best_prompt, result.is_new) == ("better", True)
    with pytest.raises(ConfigError, match="rounds is another name of beam_rounds; got rounds=2"):
        agl.APO(api_key="none", rounds=2, beam_rounds=4)


def test_critics_see_recorded_attempts_the_worst_first_and_no_held_out_task() -> None:
    data = attempts(SEED)
    data[0] |= {"reward": 0.0, "comment": "the guest left"}
    for record in data[1:]:
        record["reward"] = 0.9
    with EchoLLM(Models()) as llm:
        algorithm(llm, gradient_batch_size=8, beam_rounds=2).optimize(data)
        asked = [request["messages"][0]["content"] for request in llm.requests]
    critiques = [text for text in asked if "You review the prompts" in text]
    predictions = [text for text in asked if "Predict the reward" in text]
    shown = {task for text in critiques for task in re.findall(r"question \d", text)}
    judged = set(re.findall(r"question \d", predictions[0].partition("<candidate>")[2]))
    assert len(judged) == 4
    assert not shown & judged
    assert ("question 0" in shown) == any("the guest left" in text for text in critiques)
    assert any(f"with an earlier prompt: {SEED}" in text for text in critiques)
    assert not any("This was said with an earlier" in text for text in asked[:2])


def test_rewards_are_told_and_given_back_in_the_units_of_the_data() -> None:
    data = [{**one, "reward": 10 * one["reward"]} for one in attempts(f"{SEED} briefly")]
    with EchoLLM(lambda body: "1: 7\n2: 7\n3: 7\n4: 7") as llm:
        result = algorithm(llm, reward_range=(0.0, 10.0), beam_rounds=1).optimize(data)
    assert result.logged[0].mean == pytest.approx(10 / 3)
    assert result.candidates[0].predicted == pytest.approx(7.0)
    assert result.prediction_error == pytest.approx(7 - 10 / 3)


def test_an_edit_keeps_the_placeholders_of_a_template() -> None:
    template = agl.PromptTemplate(template="Welcome {guest}.", engine="f-string")
    data = [{"input": f"guest {n}", "reward": 0.5} for n in range(8)]

    edits = iter(["Be nice.", "Be {guest}!", "Be {guest}!"])

    def models(body: dict[str, Any]) -> str:
        text = body["messages"][0]["content"]
        if "Predict the reward" in text:
            high = "Be {guest}" in text
            return "\n".join(f"{n}: {0.9 if high else 0.5}" for n in range(1, 5))
        if body["model"] == "critic":
            return "Say more."
        assert "{guest}" in text
        return next(edits)

    with EchoLLM(models) as llm:
        options = {"branch_factor": 3, "beam_rounds": 1}
        result = algorithm(llm, **options).optimize(data, prompt=template)
    assert result.best_prompt == "Be {guest}!"
    assert any("lost the placeholder 'guest'" in why for why in result.dropped)


def test_what_agl_exports_of_imported_attempts_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rollouts, rewards = [], []
    for number in range(8):
        heads = [{"role": "system", "content": SEED}]
        said = [
            {"role": "user", "content": f"question {number}"},
            {"role": "assistant", "content": "well"},
        ]
        more = [{"role": "user", "content": "and?"}, {"role": "assistant", "content": "no"}]
        name = f"r-{number}"
        rollouts.append(
            {"id": name, "input": f"question {number}", "messages": heads + said + more}
        )
        rewards.append({"rollout_id": name, "value": 0.0})
    (tmp_path / "camp.json").write_text(json.dumps({"rollouts": rollouts, "rewards": rewards}))
    cli.main(["import", "camp.json", "--path", "camp.db"], standalone_mode=False)
    for kind in ("messages", "sft", "triplets"):
        export = ["export", "--as", kind, "--path", "camp.db", "-o", f"{kind}.jsonl"]
        cli.main(export, standalone_mode=False)
        with EchoLLM(Models()) as llm:
            result = algorithm(llm).optimize(tmp_path / f"{kind}.jsonl")
        assert worth(result.best_prompt) == 1.0, kind
        assert [(one.text, one.attempts) for one in result.logged] == [(SEED, 8)], kind


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([{"token_ids": [1], "reward": 1.0}], "record 0: it has token ids.*--as messages"),
        ([{"prompt": "p", "rewrad": 1.0}], "unknown key 'rewrad'.*Did you mean 'reward'"),
        ([{"prompt": "p"}], "record 0: it has no reward"),
        ([{"prompt": "p", "reward": 7}], r"reward 7 is not from 0.0 to 1.0"),
        ([{"prompt": "p", "reward": True}], "expected a number; got True"),
        ([{"input": "q", "reward": 1.0}], "which prompt was used"),
        (["p"], "record 0: expected a record with prompt and reward; got str"),
        ([{"prompt": "p", "reward": 1.0, "input": "q"}] * 9, "9 attempts at 1 tasks"),
        ({"rollouts": [], "rewards": []}, "keys 'rollouts', 'rewards'.*agl import FILE"),
        ("nowhere.jsonl", "nowhere.jsonl: cannot be read"),
    ],
)
def test_data_that_cannot_be_used_is_refused(data, said) -> None:
    with EchoLLM() as llm, pytest.raises(ConfigError, match=said):
        algorithm(llm).optimize(data)
    assert llm.requests == []


def test_records_without_a_reward_are_left_out_and_counted() -> None:
    data = [*attempts(f"{SEED} briefly"), {"prompt": SEED, "input": "q", "reward": None}]
    with EchoLLM(Models()) as llm:
        result = algorithm(llm, beam_rounds=1).optimize(data)
    assert result.left_out == {"no reward": 1}


def test_models_that_do_not_answer_are_named() -> None:
    said = "none of the 1 model calls of predictions"
    refused = EchoLLM(lambda body: RawReply(400, b"{}"))
    with refused as llm, pytest.raises(AlgorithmError, match=said):
        algorithm(llm).optimize(attempts(SEED))


def test_within_an_event_loop_it_says_how_to_call_it() -> None:
    async def call(llm: EchoLLM) -> agl.Algorithm:
        apo = algorithm(llm, beam_rounds=1)
        with pytest.raises(ConfigError, match=r"await asyncio\.to_thread"):
            apo.optimize(attempts(SEED))
        return await asyncio.to_thread(apo.optimize, attempts(SEED))

    with EchoLLM(Models()) as llm:
        result = asyncio.run(call(llm))
    assert worth(result.best_prompt) == pytest.approx(1 / 3)
