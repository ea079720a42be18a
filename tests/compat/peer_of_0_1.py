"""Run by the interpreter of the original agentlightning: its ends of 0.1's interface.

``server PORT`` queues tasks and prints the reports as JSON; ``client ADDRESS`` runs an agent on
four tasks of a server.
"""

import asyncio
import json
import sys
import warnings

if __name__ == "__main__":
    warnings.simplefilter("ignore")

import agentlightning as agl


class Agent(agl.LitAgent):
    def training_rollout(self, task, rollout_id, resources):
        if task["x"] == "raises":
            raise ValueError("boom")
        if task["x"] == "triplets":
            return [
                agl.Triplet(prompt={"token_ids": [1]}, response={"token_ids": [2]}, reward=0.25)
            ]
        return float(resources["prompt"].format(x=task["x"]))

    def validation_rollout(self, task, rollout_id, resources):
        return 1.0


async def serve(port: int) -> None:
    server = agl.AgentLightningServer(port=port)
    await server.start()
    prompt = agl.PromptTemplate(template="0.{x}", engine="f-string")
    resources_id = await server.update_resources({"prompt": prompt})
    ids = [await server.queue_task({"x": x}, mode="train") for x in ("5", "triplets", "raises")]
    ids.append(await server.queue_task({"x": ""}, mode="val", resources_id=resources_id))
    print("READY", flush=True)
    for rollout_id in ids:
        report = await server.poll_completed_rollout(rollout_id, timeout=60)
        print(report.model_dump_json() if report else json.dumps(None), flush=True)
    await server.stop()


def work(address: str) -> None:
    client = agl.AgentLightningClient(address, poll_interval=0.1)
    trainer = agl.Trainer(n_workers=1, max_tasks=4)
    trainer.fit_v0(Agent(), client)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        asyncio.run(serve(int(sys.argv[2])))
    else:
        work(sys.argv[2])
