"""The same seed, the same run: whoever runs it, however many they are, whoever comes first."""

import asyncio
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests import fork_server
from tests.digests import digests
from tests.interpreter import python
from tests.stores import opened

import agl
from agl.errors import AlgorithmError
from agl.semconv import ModelCallAttributes as Key

for module in ("torch", "transformers", "openai"):
    pytest.importorskip(module)

SCRIPT = Path(__file__).with_name("seeded_run.py")
TOKENS = (Key.PROMPT_TOKEN_IDS.value, Key.RESPONSE_TOKEN_IDS.value, Key.RESPONSE_LOGPROBS.value)


def run(folder: Path, runners: int, **options: object) -> Path:
    """A run in processes of its own; its folder."""
    out = folder / f"runners-{runners}"
    command = [SCRIPT, str(out), json.dumps({"algorithm": "grpo", "runners": runners, **options})]
    # One runner has a seed of hashes of its own.
    ended = python(*command) if runners == 1 else fork_server.run(command, timeout=850.0)
    assert ended.returncode == 0, ended.stderr
    return out


def result(out: Path) -> tuple[list[float], list[list[float]], str]:
    """Rewards per step, rewards of evaluations, digest of the weights."""
    summary = json.loads((out / "run/summary.json").read_text())
    weights = Path(summary.get("checkpoint") or summary["model"]) / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return summary["rewards"], summary["val_rewards"], digest


async def asked(out: Path) -> list[dict]:
    """Per rollout, in the order of requests: what was asked, and of each call seed and tokens."""
    async with opened(out / "store.db") as store:
        rollouts = await store.query_rollouts()
        spans = [await store.query_spans(rollout.rollout_id) for rollout in rollouts]
    return [
        {
            "task": rollout.input,
            "place": (rollout.mode, rollout.metadata["step"], rollout.metadata["group"]),
            "seed": rollout.metadata["seed"],
            "calls": [
                (span.attributes["gen_ai.request.seed"], [span.attributes[key] for key in TOKENS])
                for span in of_rollout
                if Key.OPERATION in span.attributes
            ],
        }
        for rollout, of_rollout in zip(rollouts, spans, strict=True)
    ]


@pytest.mark.nightly  # a step of GRPO trained again: tests/plugins/torch/test_replay.py
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "options",
    [
        *({"steps": 2}, {"steps": 2, "algorithm": "ppo", "kl": 1e-3}),
        *({"steps": 2, "algorithm": name} for name in ("cispo", "gspo", "reinforce++", "rloo")),
        {"steps": 40, "groups_per_step": 8, "epochs": 4},
        {"steps": 4, "server": {"max_batch_size": 1}},
        *({"algorithm": name, "iterations": 2} for name in ("sft", "dpo")),
    ],
    ids=str,
)
def test_runs_of_1_2_and_4_runners_and_steps_trained_again_are_equal_bit_for_bit(tmp_path, options):
    options = {"deterministic": True, **options}
    with ThreadPoolExecutor(3) as pool:  # side by side, so that none has the machine for itself
        first, *others = pool.map(lambda count: run(tmp_path, count, **options), (1, 2, 4))
    assert len({*result(first)[0]}) > 1
    calls = asyncio.run(asked(first))
    for other in others:
        assert asyncio.run(asked(other)) == calls
        assert result(other) == result(first)
    before = digests(first / "run")
    for step in (1, 2):
        arguments = {"algorithm": "grpo", "runners": 1, **options, "replay": step}
        ended = fork_server.run([SCRIPT, first, json.dumps(arguments)])
        assert ended.returncode == 0, ended.stderr
        found = json.loads(ended.stdout)
        assert found["is_exact"]
        same = {one["what"]: one["same"] for one in found["compared"]}
        assert same[f"weights after step {step}"]
        assert set(same.values()) == {True}
    assert digests(first / "run") == before


@pytest.mark.timeout(60)
def test_more_steps_change_no_rate_of_before_and_a_replay_has_the_options_of_its_step(
    tmp_path, caplog
) -> None:
    import agl_torch
    from agl_runs.replay import replay as train_again

    from .table_model import TINY, word_of

    class Dies(agl.Hook):
        def on_step_end(self, step: int) -> None:
            if step == 3 and not resumed:
                raise OSError("the machine dies")

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        return float(len(await word_of(llm, task, logprobs=True)))

    def trainer(**options: Any) -> agl.Trainer:
        given = {**TINY, "groups_per_step": 1, "checkpoints": 2, "deterministic": True}
        schedule = {"schedule": "linear", "resource_name": "llm"}
        algorithm = agl_torch.GRPO(**{**given, **schedule, "learning_rate": 1e-2, **options})
        about = {"run_dir": tmp_path / "run", "hooks": [Dies()], "force": "epochs" in options}
        return agl.Trainer(algorithm=algorithm, store=store, strategy="shm", **about)

    def differs(step: int, **options: Any) -> Any:
        found = train_again(trainer(**options), agent, step)
        return found.notes, found.first_difference and found.first_difference.what

    store, resumed = agl.InMemoryLightningStore(), []
    with pytest.raises(AlgorithmError, match="machine dies"):
        trainer(steps=4).fit(agent, ["one"])
    resumed.append(True)
    trainer(steps=8).fit(agent, ["one"])
    assert "goes on after step 2 as what it was not: steps: 4 then, 8 now" in caplog.text
    trainer(steps=10, epochs=2).fit(agent, ["one"])
    for step in (1, 3, 8, 9):
        assert differs(step, steps=10, epochs=2) == ([], None)
    notes, what = differs(1, steps=10, epochs=2, learning_rate=1e-3)
    assert (notes, what) != ([], None)
    assert "learning_rate: 0.01 then, 0.001 now" in notes[0]
