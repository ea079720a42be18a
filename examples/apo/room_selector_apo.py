"""Optimise the prompt of the room selector with APO: ``python room_selector_apo.py``.

The models are reached at ``OPENAI_BASE_URL`` with ``OPENAI_API_KEY``. The agent's calls go through
agl's gateway, which records them, so that critiques see the conversations.
"""

import argparse
import os

from openai import AsyncOpenAI
from room_selector import load_tasks, prompt_template_baseline, room_selector

import agl


def main() -> None:
    """Train, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt-5-mini", help="of the agent")
    parser.add_argument("--gradient-model", default="gpt-5-mini")
    parser.add_argument("--edit-model", default="gpt-4.1-mini")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--runners", type=int, default=8)
    parser.add_argument("--store", default="room_selector.db", help="continued if it is there")
    options = parser.parse_args()
    agl.setup_logging("INFO")

    openai = AsyncOpenAI()
    algorithm = agl.APO(
        openai,
        gradient_model=options.gradient_model,
        apply_edit_model=options.edit_model,
        val_batch_size=10,
        gradient_batch_size=4,
        beam_width=2,
        branch_factor=2,
        beam_rounds=options.rounds,
    )
    backend = {
        "model": f"hosted_vllm/{options.model}",
        "api_base": str(openai.base_url),
        "api_key": os.environ["OPENAI_API_KEY"],
    }
    trainer = agl.Trainer(
        algorithm=algorithm,
        n_runners=options.runners,
        initial_resources={"prompt_template": prompt_template_baseline()},
        adapter=agl.TraceToMessages(),
        llm_proxy=agl.LLMProxy(
            model_list=[{"model_name": options.model, "litellm_params": backend}]
        ),
        store=agl.SqliteLightningStore(options.store),
    )
    train, val = load_tasks()
    trainer.fit(room_selector, train, val_dataset=val)
    result = algorithm.result
    assert result is not None
    print(f"accepted: {result.accepted}; {result.evaluations} evaluations")
    if result.decision is not None:
        decision = result.decision
        print(f"gain {decision.gain:+.3f}, from {decision.lower:+.3f} to {decision.upper:+.3f}")
    print(algorithm.get_best_prompt().template)


if __name__ == "__main__":
    main()
