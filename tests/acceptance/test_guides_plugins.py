"""What the guides of 0.3 show with gateway and adapters; see ``tests/core/test_guides.py``."""

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import agl
from agl_testing.echo_llm import EchoLLM


def test_proxy_and_adapter_are_given_by_options_path_or_instance() -> None:
    algorithm = agl.Baseline()
    by_options = agl.Trainer(algorithm=algorithm, n_runners=8, llm_proxy={"port": 4000})
    assert isinstance(by_options.llm_proxy, agl.LLMProxy)
    assert by_options.llm_proxy.port == 4000
    by_path = agl.Trainer(algorithm=algorithm, adapter="agl.adapter.TraceToMessages")
    assert isinstance(by_path.adapter, agl.TraceToMessages)
    options = {"agent_match": "plan_agent", "repair_hierarchy": False}
    default = agl.Trainer(algorithm=algorithm, adapter=options).adapter
    assert isinstance(default, agl.TracerTraceToTriplet)
    adapter = agl.LlmProxyTraceToTriplet()
    trainer = agl.Trainer(algorithm=algorithm, tracer=agl.OtelTracer(), adapter=adapter)
    assert trainer.adapter is adapter


def model_list(echo_llm: EchoLLM) -> list[dict[str, Any]]:
    backend = {"model": "hosted_vllm/tiny", "api_base": echo_llm.url}
    return [{"model_name": "tiny", "litellm_params": backend}]


async def test_proxy_serves_a_plain_client_with_a_served_store(echo_llm: EchoLLM) -> None:
    store_server = agl.LightningStoreServer(agl.InMemoryLightningStore(), "127.0.0.1", 0)
    await store_server.start()
    llm_proxy = agl.LLMProxy(model_list=model_list(echo_llm), store=store_server)
    await llm_proxy.start()

    def ask() -> Any:
        llm = llm_proxy.as_resource()
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello, world!"}]}
        request = urllib.request.Request(
            f"{llm.get_base_url()}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {llm.api_key}"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    answer = await asyncio.to_thread(ask)
    assert answer["choices"][0]["message"]["content"] == "Hello, world!"
    await llm_proxy.stop()
    await store_server.close()


def test_fine_tuning_data_is_collected_behind_the_proxy(echo_llm: EchoLLM) -> None:
    from openai import AsyncOpenAI

    @agl.rollout
    async def math_agent(task: dict[str, Any], llm: agl.LLM) -> float:
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "dummy") as client:
            answer = await client.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": task["input"]}]
            )
        return float(answer.choices[0].message.content == task["target"])

    class FineTuning(agl.Algorithm):
        def __init__(self) -> None:
            self.rows: list[dict[str, Any]] = []

        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            store, llm_proxy = self.get_store(), self.get_llm_proxy()
            data_adapter = agl.LlmProxyTraceToTriplet()
            assert llm_proxy is not None
            llm_proxy.update_model_list(model_list(echo_llm))  # type: ignore[arg-type]
            await llm_proxy.restart()
            update = await store.add_resources({"main_llm": llm_proxy.as_resource()})
            rollouts = [
                await store.enqueue_rollout(task, "train", update.resources_id)
                for task in train_dataset
            ]
            ended = await store.wait_for_rollouts(rollout_ids=[r.rollout_id for r in rollouts])
            await llm_proxy.flush()
            for rollout in ended:
                for triplet in data_adapter.adapt(await store.query_spans(rollout.rollout_id)):
                    prompt, answer = triplet.prompt["token_ids"], triplet.response["token_ids"]
                    labels = [-100] * len(prompt) + answer
                    self.rows.append({"labels": labels, "reward": triplet.reward})

    algorithm = FineTuning()
    trainer = agl.Trainer(
        algorithm=algorithm,
        llm_proxy=agl.LLMProxy(),
        strategy={"type": "shm", "main_thread": "algorithm"},
    )
    trainer.fit(math_agent, [{"input": "4", "target": "4"}, {"input": "5", "target": "6"}])
    assert [row["reward"] for row in algorithm.rows] == [1.0, 0.0]
    for row in algorithm.rows:
        sampled = [token for token in row["labels"] if token != -100]
        assert 0 < len(sampled) < len(row["labels"])


def test_prompt_is_optimised_as_in_the_first_guide(tmp_path: Path) -> None:
    from openai import AsyncOpenAI

    @agl.rollout
    def room_selector(task: dict[str, Any], prompt_template: agl.PromptTemplate) -> float:
        return float("smallest" in prompt_template.format(**task))

    def answer(body: dict[str, Any]) -> str:
        is_critic = body["model"] == "gpt-5-mini"
        return "Say which room." if is_critic else "A room for {attendees}, the smallest."

    with EchoLLM(answer) as llm:
        openai = AsyncOpenAI(base_url=llm.url, api_key="none")
        algo = agl.APO(openai, run_dir=str(tmp_path))
        trainer = agl.Trainer(
            algorithm=algo,
            n_runners=2,
            strategy="shm",
            initial_resources={
                "prompt_template": agl.PromptTemplate(
                    template="A room for {attendees}.", engine="f-string"
                )
            },
            adapter=agl.TraceToMessages(),
        )
        dataset_train, dataset_val = (
            [{"attendees": number} for number in range(start, 20, 2)] for start in (0, 1)
        )
        trainer.fit(agent=room_selector, train_dataset=dataset_train, val_dataset=dataset_val)
    assert algo.get_best_prompt().template == "A room for {attendees}, the smallest."
