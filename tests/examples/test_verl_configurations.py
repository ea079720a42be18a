"""What the examples write down for verl is taken: it refuses keys that verl does not have."""

from importlib import import_module
from typing import Any

import pytest

import agl

pytest.importorskip("agl_verl")

CONFIGURATIONS = {
    "calc_x": ("train_calc_agent", ["some/model"]),
    "chartqa": ("train_chartqa_agent", ["debug", "qwen"]),
    "rag": ("train_rag", ["some/model"]),
    "search_r1": ("train_search_r1_agent", ["llama", "qwen"]),
    "spider": ("train_sql_agent", ["qwen", "llama", "fast", "npu"]),
    "tinker": ("q20_train", ["qwen4b", "qwen30b"]),
}
"""Example -> its script, and the models or profiles of it."""
NEEDS = {
    "calc_x": ("autogen_agentchat", "autogen_ext", "mcp"),
    "chartqa": ("langchain_openai", "langgraph", "matplotlib", "pyarrow"),
    "rag": ("agents", "mcp"),
    "spider": ("langgraph", "langchain_openai"),
    "tinker": ("agl_tinker", "tinker", "transformers"),
}


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize(
    ("example", "which"), [(one, each) for one, (_, all) in CONFIGURATIONS.items() for each in all]
)
def test_configuration_is_taken_by_verl(example: str, which: str, gpus: int, use_example: Any):
    for module in NEEDS.get(example, ()):
        pytest.importorskip(module)
    use_example(example)
    config = import_module(CONFIGURATIONS[example][0]).verl_config(which, gpus)
    agl.VERL(config)
    if example == "spider":
        size = config["data"]["train_batch_size"]
        assert size <= 69, "the small set has as many as a step needs"
        # Each task's rollouts make whole mini-batches on each GPU.
        assert size * config["actor_rollout_ref"]["rollout"]["n"] % gpus == 0
