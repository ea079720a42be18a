"""What agl puts into verl's own advantage step, and what verl makes of it.

The queue is a dictionary with the two calls that the step makes; everything else is verl's.
"""

import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("verl")
    import transfer_queue as tq
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl.workers.config import ActorConfig, PolicyLossConfig

pytestmark = pytest.mark.filterwarnings("ignore")

import maths_reference as ref  # noqa: E402

from agl.errors import AlgorithmError, ConfigError  # noqa: E402
from agl_learning.advantages.estimators import ESTIMATORS  # noqa: E402
from agl_records.types import Credit  # noqa: E402
from agl_verl.losses import FIELD, actor_loss, loss_weights  # noqa: E402
from agl_verl.rows import CallNote, RowNotes  # noqa: E402
from agl_verl.trainer_mixin import (  # noqa: E402
    RolloutAdvantages,
    RowContext,
    check,
    estimate,
    register_estimators,
    row_context,
    trajectories,
)


def nested(rows: list[Any], dtype: Any = torch.float32) -> Any:
    tensors = [torch.tensor(row, dtype=dtype) for row in rows]
    return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)


class Queue:
    """TransferQueue's fields of one partition, without Ray."""

    def __init__(self, rows: dict[str, dict[str, Any]]) -> None:
        self.rows = rows

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        found: dict[str, Any] = {}
        for name in select_fields:
            values = [self.rows[key].get(name) for key in keys]
            if all(value is None for value in values):
                continue
            if isinstance(values[0], str):
                found[name] = NonTensorStack(*values)
            else:
                found[name] = nested(values, torch.as_tensor(values[0]).dtype)
        return TensorDict(found, batch_size=len(keys))

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any, tags: Any = None):
        for name in list(fields.keys()):
            for key, value in zip(keys, fields[name].unbind(), strict=True):
                self.rows[key][name] = value.tolist()
        return Batch(self.rows)


class Batch:
    """The part of ``KVBatchMeta`` that the step uses."""

    partition_id = "train"

    def __init__(self, rows: dict[str, dict[str, Any]]) -> None:
        self.keys = list(rows)
        self.tags = [{"is_padding": key.startswith("pad")} for key in rows]
        self.extra_info: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.keys)


# task, session, index: response mask; rewards are below. Row order is not rollout order.
MASKS = {
    "b_0_1": [1, 0, 1],
    "a_1_0": [1, 1],
    "padz_0_0": [0],
    "a_0_0": [1, 1, 1],
    "a_1_1": [1, 1, 1, 1],
    "b_1_0": [1, 1],
    "b_0_0": [1],
}
REWARDS = {"a_0": 1.0, "a_1": 0.0, "b_0": 0.25, "b_1": 1.0}
LENGTHS = {"a_0": 3, "a_1": 6, "b_0": 3, "b_1": 2}
OF_RLOO = {"a_0": 1.0, "a_1": -1.0, "b_0": -0.75, "b_1": 0.75}


def rollout(key: str) -> str:
    return key.rsplit("_", 1)[0]


def rows() -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(3)
    made: dict[str, dict[str, Any]] = {}
    for key, mask in MASKS.items():
        length = len(mask)
        reward = REWARDS.get(rollout(key), 0.0)
        old = -rng.uniform(0.1, 2, length)
        made[key] = {
            "padding": key.startswith("pad"),
            "uid": key.split("_")[0],
            "response_mask": list(mask),
            "loss_mask": list(mask),
            "rm_scores": [0.0] * (length - 1) + [reward],
            "old_log_probs": old.tolist(),
            "rollout_log_probs": ((old + rng.normal(0, 0.5, length)) * np.array(mask)).tolist(),
            "ref_log_prob": (old + rng.normal(0, 0.3, length)).tolist(),
            "values": rng.normal(0, 1, length).tolist(),
        }
    return made


def configuration(estimator: str, **algorithm: Any) -> Any:
    plain = {"gamma": 1.0, "lam": 1.0, "use_kl_in_reward": False, "kl_penalty": "kl"}
    plain |= {"norm_adv_by_std_in_grpo": True, "rollout_correction": None}
    actor = {"policy_loss": {"loss_mode": "vanilla"}, "loss_scale_factor": None}
    return OmegaConf.create(
        {
            "algorithm": {"adv_estimator": f"agl_{estimator}", **plain, **algorithm},
            "critic": {"enable": estimator == "gae"},
            "data": {"max_response_length": 8},
            "actor_rollout_ref": {
                "actor": {**actor, "strategy": "fsdp2"},
                "rollout": {"n": 2, "custom": {}},
            },
        }
    )


class Trainer(RolloutAdvantages, PPOTrainerSync):
    """verl's trainer with our mixin; made without its workers."""

    def __init__(self, config: Any) -> None:
        register_estimators()
        self.config = config


