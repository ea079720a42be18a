"""Claude Code on SWE-bench, with every model call in agl's store.

    python claude_code_agent.py scripted --output-dir data_debug          # no model: the line runs

    vllm serve Qwen/Qwen3-Coder-30B-A3B-Instruct --max-model-len 131072 \
        --enable-auto-tool-choice --tool-call-parser qwen3_coder
    python claude_code_agent.py vllm \
        --backend-model-high Qwen/Qwen3-Coder-30B-A3B-Instruct \
        --backend-model-low Qwen/Qwen3-Coder-30B-A3B-Instruct \
        --base-url http://localhost:8000/v1 --output-dir data_debug --max-turns 5 --limit 2
    python claude_code_agent.py openai --backend-model-high gpt-4.1 \
        --backend-model-low gpt-4.1-mini --output-dir data_openai       # OPENAI_API_KEY is set
    python claude_code_agent.py anthropic --output-dir data_anthropic   # ANTHROPIC_API_KEY is set

Claude Code asks for the frontend models; the gateway, which speaks Anthropic's API, forwards to the
backend models. See README.md for what is written where.
"""

import argparse
import asyncio
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from claude_code_controller import ClaudeCodeController, find_claude
from extended_adapter import ExtendedLlmProxyTraceToTriplet, rows_of
from swebench_utils.dataset import SwebenchTask, load_swebench_dataset
from swebench_utils.evaluation import evaluate
from swebench_utils.workspace import open_workspace

import agl

FOLDER = Path(__file__).parent
BACKENDS = ("vllm", "openai", "anthropic", "scripted")


class ClaudeCodeAgent(agl.LitAgent[SwebenchTask]):
    """Does one instance: a workspace, Claude Code in it, and the patch that it leaves.

    Args:
        model_high: What Claude Code asks for in general.
        model_low: What it asks for in side tasks.
        max_turns: Model calls with tools, at most.
        log_dir: Where what it printed goes: ``<instance_id>/``.
        timeout: Seconds of one instance.
    """

    def __init__(
        self,
        model_high: str,
        model_low: str,
        max_turns: int,
        log_dir: Path,
        timeout: float = 1800.0,
    ) -> None:
        super().__init__()
        self.model_high, self.model_low, self.max_turns = model_high, model_low, max_turns
        self.log_dir, self.timeout = log_dir, timeout

    def rollout(
        self, task: SwebenchTask, resources: agl.NamedResources, rollout: agl.Rollout
    ) -> str:
        """The patch."""
        llm = resources["main_llm"]
        assert isinstance(llm, agl.ProxyLLM)
        assert isinstance(rollout, agl.AttemptedRollout)
        opened = llm.with_attempted_rollout(rollout)
        claude = find_claude()
        controller = ClaudeCodeController(
            claude=claude,
            base_url=opened.endpoint,
            api_key=opened.api_key or "none",
            model_high=self.model_high,
            model_low=self.model_low,
            max_turns=self.max_turns,
            timeout=self.timeout,
        )
        workspace = open_workspace(task["instance"], claude)
        try:
            outcome = controller.solve(task["problem_statement"], workspace)
        finally:
            workspace.close()
        folder = self.log_dir / task["instance_id"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "output.json").write_text(outcome.output, encoding="utf-8")
        (folder / "errors.txt").write_text(outcome.errors, encoding="utf-8")
        (folder / "hooks.json").write_text(json.dumps(outcome.hooks, indent=1), encoding="utf-8")
        (folder / "patch.diff").write_text(outcome.patch, encoding="utf-8")
        if outcome.timed_out:
            agl.emit_message(f"Claude Code was ended after {self.timeout:g} seconds")
        return outcome.patch

    def grade(self, task: SwebenchTask, private: dict[str, Any], result: str) -> float:
        """1 when the hidden tests pass. Called in a process of its own."""
        return float(evaluate(task["instance"], private, str(result))["resolved"])


