"""APO of agentlightning 0.3.0 on the planted problem; ``benchmarks/apo.py`` starts it.

It runs in an interpreter that has agentlightning, through its public interface: the algorithm, a
runner, a store in memory. After each evaluation it is asked for its best prompt, as a user could.
Its waiting between polls is shortened: evaluations are counted, not seconds.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from apo_world import SEED_PROMPT, make_tasks, quality, reward
from openai import AsyncOpenAI

import agentlightning as agl
from agentlightning.algorithm.apo import APO

_sleep = asyncio.sleep


async def _short_sleep(delay: float, result: Any = None) -> Any:
    return await _sleep(min(delay, 0.02), result)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """One run: its evaluations, the worth of the best prompt after each, and at the end."""
    algorithm = APO(
        AsyncOpenAI(base_url=options.url, api_key="none"),
        gradient_model="critic",
        apply_edit_model="editor",
        beam_rounds=options.rounds,
        **json.loads(options.sizes),
    )
    curve: list[tuple[int, float]] = []
    done = 0

    def best() -> str:
        try:
            return algorithm.get_best_prompt().template
        except Exception:
            return SEED_PROMPT

    @agl.rollout
    async def worker(task: dict[str, Any], prompt_template: agl.PromptTemplate) -> float:
        nonlocal done
        done += 1
        curve.append((done, quality(best())))
        return reward(prompt_template.template, task, options.seed, done)

    store = agl.InMemoryLightningStore()
    tracer = agl.OtelTracer()
    runner = agl.LitAgentRunner(tracer)
    algorithm.set_store(store)
    adapter = agl.TraceToMessages()  # the algorithm holds it by a weak reference
    algorithm.set_adapter(adapter)
    algorithm.set_initial_resources(
        {"prompt_template": agl.PromptTemplate(template=SEED_PROMPT, engine="f-string")}
    )
    train, val = (make_tasks(options.seed, n, kind) for n, kind in ((28, "train"), (29, "val")))
    with runner.run_context(agent=worker, store=store):
        serving = asyncio.create_task(runner.iter())
        await algorithm.run(train, val)
        serving.cancel()
    final = best()
    curve.append((done, quality(final)))
    return {
        "evaluations": done,
        "curve": curve,
        "final": quality(final),
        "replaced": final != SEED_PROMPT,
    }


def main() -> None:
    """Write the result of one run, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--sizes", required=True)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    asyncio.sleep = _short_sleep
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever it prints is no result
    result = asyncio.run(run(options))
    print(json.dumps(result), file=out, flush=True)
    os._exit(0)  # its threads do not matter any more


if __name__ == "__main__":
    sys.exit(main())
