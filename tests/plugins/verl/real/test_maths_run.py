"""In whole runs of the real verl, what a step trains on is what NumPy has.

The agent of ``digits.py`` makes two calls per rollout, here a row each; a share of its rollouts
crash, so groups differ in size and verl fills batches up with rows of padding.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl")
sys.path.insert(0, str(Path(__file__).parent))

import maths_reference as ref
import running

TOLERANCE = 1e-5
REFERENCES: dict[str, Any] = {
    "dr_grpo": lambda batch: ref.grpo(batch, normalise=False),
    "gpg": ref.gpg,
    "grpo": ref.grpo,
    "grpo_passk": ref.grpo_passk,
    "gspo": ref.grpo,
    "opo": ref.opo,
    "optimal_token_baseline": lambda batch: ref.optimal_token_baseline(batch)[0],
    "ppo": lambda batch: ref.gae(batch, 0.9, 0.8)[0],
    "reinforce++": lambda batch: ref.reinforce_plus_plus(batch, 0.9)[0],
    "reinforce++-baseline": ref.reinforce_plus_plus_baseline,
    "rloo": ref.rloo,
}


def rollouts(rows: dict[str, Any]) -> tuple[list[ref.Rollout], list[list[str]]]:
    """The rollouts of a step, and the keys of their rows in time."""
    keys: dict[tuple[str, str], list[str]] = {}
    for key, row in rows.items():
        if not row["padding"]:
            task, session, _ = key.split("_")
            keys.setdefault((task, session), []).append(key)
    batch: list[ref.Rollout] = []
    ordered: list[list[str]] = []
    for (task, _), own in keys.items():
        own.sort(key=lambda key: int(key.split("_")[2]))
        one = ref.Rollout(
            task, sum(rows[own[-1]]["rm_scores"]), [rows[key]["response_mask"] for key in own]
        )
        one.values = sampled(rows, own, "values")
        one.old = sampled(rows, own, "old_log_probs")
        one.sum_pi_squared = sampled(rows, own, "sum_pi_squared")
        batch.append(one)
        ordered.append(own)
    return batch, ordered


def sampled(rows: dict[str, Any], keys: list[str], name: str) -> Any:
    """A field at the sampled tokens of a rollout's rows."""
    pairs = [(rows[key].get(name, []), rows[key]["response_mask"]) for key in keys]
    each = (pair for values, mask in pairs for pair in zip(values, mask, strict=False))
    return np.array([value for value, bit in each if bit])


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
        batch, keys = rollouts(rows)
        assert any(len(own) > 1 for own in keys)
        assert len({one.reward for one in batch}) > 1
        expected = REFERENCES[algorithm](batch)
        assert max(abs(values).max() for values in expected) > 0.01
        for one, own, values in zip(batch, keys, expected, strict=True):
            got = sampled(rows, own, "advantages")
            np.testing.assert_allclose(got, values, rtol=TOLERANCE, atol=TOLERANCE)
            weights = sampled(rows, own, "agl_weights")
            per_rollout = 12.0 if algorithm == "dr_grpo" else one.length
            weight = len(rows) / (len(batch) * per_rollout)
            np.testing.assert_allclose(weights, np.full(one.length, weight), rtol=TOLERANCE)
            if algorithm == "ppo":
                gap = one.old - sampled(rows, own, "rollout_log_probs")
                importance = sampled(rows, own, "rollout_is_weights")
                np.testing.assert_allclose(importance, np.minimum(np.exp(gap), 2.0), rtol=TOLERANCE)
        for row in rows.values():
            if row["padding"]:
                assert not any(row["agl_weights"])
                assert not any(row["advantages"])
