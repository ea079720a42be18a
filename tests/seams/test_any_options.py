"""Whatever options meet, every call that an agent made is in one bin, or the options are refused.

Cases, algorithms and options are drawn.
"""

import asyncio
import inspect
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings, strategies as st

import agl
from agl.errors import AlgorithmError, ConfigError
from agl_records.ledger.tables import Accounts

from .scripted import CASES, Conversation, Script

pytest.importorskip("torch")

import agl_torch

from .table_model import build_model
from .test_table_grpo import ALGORITHMS, train as train_cases

STEPS = 2
ADAPTERS = st.fixed_dictionaries(
    {"type": st.just("rows")},
    optional={
        "agent_match": st.just("writer"),
        "truncated": st.sampled_from(["train", "mask", "exclude"]),
        "credit": st.sampled_from(["final", "per_call", "per_agent", "discounted", "stepwise"]),
        "max_length": st.sampled_from([4, 8]),
    },
)
VALUES: dict[str, list[Any]] = {
    **{"checkpoints": [{"every": 1}], "deterministic": [True], "dtype": ["bfloat16"]},
    **{"entropy_bonus": [0.01], "epochs": [2], "group_size": [1, 2], "groups_per_step": [2, 3]},
    "estimator": ["grpo", "rloo", {"normalise_std": False}],
    "evaluation": [{"copies": 2, "temperature": 1.0}, {"every": 1}],
    "memory": [{"gradient_checkpointing": True}, {"microbatch_tokens": 8}],
    "failures": ["keep", "drop_group", {"agent": "penalise", "penalty": -1.0}],
    **{"kl": [0.1], "lora": [{"rank": 2}], "loss": ["grpo"], "max_refills": [1]},
    **{"max_staleness": [1], "max_tokens": [1, 3], "minibatch_rows": [1], "overlong": [1]},
    "schedule": ["linear", "cosine"],
}
TOGETHER = {"overlong": {"max_tokens": 3}}
"""What an option needs beside it, as a person would know."""


HALFWAY = ("infrastructure failed all", "apart. Use the rule 'final'")
ENDS = ("nothing could be trained", *HALFWAY)
"""What an error says of a run that cannot go on: the judge is out of order, or the credits of one
rollout differ, where the estimator takes one reward for all of it."""


@st.composite
def drawn_options(draw: st.DrawFn) -> dict[str, Any]:
    """A few of them, so that few are refused."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=6, unique=True))
    options = {name: draw(st.sampled_from(VALUES[name])) for name in names}
    for name in names:
        options |= TOGETHER.get(name, {})
    return options


class Counted(Script):
    """Knows how many choices of a model its agents were given, or were refused."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def converse(self, llm: agl.LLM, task: dict[str, Any], copy: int) -> Conversation:
        script = self

        class Talk(Conversation):
            async def ask(self, **options: Any) -> tuple[int, dict[str, Any]]:
                status, answer = await super().ask(**options)
                script.asked += options.get("n", 1)
                return status, answer

        return Talk(llm, task)


def train(folder: Path, kind: str, cases: list[str], adapter: Any, options: Any):
    """A run, and whether it ended by itself; one that can train nothing fails with the reason."""
    script, store = Counted(), agl.InMemoryLightningStore()
    known = inspect.signature(getattr(agl_torch, kind)).parameters
    given = {name: value for name, value in options.items() if name in known}
    given |= {"teacher": build_model} if kind == "Distillation" else {}
    given |= {"script": script, "store": store, "val": "evaluation" in options, "steps": STEPS}
    try:
        train_cases(folder, cases, adapter=adapter, algorithm=kind, **given)
    except AlgorithmError as error:
        [ended] = [name for name in ENDS if name in str(error)]
        event(ended)
        return script, store, ended not in HALFWAY
    return script, store, True


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_books(kind: str, cases: list[str], adapter: Any, options: Any) -> None:
    """Run, and compare what agents asked, the accounts in the store, and the metrics."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            script, store, is_whole = train(folder, kind, cases, adapter, options)
        except ConfigError as error:
            if not any(name in str(error) for name in {*options, *adapter, "teacher"}):
                raise
            event(f"refused: {str(error)[:90]}")
            return
        lines = read_metrics(folder / "run") if is_whole else []
    accounts = asyncio.run(Accounts.read(store))
    assert accounts.problems == []
    if not is_whole:  # what failed runs again when the run goes on, and is in no account till then
        assert accounts.without > 0
        return
    assert accounts.without == 0
    calls = accounts.total["calls", "total"]
    bins = sum(n for (of, bin), n in accounts.total.items() if of == "calls" and bin != "total")
    assert calls == bins
    # A rollout for a step that did not come is cancelled, maybe while its model answers.
    assert script.asked == calls or ("max_staleness" in options and script.asked > calls)
    trained = [line["calls/trained"] for line in lines if "calls/trained" in line]
    assert sum(trained) == accounts.total["calls", "trained"]
    for line in lines:
        prefix = "val/" if "val/calls/total" in line else ""
        left = [n for key, n in line.items() if key.startswith(f"{prefix}calls/excluded/")]
        total = line.get(f"{prefix}calls/trained", 0) + sum(left)
        assert line.get(f"{prefix}calls/total", 0) == total


MANY = pytest.param(200, marks=[pytest.mark.nightly, pytest.mark.timeout(2400)])


@pytest.mark.parametrize("examples", [8, MANY])
def test_every_call_is_in_one_bin_whatever_options_meet(examples):
    drawn = given(
        kind=st.sampled_from(sorted(ALGORITHMS)),
        cases=st.lists(st.sampled_from(CASES), min_size=1, max_size=3),
        adapter=ADAPTERS,
        options=drawn_options(),
    )
    # An example takes a second or two: the first one that fails is shown.
    phases = [Phase.explicit, Phase.generate]
    checks = list(HealthCheck)
    limits = settings(max_examples=examples, suppress_health_check=checks, phases=phases)
    limits(drawn(check_books))()
