"""Each algorithm against NumPy on random batches: loss, gradient, advantages, values."""

import functools
import itertools

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.plugins.verl.real import maths_reference as ref
from tests.training_rows import training_row

import agl_torch
from agl.errors import ConfigError
from agl.types import Rollout
from agl_learning.advantages.weighing import Weighed, weigh
from agl_learning.collect.results import Collected, Ended
from agl_models.sampling.sequences import SamplingRequest
from agl_records.ledger.ledger import Ledger
from agl_records.types import Advantage, Credit
from agl_runs.options import pick_options
from agl_torch.batch import token_logprobs
from agl_torch.critic import Critic, value_loss
from agl_torch.learner import Learner, Sample
from agl_torch.options import LearnerOptions, SamplingCorrection
from agl_torch.server import InferenceServer

from .algorithms_by_hand import Batch, gradient, loss
from .conftest import WORDS, build_model

ALGORITHMS = {
    "grpo": agl_torch.GRPO,
    "rloo": agl_torch.RLOO,
    "reinforce++": agl_torch.ReinforcePlusPlus,
    "gspo": agl_torch.GSPO,
    "cispo": agl_torch.CISPO,
    "ppo": agl_torch.PPO,
    "distillation": functools.partial(agl_torch.Distillation, teacher="none"),
}


def near(expected):
    """To 1e-5 of the largest entry."""
    return pytest.approx(expected, abs=1e-5 * max(1.0, np.abs(expected).max()))


def random_rows(seed, rollouts=3, spread=0.6, rewards=None):
    """Rows of one to three calls; a rollout has one to three rows, and one reward."""
    random, model = np.random.default_rng(seed), build_model()
    rows = []
    for rollout in range(rollouts):
        for number in range(random.integers(1, 4)):
            tokens, ranges = [1, 4 + number], []
            for _ in range(random.integers(1, 4)):
                start = len(tokens)
                tokens += random.integers(3, len(WORDS), random.integers(1, 5)).tolist()
                ranges.append((start, len(tokens)))
                tokens += [2]
            tokens.pop()
            reward = float(random.normal()) if rewards is None else rewards[rollout]
            given = {"rollout_id": f"r{rollout}", "credits": [Credit(reward=reward)] * len(ranges)}
            call_ids = [f"{rollout}-{number}-{n}" for n in range(len(ranges))]
            rows.append(training_row(tokens, ranges, call_ids=call_ids, **given))
    with torch.no_grad():
        given = token_logprobs(model, rows).logprobs_N.split([row.num_sampled for row in rows])
    for row, of_row in zip(rows, given, strict=True):
        noise = spread * random.uniform(-1, 1, row.num_sampled)
        values = iter((of_row.numpy() + noise).tolist())
        for start, end in row.call_ranges:
            row.logprobs[start:end] = itertools.islice(values, end - start)
    return rows


def old_of(row):
    return np.array([x for start, end in row.call_ranges for x in row.logprobs[start:end]])


def learner_of(algorithm, reference=None, critic=None):
    model = build_model()
    options = pick_options(LearnerOptions, algorithm)
    made = Learner(model, options, algorithm.objective(), 0, reference, critic)
    return model, made