class Collect(agl.Algorithm):
    """Runs each instance once, and writes what became of it; trains nothing.

    Args:
        output_dir: See README.md.
        has_token_ids: Write data sets of tokens, too.
        cooldown_seconds: Between two instances.
    """

    def __init__(self, output_dir: Path, has_token_ids: bool, cooldown_seconds: float) -> None:
        self.output_dir, self.has_token_ids = output_dir, has_token_ids
        self.cooldown_seconds = cooldown_seconds
        self.rewards: dict[str, float | None] = {}

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        """One instance after the other."""
        proxy, store = self.get_llm_proxy(), self.get_store()
        assert proxy is not None
        # Claude Code says itself which of the models it wants.
        llm = proxy.as_resource(model=proxy.model_names[0])
        await store.add_resources({"main_llm": llm})
        for number, task in enumerate(train_dataset):
            if number:
                await asyncio.sleep(self.cooldown_seconds)
            rollout = await store.enqueue_rollout(task, "train")
            ended = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
            if not ended:
                raise RuntimeError(f"rollout {rollout.rollout_id} was deleted before it had ended")
            await self._write(task["instance_id"], ended[0], store)

    async def _write(
        self, instance_id: str, rollout: agl.Rollout, store: agl.LightningStore
    ) -> None:
        spans = list(await store.query_spans(rollout.rollout_id, "latest"))
        reward = agl.find_final_reward(spans)
        self.rewards[instance_id] = reward
        dumped = [span.model_dump(mode="json") for span in spans]
        self.output_dir.mkdir(parents=True, exist_ok=True)
        path = self.output_dir / f"stream_{instance_id}.json"
        path.write_text(json.dumps(dumped, indent=1), encoding="utf-8")
        triplets = ExtendedLlmProxyTraceToTriplet().adapt(spans) if spans else []
        print(f"{instance_id}  {rollout.status}  reward {reward}  {len(triplets)} model calls")
        result = {"instance_id": instance_id, "status": rollout.status, "reward": reward}
        with (self.output_dir / "results.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({**result, "rollout_id": rollout.rollout_id}) + "\n")
        if self.has_token_ids and triplets:
            from datasets import Dataset

            rows = Dataset.from_list(rows_of(triplets, reward))
            rows.save_to_disk(str(self.output_dir / f"dataset-{instance_id}"))


def model_list(backend: str, models: dict[str, str], base_url: str | None) -> list[Any]:
    """For the gateway: what Claude Code asks for -> where that is.

    Args:
        backend: ``vllm``, ``openai`` or ``anthropic``.
        models: Frontend name -> backend name.
        base_url: Of the backend; None for the public address of OpenAI or Anthropic.
    """
    prefix = {"vllm": "hosted_vllm", "openai": "openai", "anthropic": "anthropic"}[backend]
    if backend == "openai":
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    key = os.environ.get(f"{prefix.upper()}_API_KEY")
    params = {**({"api_base": base_url} if base_url else {}), **({"api_key": key} if key else {})}
    return [
        {"model_name": front, "litellm_params": {"model": f"{prefix}/{back}", **params}}
        for front, back in models.items()
    ]


def main() -> int:
    """Read the command line, run the instances, and say how many are solved."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("--frontend-model-high", default="claude-sonnet-4-5-20250929")
    parser.add_argument("--frontend-model-low", default="claude-haiku-4-5-20251001")
    parser.add_argument("--backend-model-high", help="default: of anthropic, the frontend's")
    parser.add_argument("--backend-model-low", help="default: that of --backend-model-high")
    parser.add_argument("--base-url", help="of the backend")
    parser.add_argument("--dataset-path", default=str(FOLDER / "swebench_samples.jsonl"))
    parser.add_argument("--output-dir", type=Path, default=Path("data_debug"))
    parser.add_argument("--max-turns", type=int, default=5)
    parser.add_argument("--cooldown-seconds", type=float, default=0.0)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds of an instance")
    parser.add_argument("--limit", type=int, help="so many instances")
    options = parser.parse_args()
    agl.setup_logging("WARNING")
    high, low = options.backend_model_high, options.backend_model_low
    if options.backend == "anthropic":
        high = high or options.frontend_model_high
        low = low or options.frontend_model_low
    elif options.backend == "scripted":
        high = "scripted"
    elif not high or (options.backend == "vllm" and not options.base_url):
        parser.error("vllm and openai need --backend-model-high, and vllm --base-url")
    models = {options.frontend_model_high: high, options.frontend_model_low: low or high}
    tasks = load_swebench_dataset(options.dataset_path, options.limit)
    algorithm = Collect(
        options.output_dir, options.backend in ("vllm", "scripted"), options.cooldown_seconds
    )
    agent = ClaudeCodeAgent(
        options.frontend_model_high,
        options.frontend_model_low,
        options.max_turns,
        options.output_dir.resolve() / "logs",
        options.timeout,
    )
    with ExitStack() as stack:
        backend, base_url = options.backend, options.base_url
        if backend == "scripted":
            from scripted_llm import scripted_reply

            from agl_testing.echo_llm import EchoLLM

            backend, base_url = "vllm", stack.enter_context(EchoLLM(scripted_reply)).url
        trainer = agl.Trainer(
            algorithm=algorithm,
            strategy={"type": "shm", "main_thread": "algorithm"},
            llm_proxy=agl.LLMProxy(model_list=model_list(backend, models, base_url)),
        )
        trainer.fit(agent, tasks)
    rewards = list(algorithm.rewards.values())
    print(f"{sum(reward == 1 for reward in rewards)} of {len(rewards)} instances are solved")
    return 0 if len(rewards) == len(tasks) else 1


if __name__ == "__main__":
    sys.exit(main())
