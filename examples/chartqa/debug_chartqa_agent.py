r"""Answer a few questions about charts, with a model elsewhere or on this machine; no training.

    python debug_chartqa_agent.py --scripted              # no model: the line runs once
    OPENAI_API_KEY=... python debug_chartqa_agent.py      # OpenAI, or OPENAI_API_BASE=...
    USE_LLM_PROXY=1 OPENAI_API_BASE=http://localhost:8088/v1 \
        OPENAI_MODEL=Qwen/Qwen2-VL-2B-Instruct python debug_chartqa_agent.py

With ``USE_LLM_PROXY=1`` calls go through agl's gateway to a server on this machine, which gets the
addresses of picture files and not the pictures; what was recorded is said for each rollout.
"""

import argparse
import asyncio
import sys
from contextlib import ExitStack

from chart_tasks import ChartTask, load_tasks
from chartqa_agent import LitChartQAAgent
from env_var import openai_base, openai_key, openai_model, uses_llm_proxy
from scripted_llm import scripted_reply

import agl

OPENAI = "https://api.openai.com/v1"


async def ask_directly(tasks: list[ChartTask], llm: agl.LLM) -> None:
    """The agent alone: no trainer, no runner, no store."""
    agent = LitChartQAAgent()
    for task in tasks:
        answer = await agent.answer(task, llm)
        show(task, answer, agent.grade(task, task["private"], answer))


def show(task: ChartTask, answer: str, reward: float | None) -> None:
    """A line on what was asked and what came."""
    print(f"{'no reward' if reward is None else f'{reward:g}'}  {task['question']}  {answer}")


async def ask_through_gateway(tasks: list[ChartTask], model: str, base: str) -> None:
    """Each task as a rollout, through store, gateway and runner."""
    from agl_adapters import TraceToRows

    store = agl.InMemoryLightningStore()
    backend = {"model": f"hosted_vllm/{model}", "api_base": base}
    if key := openai_key():
        backend["api_key"] = key
    proxy = agl.LLMProxy(model_list=[{"model_name": model, "litellm_params": backend}], store=store)
    await proxy.start()
    try:
        await store.add_resources({"main_llm": proxy.as_resource()})
        agent = LitChartQAAgent(image_urls="file")
        runner = agl.LitAgentRunner(agl.OtelTracer(), max_rollouts=len(tasks))
        rollouts = [await store.enqueue_rollout(task, "train") for task in tasks]
        with runner.run_context(agent=agent, store=store):
            await runner.iter()
        await proxy.flush()
        for task, rollout in zip(tasks, rollouts, strict=True):
            spans = list(await store.query_spans(rollout.rollout_id))
            reward = agl.find_final_reward(spans)
            rows = TraceToRows().adapt(spans).rows
            with_images = sum(bool(row.images) for row in rows)
            show(task, f"{len(rows)} rows, {with_images} with a chart", reward)
    finally:
        await proxy.stop()


def main() -> int:
    """Read the command line and the environment, and ask."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--scripted", action="store_true", help="without any model")
    options = parser.parse_args()
    tasks = load_tasks()[1][: options.tasks]
    with ExitStack() as stack:
        if options.scripted:
            from agl_testing.echo_llm import EchoLLM

            base = stack.enter_context(EchoLLM(scripted_reply)).url
            model = "scripted"
        else:
            base, model = openai_base() or OPENAI, openai_model("gpt-4.1-mini")
            if base == OPENAI and not openai_key():
                parser.error("set OPENAI_API_KEY, or OPENAI_API_BASE, or take --scripted")
        if uses_llm_proxy():
            asyncio.run(ask_through_gateway(tasks, model, base))
        else:
            llm = agl.LLM(endpoint=base, model=model, api_key=openai_key())
            asyncio.run(ask_directly(tasks, llm))
    return 0


if __name__ == "__main__":
    sys.exit(main())