CASES = [
    ("grpo", {}),
    ("grpo", {"loss": "dapo"}),
    ("grpo", {"loss": {"type": "dr_grpo", "constant": 7}}),
    ("grpo", {"kl": 0.3, "clip": {"low": 0.1, "high": 0.1}}),
    ("grpo", {"kl": 0.3, "loss": {"type": "dr_grpo", "constant": 7}}),
    ("rloo", {}),
    ("reinforce++", {"loss": "dapo"}),
    ("gspo", {"clip": {"low": 0.05, "high": 0.06}}),
    ("gspo", {"kl": 0.3}),
    ("cispo", {"ratio_cap": 1.2}),
    ("cispo", {"loss": "grpo", "kl": 0.3}),
    ("ppo", {"clip": {"low": 0.1, "high": 0.1}}),
    ("distillation", {"loss": "dapo", "kl": 0.3}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize(("spread", "microbatch_tokens"), [(0.3, 20), (2.0, None)])
def test_loss_and_gradient_are_those_in_numpy(name, options, spread, microbatch_tokens):
    seed = sum(map(ord, f"{name}{options}{spread}"))
    rows, random = random_rows(seed, spread=spread), np.random.default_rng(seed)
    plain = {"learning_rate": 0.0, "optimizer": {"max_grad_norm": 1e9}, "memory": microbatch_tokens}
    plain["sampling_correction"] = "none"
    algorithm = ALGORITHMS[name](model="none", **plain, **options)
    reference = build_model(seed=1)
    with_reference = reference if algorithm.kl.coefficient else None
    model, learner = learner_of(algorithm, with_reference)
    # GSPO's and RLOO's sequences have one advantage; elsewhere each token may have its own.
    shared = name in ("rloo", "gspo")
    advantages = [
        np.full(row.num_sampled, random.normal()) if shared else random.normal(size=row.num_sampled)
        for row in rows
    ]
    counts = [row.num_sampled for row in rows]
    now_N = token_logprobs(model, rows).logprobs_N
    with torch.no_grad():
        start_N = token_logprobs(reference, rows).logprobs_N
    starts = np.split(start_N.double().numpy(), np.cumsum(counts)[:-1])
    of_rows = [row.rollout_id for row in rows], [old_of(row) for row in rows]
    batch = Batch(*of_rows, advantages, starts)
    at = now_N.detach().double().numpy()
    objective, clip = algorithm.objective(), algorithm.clip
    bounds = {"mean": objective.mean, "constant": objective.constant, "low": clip.low}
    bounds["cap"] = getattr(algorithm, "ratio_cap", clip.ratio_cap)
    bounds |= {"high": clip.high, "kl": algorithm.kl.coefficient}

    def expected(new):
        return loss(name, batch, new, at, **bounds)

    now_N.backward(torch.tensor(gradient(expected, at), dtype=now_N.dtype))
    wanted = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    pairs = zip(rows, advantages, strict=True)
    measured = learner.update([Sample(row, each.tolist()) for row, each in pairs])
    assert measured["loss/total"] == pytest.approx(expected(at), rel=1e-5, abs=1e-5)
    got = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert wanted.abs().max() > 1e-3
    assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5 * max(1.0, float(wanted.abs().max())))


@pytest.mark.parametrize(("name", "options"), [("gspo", {}), ("rloo", {"clip": {"high": 0.01}})])
def test_rounding_in_16_bits_holds_no_row_that_these_weights_sampled(name, options, tokenizer):
    for seed in range(20):  # processors round differently: the first model with a gap that matters
        algorithm, weighed = _sampled_in_16_bits(name, options, build_model(seed), tokenizer)
        measured, used = algorithm.update(weighed)
        if measured["logprob_gap"] > 0.001:
            break
    assert measured["logprob_gap"] > 0.001
    assert measured["clip_fraction"] == 0
    assert used == weighed
    weighed[0].row.logprobs[:] = [one - 1 for one in weighed[0].row.logprobs]
    assert algorithm.update(weighed)[1] == weighed[1:]
    version = algorithm._server.version
    for one in weighed[1:]:
        one.row.logprobs[:] = [each - 1 for each in one.row.logprobs]
    assert algorithm.learn_now(weighed)[1] == []  # these weights stay what they are
    assert (algorithm._server.version, algorithm.weights_version) == (version, 3)
    algorithm._learner.options.sampling_correction = SamplingCorrection(type="none")
    assert algorithm.update(weighed)[0]["clip_fraction"] > 0


def _sampled_in_16_bits(name, options, model, tokenizer):
    options = {"learning_rate": 0.0, "dtype": "bfloat16", "memory": 100, **options}
    algorithm = ALGORITHMS[name](model="none", **options)
    algorithm._server = InferenceServer(model, tokenizer, dtype="bfloat16")
    learning = pick_options(LearnerOptions, algorithm)
    algorithm._learner = Learner(model, learning, algorithm.objective())
    algorithm.weights_version = 3
    sampler, weighed = algorithm._server.sampler, []
    sampler.end_token_ids = frozenset()
    prompts = [[1, *[4] * n, 3, 2] for n in range(8)]
    answers = sampler.generate([SamplingRequest(p, 50 - 4 * len(p), seed=1) for p in prompts])
    for n, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        tokens, start = [*prompt, *answer.token_ids], len(prompt)
        given = {"logprobs": [0.0] * start + answer.logprobs, "model_versions": ["3"]}
        row = training_row(tokens, [(start, len(tokens))], rollout_id=f"r{n}", **given)
        advantage = Advantage(value=[-1, 1][n % 2], group="", because="", estimator="grpo")
        weighed.append(Weighed(row, [advantage]))
    return algorithm, weighed


def collected_of(rows, tasks=2):
    """As a collection: rollouts by turns of one task and of another."""
    ended = {}
    for row in rows:
        name = row.rollout_id
        rollout = Rollout(rollout_id=name, input=None, start_time=0.0, status="succeeded")
        group = int(name[1:]) % tasks
        ended.setdefault(name, Ended(rollout, group, row.credits[0].reward)).rows.append(row)
    return Collected(list(ended.values()), Ledger(), 0.0)


def by_rollout(rows, values):
    """Per rollout, the values of all its tokens in one line."""
    found = {}
    for row, value in zip(rows, values, strict=True):
        found.setdefault(row.rollout_id, []).extend(value)
    return {name: np.array(value) for name, value in found.items()}


REWARDS = [1.0, -0.5, 0.25, 2.0, 0.0, 0.7]


def in_order(rows, weighed):
    order = {id_: n for n, row in enumerate(rows) for id_ in row.call_ids}
    return sorted(weighed, key=lambda one: order[one.row.call_ids[0]])


def weighed_by(name, seed, **options):
    """Rows, and what they are weighed by an algorithm with a real model, reference and critic."""
    rows = random_rows(seed, 6, rewards=REWARDS)
    algorithm = ALGORITHMS[name](model="none", **options)
    reference = build_model(seed=1) if algorithm.kl.coefficient else None
    critic = None
    if name == "ppo":
        critic = algorithm.build_critic(build_model(seed=2))
        torch.manual_seed(3)
        torch.nn.init.normal_(critic.head.weight)
    model, algorithm._learner = learner_of(algorithm, reference, critic)
    weighed = in_order(rows, weigh(collected_of(rows), algorithm, algorithm.foresee))
    assert [one.row.call_ids for one in weighed] == [row.call_ids for row in rows]
    gaps = [np.zeros(row.num_sampled) for row in rows]
    if reference is not None:
        with torch.no_grad():
            start_N = token_logprobs(reference, rows).logprobs_N
        parts = start_N.split([row.num_sampled for row in rows])
        gaps = [old_of(row) - part.numpy() for row, part in zip(rows, parts, strict=True)]
    return rows, weighed, by_rollout(rows, gaps), (model, critic)


def in_numpy(gaps, kl, values=None):
    """The rollouts of ``weighed_by``, as the formulas by hand take them."""
    tokens = list(values or gaps.values())
    return [
        ref.Rollout(name[-1] in "135", REWARDS[int(name[1:])], [[1] * len(gap)], value, -kl * gap)
        for (name, gap), value in zip(gaps.items(), tokens, strict=True)
    ]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kl", [0.0, 0.2])
@pytest.mark.parametrize(
    ("name", "options", "reference"),
    [
        ("rloo", {}, ref.rloo),
        ("reinforce++", {}, lambda batch: ref.reinforce_plus_plus(batch, 1.0)[0]),
        ("reinforce++", {"gamma": 0.9}, lambda batch: ref.reinforce_plus_plus(batch, 0.9)[0]),
    ],
)
def test_advantages_are_of_rewards_less_their_penalties(seed, kl, name, options, reference):
    rows, weighed, gaps, _ = weighed_by(name, seed, kl=kl, **options)
    got = by_rollout(rows, [one.of_tokens for one in weighed])
    for expected, values in zip(reference(in_numpy(gaps, kl)), got.values(), strict=True):
        assert values == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("critic", ["head", "copy"])
@pytest.mark.parametrize(("kl", "gamma", "lam"), [(0.0, 1.0, 0.95), (0.2, 0.9, 0.8)])
def test_ppo_has_generalised_advantages_of_its_critic(seed, critic, kl, gamma, lam):
    rows, weighed, gaps, (model, of_run) = weighed_by(
        "ppo", seed, critic=critic, kl=kl, gamma=gamma, gae_lambda=lam
    )
    trunk = model.base_model if critic == "head" else build_model(seed=2).base_model
    values = []
    for row in rows:  # each by itself, without padding
        with torch.no_grad():
            states = trunk(torch.tensor([row.token_ids])).last_hidden_state[0]
            before = [t - 1 for start, end in row.call_ranges for t in range(start, end)]
            values.append(of_run.head(states[before])[:, 0].double().numpy())
    batch = in_numpy(gaps, kl, by_rollout(rows, values).values())
    for wanted, name in zip(ref.gae(batch, gamma, lam), ("of_tokens", "returns"), strict=True):
        got = by_rollout(rows, [getattr(one, name) for one in weighed])
        for expected, found in zip(wanted, got.values(), strict=True):
            assert found == near(expected)
    for one, value in zip(weighed, values, strict=True):
        assert one.values == near(value)
        sizes = [end - start for start, end in one.row.call_ranges]
        parts = np.split(np.array(one.of_tokens), np.cumsum(sizes)[:-1])
        booked = [advantage.value for advantage in one.advantages]
        assert booked == pytest.approx([part.mean() for part in parts], abs=1e-9)
        for advantage, part in zip(one.advantages, parts, strict=True):
            assert advantage.estimator == "gae"
            assert advantage.is_mean == (len(set(part)) > 1)


@pytest.mark.parametrize(("gamma", "temperature"), [(0.0, 1.0), (0.5, 0.7), (1.0, 1.0)])
def test_distillation_takes_what_the_teacher_says_and_no_reward(gamma, temperature):
    rows, teacher = random_rows(0, 6, rewards=REWARDS), build_model(seed=4)
    options = {"gamma": gamma, "temperature": temperature, "memory": 20}
    algorithm = agl_torch.Distillation(model="none", teacher="none", **options)
    algorithm._teacher = teacher
    weighed = in_order(rows, weigh(collected_of(rows), algorithm, algorithm.foresee))
    gaps = []
    for row in rows:  # each by itself, without padding
        with torch.no_grad():
            logits = teacher(torch.tensor([row.token_ids])).logits[0].double() / temperature
        logprobs = (logits - logits.logsumexp(-1, keepdim=True)).numpy()
        at = [t for start, end in row.call_ranges for t in range(start, end)]
        of_teacher = np.array([logprobs[t - 1, row.token_ids[t]] for t in at])
        gaps.append(of_teacher - old_of(row))
    expected = {name: ref.to_go(gap, gamma) for name, gap in by_rollout(rows, gaps).items()}
    mean = np.mean([of_rollout.mean() for of_rollout in expected.values()])
    got = by_rollout(rows, [one.of_tokens for one in weighed])
    for name, values in got.items():
        assert values == pytest.approx(expected[name] - mean, abs=1e-5)
    assert -sum(algorithm._gaps) == pytest.approx(sum(gap.sum() for gap in gaps), abs=1e-4)
    because = weighed[0].advantages[0].because
    assert because.startswith("reverse_kl (how much likelier a teacher finds its tokens")


REWARDING = [{"credit": "final"}, {"overlong": 5}, {"estimator": "rloo"}, {"estimator": {}}]


@pytest.mark.parametrize("options", REWARDING)
def test_distillation_has_no_options_about_rewards(options):
    with pytest.raises(TypeError, match=r"unknown option"):
        agl_torch.Distillation(model="none", teacher="none", **options)
    with pytest.raises(ConfigError, match=r"max_refills is 1, and the estimator 'reverse_kl'"):
        agl_torch.Distillation(model="none", teacher="none", max_refills=1)


@pytest.mark.parametrize(("name", "option"), [("Distillation", "teacher"), ("PPO", "critic")])
def test_another_model_that_is_nowhere_is_named_at_once(tmp_path, name, option):
    with pytest.raises(ConfigError, match=rf"{option} '.*gone': there is no such folder"):
        getattr(agl_torch, name)(model="none", **{option: str(tmp_path / "gone")})


def test_function_in_the_place_of_a_model_s_name_is_refused_at_once():
    with pytest.raises(ConfigError, match="model 'hostile:model': expected a folder or a name on"):
        agl_torch.GRPO(model="hostile:model")
    assert agl_torch.GRPO(model="none").update([]) == ({}, [])  # a subclass may choose no row
    wrong = type("Mine", (agl_torch.GRPO,), {"why_unused": ("too_long", "of 9 tokens")})
    with pytest.raises(ConfigError, match="Mine: why_unused is 'too_long'; expected no_token_ids"):
        wrong(model="none")


def test_a_critic_that_is_another_is_another_run(tmp_path):
    head, copy = (agl_torch.PPO(model="none", critic=kind) for kind in ("head", "copy"))
    assert head.shape(tmp_path) != copy.shape(tmp_path)


def test_a_teacher_of_other_tokens_is_refused(tmp_path, tokenizer):
    small = build_model()
    small.resize_token_embeddings(5)
    algorithm = agl_torch.Distillation(model=build_model, tokenizer=tokenizer, teacher=small)
    with pytest.raises(ConfigError, match=r"the teacher knows 5 tokens, and .* has 15"):
        algorithm.load(None, tmp_path)


def test_a_critic_that_does_not_know_the_models_tokens_is_refused(model):
    narrow = build_model()
    narrow.resize_token_embeddings(8)
    with pytest.raises(ConfigError, match=r"the critic .*knows 8\. Give one with the same vocab"):
        agl_torch.PPO(model="unused", critic=narrow).build_critic(model)


def test_value_loss_by_hand():
    # Errors 1, 0.5 and -2. Held within 0.2 of the old value: (0.7 - 0)^2 = 0.49 < 1, as the value
    # went from 0.5 to 1; (0.5 - 0)^2 = 0.25 either way; from 1 to -1 it counts as 0.8: 0.2^2 < 4.
    new = torch.tensor([1.0, 0.5, -1.0], requires_grad=True)
    old, returns = torch.tensor([0.5, 0.5, 1.0]), torch.tensor([0.0, 0.0, 1.0])
    weights = torch.tensor([0.5, 0.25, 0.25])
    held = value_loss(new, old, returns, weights, 0.2)
    assert held.item() == pytest.approx((0.5 * 1 + 0.25 * 0.25 + 0.25 * 4) / 2)
    # Where the value had come near its return, and the old one was far off, it has no gradient:
    # old 1, new 0.1, return 0 counts as 0.8^2, which the new value does not move.
    near = torch.tensor([0.1], requires_grad=True)
    one = torch.ones(1)
    held = value_loss(near, one, torch.zeros(1), one, 0.2)
    held.backward()
    assert held.item() == pytest.approx(0.32)
    assert near.grad.tolist() == [0.0]
    plain = value_loss(near, one, torch.zeros(1), one, None)
    assert plain.item() == pytest.approx(0.005)


@pytest.mark.parametrize("kind", ["head", "copy"])
def test_a_critic_learns_at_its_own_rate(kind):
    _, weighed, _, (model, critic) = weighed_by("ppo", 0, critic=kind, value_clip=None)
    algorithm = agl_torch.PPO(
        "none", critic=kind, learning_rate=0, critic_learning_rate=0.05, epochs=30, value_clip=None
    )
    before = [p.detach().clone() for p in model.parameters()]
    options = pick_options(LearnerOptions, algorithm)
    learner = Learner(model, options, algorithm.objective(), critic=critic)
    samples = [Sample(one.row, one.of_tokens, one.returns, one.values) for one in weighed]
    first = learner.update(samples)
    now = learner.expected([one.row for one in weighed])
    for one, value in zip(samples, now, strict=True):
        one.values = value
    second = learner.update(samples)
    assert second["explained_variance"] > first["explained_variance"]
    assert second["loss/value"] < first["loss/value"] / 2
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_critic_begins_by_expecting_nothing():
    rows = random_rows(0)
    for apart in (True, False):
        critic = Critic(build_model(), apart)
        hidden = token_logprobs(build_model(), rows).hidden_N_H
        assert critic.values(rows, hidden).abs().max() == 0
