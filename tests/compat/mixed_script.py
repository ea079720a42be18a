"""A script written for Agent Lightning, which the original and ours run as it is.

    python mixed_script.py runner STORE
    python mixed_script.py algorithm STORE MODEL TASKS

An agent says with each answer which package ran it. The algorithm prints a JSON object.
"""

import asyncio
import json
import sys
import time
from typing import Any

from openai import OpenAI

import agentlightning as agl
from agentlightning.emitter import find_final_reward

PACKAGE = "ours" if hasattr(agl, "TraceToRows") else "theirs"


@agl.rollout
def agent(task: dict, llm: agl.LLM, rollout: agl.Rollout) -> float:
    agl.emit_message(PACKAGE)
    time.sleep(0.05)  # so that no runner is through before the other has begun
    client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key or "dummy", max_retries=0)
    answer = client.chat.completions.create(
        model=llm.model, messages=[{"role": "user", "content": task["question"]}]
    )
    return float(answer.choices[0].message.content == task["question"])


class Ask(agl.Algorithm):
    """Each task once; what came of it, and who ran it."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.model = model
        self.found: list[dict[str, Any]] = []

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        proxy = self.get_llm_proxy()
        if proxy is None:
            llm = agl.LLM(endpoint=self.model, model="tiny")
        else:
            backend = {"model": "hosted_vllm/tiny", "api_base": self.model}
            proxy.update_model_list([{"model_name": "tiny", "litellm_params": backend}])
            await proxy.restart()
            llm = proxy.as_resource()
        resources = await store.add_resources({"main_llm": llm})
        waiting = [
            (await store.enqueue_rollout(task, "train", resources.resources_id)).rollout_id
            for task in train_dataset
        ]
        while True:
            ended = await store.wait_for_rollouts(rollout_ids=waiting, timeout=0.0)
            if len(ended) == len(waiting):
                break
            await asyncio.sleep(0.2)
        adapter = agl.LlmProxyTraceToTriplet()
        for rollout in ended:
            spans = await store.query_spans(rollout.rollout_id, "latest")
            said = [span.attributes.get("agentlightning.message.body") for span in spans]
            found = {"status": rollout.status, "reward": find_final_reward(spans)}
            found |= {"package": next(filter(None, said), None), "calls": len(adapter.adapt(spans))}
            self.found.append(found)


if __name__ == "__main__":
    role, address, *rest = sys.argv[1:]
    store = agl.LightningStoreClient(address)
    if role == "runner":
        runner = agl.LitAgentRunner(agl.OtelTracer(), poll_interval=0.1)
        with runner.run_context(agent=agent, store=store, worker_id=1):
            asyncio.run(runner.iter())
    else:
        model, count = rest
        algorithm = Ask(model)
        options = {"llm_proxy": agl.LLMProxy(port=0)} if PACKAGE == "ours" else {}
        trainer = agl.Trainer(
            algorithm=algorithm, store=store, tracer=agl.OtelTracer(), n_runners=1, **options
        )
        trainer.fit(agent, [{"question": f"{PACKAGE} {number}"} for number in range(int(count))])
        print(json.dumps(algorithm.found))
