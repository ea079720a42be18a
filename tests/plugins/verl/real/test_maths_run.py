"""In whole runs of the real verl, what a step trains on is what NumPy has.

The agent of ``digits.py`` makes two calls per rollout, here a row each; a share of its rollouts
crash, so groups differ in size and verl fills batches up with rows of padding.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl")

import maths_reference as ref
import running

REFERENCES: dict[str, Any] = {
    "dr_grpo": partial(ref.grpo, normalise=False),
    "gpg": ref.gpg,
    "grpo": ref.grpo,
    "grpo_passk": ref.grpo_passk,
    "gspo": ref.grpo,
    "opo": ref.opo,
    "optimal_token_baseline": ref.optimal_token_baseline,
    "ppo": partial(ref.gae, gamma=0.9, lam=0.8),
    "reinforce++": partial(ref.reinforce_plus_plus, gamma=0.9),
    "reinforce++-baseline": ref.reinforce_plus_plus_baseline,
    "rloo": ref.rloo,
}


def run(out: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> list[dict[str, Any]]:
    """Two steps; the rows of each."""
    record = out / "rows.jsonl"
    monkeypatch.setenv("AGL_TEST_RECORD", str(record))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    of_algorithm: dict[str, Any] = {"gamma": 0.9, "lam": 0.8}
    if algorithm == "ppo":
        correction = {"rollout_is": "token", "rollout_is_threshold": 2.0}
        of_algorithm["rollout_correction"] = correction
    sizes = {"prompts_per_step": 4, "rollouts_per_prompt": 4}
    settings = {"critic": algorithm == "ppo", "algorithm": of_algorithm, **sizes}
    how = {"steps": 2, "algorithm": algorithm, "crash": 0.2, "level": "transition"}
    verl = {"trainer_cls": "maths_recording.Recording"}
    ended = running.run(out, cpu=settings, verl=verl, **how)
    running.check(ended, [1, 2])
    running.check_weights(ended)
    return [json.loads(line) for line in record.read_text().splitlines()]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("algorithm", sorted(REFERENCES))
def test_a_run_trains_on_what_numpy_has(tmp_path, monkeypatch, algorithm):
    steps = run(tmp_path, monkeypatch, algorithm)
    assert len(steps) == 2
    for rows in steps:
        constant = 12.0 if algorithm == "dr_grpo" else None
        batch, keys = ref.check_step(rows, REFERENCES[algorithm], constant=constant)
        assert any(len(own) > 1 for own in keys)
        assert len({one.reward for one in batch}) > 1
        assert max(abs(value) for row in rows.values() for value in row["advantages"]) > 0.01
        for one, own in zip(batch, keys, strict=True):
            if algorithm == "ppo":
                gap = one.old - ref.sampled(rows, own, "rollout_log_probs")
                importance = ref.sampled(rows, own, "rollout_is_weights")
                np.testing.assert_allclose(importance, np.minimum(np.exp(gap), 2.0), rtol=1e-5)
