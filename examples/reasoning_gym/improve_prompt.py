"""GEPA on the agent's prompt; the model that answers also thinks of better prompts.

    agl serve "$(agl model get smollm2)" --name smollm2 --max-model-tokens 1536 &
    python improve_prompt.py [--url http://127.0.0.1:8000/v1] [--model smollm2]

No weights change. Give the address and names of better models, and the key in OPENAI_API_KEY, to
see what they find.
"""

import argparse
import os
import time
from pathlib import Path

from solver import PROMPT, at_least, check_packages, solver, split_tasks

import agl


def main() -> None:
    """Search a prompt on the training tasks, and decide on the held-out ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="of the models")
    parser.add_argument("--model", default="smollm2", help="answers the puzzles")
    parser.add_argument("--reflecting-model", default="smollm2", help="writes prompts")
    parser.add_argument("--max-evaluations", type=at_least(1), default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the run; one that was killed goes on")
    given = parser.parse_args()
    check_packages("openai", "reasoning-gym==0.1.25")
    out = given.out or Path("agl-runs") / time.strftime("reasoning-gym-gepa-%Y%m%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)
    key = os.environ.get("OPENAI_API_KEY", "none")
    algorithm = agl.GEPA(
        base_url=given.url,
        api_key=key,
        reflection_model=given.reflecting_model,
        max_evaluations=given.max_evaluations,
        seed=given.seed,
    )
    backend = {"model": f"hosted_vllm/{given.model}", "api_base": given.url, "api_key": key}
    gateway = agl.LLMProxy(model_list=[{"model_name": given.model, "litellm_params": backend}])
    train, held_out = split_tasks(10, 50, given.seed)
    agl.Trainer(
        algorithm=algorithm,
        adapter=agl.TraceToMessages(),
        llm_proxy=gateway,  # records what was said, which the reflecting model reads
        initial_resources={"prompt": PROMPT},
        store=agl.SqliteLightningStore(out / "store.db"),
        run_dir=out,
        strategy="shm",
        n_runners=1,
        concurrency=32,
    ).fit(solver, train, val_dataset=held_out)
    assert algorithm.result is not None
    decision = algorithm.result.decision
    print(decision.verdict if decision else "no prompt was better than the first one in the search")
    print(algorithm.get_best_prompt().template)


if __name__ == "__main__":
    main()
