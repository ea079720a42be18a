"""A real prompt run on a planted problem: ``python prompt_run.py apo FOLDER``, or ``gepa``."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import agl
from agl_testing.echo_llm import EchoLLM

WORLD = Path(__file__).parents[3] / "benchmarks/apo_world.py"


def planted_world():
    """``benchmarks/apo_world.py``: tasks, and what a prompt is worth on each."""
    spec = importlib.util.spec_from_file_location("apo_world", WORLD)
    module = importlib.util.module_from_spec(spec)
    sys.modules["apo_world"] = module
    spec.loader.exec_module(module)
    return module


def main(name: str, folder: Path) -> None:
    """Run it to its end; the store is ``store.db`` in the folder."""
    world = planted_world()
    options = {
        "apo": {
            "gradient_model": "critic",
            "apply_edit_model": "editor",
            "beam_width": 2,
            "branch_factor": 3,
            "beam_rounds": 3,
        },
        "gepa": {"reflection_model": "reflect", "max_evaluations": 500},
    }[name]

    @agl.rollout
    async def planted(task: dict, prompt_template: agl.PromptTemplate, rollout: agl.Rollout):
        prompt_template.format(**task)
        place = rollout.metadata["prompts"]
        draw = (place["candidate"], place["split"], place["position"])
        return world.reward(prompt_template.template, task, *draw)

    with EchoLLM(world.Proposer(1, repeatable=True)) as llm:
        store = agl.SqliteLightningStore(folder / "store.db", durability="process")
        agl.Trainer(
            algorithm={"type": name, "base_url": llm.url, "api_key": "none", **options},
            strategy="shm",
            n_runners=1,
            store=store,
            run=name,
            run_dir=folder,
            initial_resources={"prompt_template": agl.PromptTemplate(template=world.SEED_PROMPT)},
        ).fit(planted, world.make_tasks(1, 28, "train"), val_dataset=world.make_tasks(1, 29, "val"))
        asyncio.run(store.close())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
