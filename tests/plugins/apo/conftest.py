"""The planted problem of the benchmark, its proposer behind a real address, and a way to train."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import agl
from agl_testing.echo_llm import EchoLLM

pytest.importorskip("agl_apo")

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="session")
def world() -> ModuleType:
    """``benchmarks/apo_world.py``."""
    name = "apo_world"
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def proposer(world: ModuleType) -> Iterator[EchoLLM]:
    """Critic, editor and reflector, scripted."""
    with EchoLLM(world.Proposer(1, repeatable=True)) as llm:
        yield llm


@pytest.fixture
def worker(world: ModuleType) -> agl.LitAgent[Any]:
    """The planted worker; the same evaluation always has the same reward."""

    @agl.rollout
    async def planted(
        task: dict[str, Any], prompt_template: agl.PromptTemplate, rollout: agl.Rollout
    ) -> float:
        prompt_template.format(**task)
        place = (rollout.metadata or {})["prompts"]
        draw = (place["candidate"], place["split"], place["position"])
        return world.reward(prompt_template.template, task, *draw)

    return planted


@pytest.fixture
def fit(world: ModuleType) -> Callable[..., Any]:
    """Train an agent on the planted tasks in threads; returns the algorithm."""

    def run(algorithm, agent, *, store=None, resources=None, train=None, val=None, **options):
        store = store or agl.InMemoryLightningStore()
        if resources is None:
            resources = {"prompt_template": agl.PromptTemplate(template=world.SEED_PROMPT)}
        places = {"store": store, "initial_resources": resources, **options}
        train = world.make_tasks(1, 28, "train") if train is None else train
        val = world.make_tasks(1, 29, "val") if val is None else val
        trainer = agl.Trainer(algorithm=algorithm, strategy="shm", n_runners=1, **places)
        run.result = trainer.fit(agent, train, val_dataset=val)
        return algorithm

    return run


@pytest.fixture
def options(proposer: EchoLLM, tmp_path: Path) -> dict[str, Any]:
    """Small options of APO that reach the optimum of the planted problem."""
    models = {"gradient_model": "critic", "apply_edit_model": "editor"}
    sizes = {"beam_width": 2, "branch_factor": 3, "beam_rounds": 3}
    places = {"base_url": proposer.url, "api_key": "none", "run_dir": str(tmp_path / "best")}
    return {**models, **sizes, **places}
