"""What the tests of the examples share."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agl
import agl_gateway
from agl_testing.echo_llm import EchoLLM

EXAMPLES = Path(__file__).parents[2] / "examples"


class Outcome:
    """What the store has of a rollout."""

    def __init__(self, rollout: agl.Rollout, spans: list[agl.Span]) -> None:
        self.rollout = rollout
        self.spans = spans

    @property
    def reward(self) -> float | None:
        return agl.find_final_reward(self.spans)


class Bench:
    """A store, a runner, and a gateway in front of a scripted model: one rollout at a time."""

    def __init__(self, llm: EchoLLM, *others: str) -> None:
        self.llm = llm
        self.store = agl.InMemoryLightningStore()
        models = [
            {
                "model_name": name,
                "litellm_params": {"model": f"hosted_vllm/{name}", "api_base": llm.url},
            }
            for name in ("policy", *others)
        ]
        self.proxy = agl_gateway.LLMProxy(model_list=models, store=self.store)

    async def run(self, agent: agl.LitAgent[Any], task: Any) -> Outcome:
        """One rollout in mode ``train``, as a runner does it."""
        update = await self.store.add_resources(
            {"main_llm": self.proxy.as_resource(model="policy")}
        )
        rollout = await self.store.enqueue_rollout(task, "train", update.resources_id)
        runner = agl.LitAgentRunner(agl.OtelTracer(), max_rollouts=1)
        with runner.run_context(agent=agent, store=self.store):
            await runner.iter()
        await self.proxy.flush()
        (ended,) = await self.store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        spans = await self.store.query_spans(rollout.rollout_id)
        return Outcome(ended, list(spans))


Start = Callable[..., Any]


def debug_alone(script: Path, reply: Callable[[dict[str, Any]], Any]) -> list[str]:
    """Run an agent's own script against a scripted model; gives the lines that it prints."""
    with EchoLLM(reply) as llm:
        done = run_script(script, OPENAI_BASE_URL=llm.url, AGENT_MODEL="echo")
    return done.stdout.splitlines()


def run_script(
    script: Path, *arguments: object, code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script of an example, which has to exit with ``code``."""
    done = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        env=environment(**variables),
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr[-5000:]
    return done


def environment(**variables: str) -> dict[str, str]:
    """For a script as a process: nothing of this machine's keys and addresses."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AGL_", "AZURE_", "CHARTQA_", "OPENAI_", "USE_LLM_PROXY", "VERL_"))
    }
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables}