def step(monkeypatch: pytest.MonkeyPatch, config: Any, made: dict[str, dict[str, Any]]):
    """verl's advantage step over the rows; gives them back with what it wrote."""
    queue = Queue(made)
    monkeypatch.setattr(tq, "kv_batch_get", queue.kv_batch_get)
    monkeypatch.setattr(tq, "kv_batch_put", queue.kv_batch_put)
    metrics: dict[str, Any] = {}
    Trainer(config)._compute_advantage(Batch(made), metrics)
    return made, metrics


@pytest.mark.parametrize(
    ("estimator", "reference"),
    [("rloo", ref.rloo), ("grpo", ref.grpo), ("gae", partial(ref.gae, gamma=0.9, lam=0.8))],
)
def test_verls_step_writes_what_numpy_has_of_rollouts(monkeypatch, estimator, reference) -> None:
    made, _ = step(monkeypatch, configuration(estimator, gamma=0.9, lam=0.8), rows())
    ref.check_step(made, reference)


def test_verls_rows_have_the_reward_on_their_last_token() -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    metrics = AgentLoopMetrics(generate_sequences=1.0)
    tokens = {"prompt_ids": [1, 2], "response_ids": [3, 4, 5], "response_mask": [1, 0, 1]}
    row = AgentLoopOutput(**tokens, reward_score=0.75, num_turns=2, metrics=metrics).as_dict()
    assert row["rm_scores"].tolist() == [0, 0, 0.75]


def test_a_kl_penalty_in_the_reward_counts_over_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    control = SimpleNamespace(value=0.5, update=lambda **_: None)
    monkeypatch.setattr(Trainer, "kl_ctrl_in_reward", control, raising=False)
    made, _ = step(monkeypatch, configuration("rloo", use_kl_in_reward=True), rows())
    ref.check_step(made, ref.rloo, kl_penalty=0.5)


def test_credits_reach_the_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rows()
    for key, mask in MASKS.items():
        if not key.startswith("pad"):
            credit = Credit(reward=2.0 if key == "a_1_1" else 0.0, group="of row one")
            spans = [(0, 1), (2, 3)] if key == "b_0_1" else [(0, len(mask))]
            calls = [CallNote(start=s, end=e, credit=credit) for s, e in spans]
        made[key]["agl_row"] = RowNotes(calls=calls).model_dump_json()
    made, _ = step(monkeypatch, configuration("rloo"), made)
    # a_0's calls have 0; a_1's have 0 and 2, its mean is 1: 2 - 0 and 0 - 0, and a_0 has 0 - 1.
    assert made["a_1_1"]["advantages"] == pytest.approx([2.0] * 4)
    assert made["a_1_0"]["advantages"] == pytest.approx([0.0] * 2)
    assert made["a_0_0"]["advantages"] == pytest.approx([-1.0] * 3)


def ratios(row: dict[str, Any]) -> Any:
    return np.array(row["old_log_probs"]) - np.array(row["rollout_log_probs"])


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights_equal_numpy(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    correction = {"rollout_is": level, "rollout_is_threshold": 1.5}
    config = configuration("grpo", rollout_correction=correction)
    made, metrics = step(monkeypatch, config, rows())
    for key, mask in MASKS.items():
        gap, bits = ratios(made[key]), np.array(mask)
        if level == "sequence":
            gap = np.full(len(mask), (gap * bits).sum())
        expected = np.minimum(np.exp(gap), 1.5) * bits
        assert made[key]["rollout_is_weights"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert any(name.startswith("rollout_corr/") for name in metrics)


def test_what_is_rejected_counts_as_zero_and_moves_no_weight(monkeypatch: pytest.MonkeyPatch):
    plain, _ = step(monkeypatch, configuration("grpo"), rows())
    correction = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.7_1.3"}
    config = configuration("grpo", rollout_correction=correction)
    made, _ = step(monkeypatch, config, rows())
    rejected = 0
    for key, mask in MASKS.items():
        ratio = np.exp(-ratios(made[key]))  # verl's k1 is log(rollout / old)
        kept = np.array(mask) * (ratio >= 0.7) * (ratio <= 1.3)
        rejected += int(sum(mask) - kept.sum())
        assert made[key]["response_mask"] == kept.tolist()
        expected = np.array(plain[key]["advantages"]) * kept
        assert made[key]["advantages"] == pytest.approx(expected.tolist(), abs=1e-6)
        assert made[key][FIELD] == pytest.approx(plain[key][FIELD])
    assert 0 < rejected < sum(LENGTHS.values())


@pytest.mark.parametrize("kind", ["in the step", "ppo_clip", "reinforce"])
def test_loss_with_importance_weights_equals_numpy(monkeypatch, kind) -> None:
    """From captured log-probabilities to the loss: verl's step, then verl's policy loss.

    The others are of bypass mode, with two policies: the captured log-probabilities are the old
    ones, and weights follow the new.
    """
    correction: dict[str, Any] = {"rollout_is": "token", "rollout_is_threshold": 1.5}
    high, policy, start = 0.28, {}, rows()
    if kind != "in the step":
        correction |= {"bypass_mode": True, "loss_type": kind}
        of_loss: dict[str, Any] = {"loss_mode": "bypass_mode", "rollout_correction": correction}
        high, policy = 0.2, {"policy_loss": PolicyLossConfig(**of_loss)}
        for row in start.values():
            row["old_log_probs"] = row["rollout_log_probs"]
    made, _ = step(monkeypatch, configuration("rloo", rollout_correction=correction), start)
    keys, rng = list(made), np.random.default_rng(8)
    now = {k: np.array(made[k]["old_log_probs"]) + rng.normal(0, 0.3, len(MASKS[k])) for k in keys}
    expected = 0.0
    for key in (key for key in keys if not key.startswith("pad")):
        for t in np.flatnonzero(MASKS[key]):
            old, captured = made[key]["old_log_probs"][t], made[key]["rollout_log_probs"][t]
            ratio, value = np.exp(now[key][t] - old), OF_RLOO[rollout(key)]
            gain = min(ratio * value, np.clip(ratio, 0.8, 1 + high) * value)
            if kind == "reinforce":
                gain = min(ratio, 1.5) * now[key][t] * value
            expected -= min(np.exp(old - captured), 1.5) * gain / (4 * LENGTHS[rollout(key)])
    config = actor(clip_ratio_low=0.2, clip_ratio_high=high, **policy)
    parts = (keys[:3], keys[3:4], keys[4:])  # three micro-batches
    got = sum(float(actor_loss(config, *micro(made, now, part))[0]) for part in parts)
    assert got == pytest.approx(expected, abs=1e-5)


def actor(**options: Any) -> Any:
    return ActorConfig(
        strategy="fsdp2", ppo_micro_batch_size_per_gpu=1, rollout_n=1, clip_ratio_c=100.0, **options
    )


def micro(made: dict[str, dict[str, Any]], now: dict[str, Any], keys: list[str]) -> tuple[Any, Any]:
    """Model output and data of a micro-batch, as an engine gives them to a loss."""
    prompt = [1, 1]
    data = TensorDict(
        {
            "prompts": nested([prompt for _ in keys], torch.int64),
            "responses": nested([[1] * len(MASKS[key]) for key in keys], torch.int64),
            **{
                name: nested([made[key][name] for key in keys])
                for name in ("old_log_probs", "advantages", "response_mask", FIELD)
            },
        },
        batch_size=len(keys),
    )
    if "rollout_is_weights" in made[keys[0]]:
        data["rollout_is_weights"] = nested([made[key]["rollout_is_weights"] for key in keys])
    for name, value in {"dp_size": 1, "batch_num_tokens": 14, "global_batch_size": 7}.items():
        data.set_non_tensor(name, value)
    # Model outputs are one token early: the response's first is at the prompt's last place.
    shifted = [[0.0] * (len(prompt) - 1) + list(now[key]) + [0.0] for key in keys]
    return {"log_probs": nested(shifted)}, data


SINGLE = {"optimal_token_baseline": "tir_optimal_token_baseline"}
"""Estimators that verl calls otherwise."""


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.parametrize("seed", range(3))
def test_one_row_per_rollout_is_what_verl_computes(name: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tasks, siblings, width = 3, 4, 5
    number = tasks * siblings
    mask = torch.ones(number, width)
    if name not in ("gae", "gdpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        # Without whitening lengths may differ; in verl's, long rows weigh more.
        lengths = torch.randint(1, width + 1, (number,), generator=generator)
        mask = (torch.arange(width) < lengths[:, None]).float()
    mask[:, 1] *= torch.randint(0, 2, (1,), generator=generator)  # a tool's token
    mask[:, 0] = 1
    scores = torch.zeros(number, width)
    last = width - 1 - mask.flip(-1).argmax(-1)
    scores[range(number), last] = torch.rand(number, generator=generator)
    extra = {
        name_: torch.rand(number, width, generator=generator)
        for name_ in ("values", "sum_pi_squared", "old_log_probs")
    }
    extra["old_log_probs"] = extra["old_log_probs"].log()
    config = OmegaConf.create({"gamma": 0.9, "lam": 0.8, "norm_adv_by_std_in_grpo": True})
    if name == "gdpo":
        config.gdpo_reward_keys = ["score"]
    index = np.array([f"t{i // siblings}" for i in range(number)])
    kwargs: dict[str, Any] = {"token_level_rewards": scores.clone(), "response_mask": mask}
    fn = core_algos.get_adv_estimator_fn(SINGLE.get(name, name))
    if name == "gae":
        kwargs |= {"values": extra["values"], "gamma": 0.9, "lam": 0.8}
    elif name == "gdpo":
        kwargs |= {"index": index}
    else:
        kwargs |= {"index": index, "config": config}
    if name == "optimal_token_baseline":
        kwargs |= {x: extra[x] for x in ("sum_pi_squared", "old_log_probs")}
    if name == "grpo":
        kwargs.pop("config")
    expected, expected_returns = fn(**kwargs)
    notes = [RowNotes(rewards={"score": float(s)}).model_dump_json() for s in scores.sum(-1)]
    context = RowContext(
        trajectories([f"{t}_{i}_0" for i, t in enumerate(index)], [False] * number, mask, notes),
        scores,
        values_BL=extra["values"],
        old_logprobs_BL=extra["old_log_probs"],
        sum_pi_squared_BL=extra["sum_pi_squared"],
    )
    with row_context(context):
        got, returns = estimate(name, scores, mask, config)
    assert torch.allclose(got, expected * mask, atol=1e-5)
    assert torch.allclose(returns * mask, expected_returns * mask, atol=1e-5)


def test_an_estimator_of_ours_says_what_it_needs() -> None:
    register_estimators()
    register_estimators()
    fn = core_algos.get_adv_estimator_fn("agl_rloo")
    assert isinstance(fn, partial)
    with pytest.raises(AlgorithmError, match=r"'agl_rloo' works on rollouts.*RolloutAdvantages"):
        fn(token_level_rewards=torch.ones(1, 1), response_mask=torch.ones(1, 1), config={})


def test_every_estimator_of_verl_has_an_answer() -> None:
    from agl_verl.algorithms import ALIASES, REFUSED

    register_estimators()
    own = {name for name in core_algos.ADV_ESTIMATOR_REGISTRY if not name.startswith("agl_")}
    assert own <= set(ESTIMATORS) | set(ALIASES) | set(REFUSED)


def test_every_loss_of_verl_has_an_answer() -> None:
    from agl_verl.algorithms import ALGORITHMS, REFUSED

    known = {a.loss_mode for a in ALGORITHMS.values()} | set(REFUSED) | {"bypass_mode", "dro"}
    assert set(core_algos.POLICY_LOSS_REGISTRY) <= known


CORRECTION = "algorithm.rollout_correction"
NORMALISED = {
    "loss_mode": "bypass_mode",
    "rollout_correction": {"rollout_is_batch_normalize": True},
}


@pytest.mark.parametrize(
    ("estimator", "changes", "said"),
    [
        ("grpo", {"algorithm.adv_estimator": "grpo"}, "'grpo' works on rows"),
        ("grpo", {"algorithm.use_pf_ppo": True}, "use_pf_ppo"),
        ("gae", {"critic.enable": None}, r"critic\.enable"),
        ("gdpo", {"algorithm.gdpo_reward_keys": None}, "gdpo_reward_keys"),
        ("grpo", {"actor_rollout_ref.rollout.custom.agl_loss_mean": "row"}, "'row'.*rollout"),
        ("grpo", {"actor_rollout_ref.actor.policy_loss.loss_mode": "kl_cov"}, "micro-batch"),
        ("grpo", {CORRECTION: {"bypass_mode": True, "rollout_is": "token"}}, "no effect"),
        ("optimal_token_baseline", {CORRECTION: {"rollout_is": "token"}}, "takes no rollout_is"),
        ("grpo", {"distillation": {"enabled": True}}, "distillation"),
        ("grpo", {"actor_rollout_ref.actor.policy_loss": NORMALISED}, "over a micro-batch"),
    ],
)
def test_what_would_be_ignored_is_refused(estimator: str, changes: Any, said: str) -> None:
    config = configuration(estimator, gdpo_reward_keys=["score"])
    check(config)
    for name, value in changes.items():
        OmegaConf.update(config, name, value, force_add=True)
    with pytest.raises(ConfigError, match=said):
        check(config)


def test_a_batch_without_weights_is_refused() -> None:
    made = rows()
    for row in made.values():
        row["advantages"] = row["old_log_probs"]
        row[FIELD] = row["old_log_probs"]
    output, data = micro(made, {k: r["old_log_probs"] for k, r in made.items()}, list(made))
    del data[FIELD]
    with pytest.raises(ConfigError, match="RolloutAdvantages"):
        actor_loss(actor(), output, data)


def test_a_mean_that_does_not_exist_is_refused() -> None:
    found = trajectories(["t_0_0"], [False], torch.ones(1, 1))
    with pytest.raises(ConfigError, match="expected one of"):
        loss_weights(found, "constant")
