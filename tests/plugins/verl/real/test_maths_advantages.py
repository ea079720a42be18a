"""Advantages per rollout equal a NumPy reference written by hand, for every estimator."""

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")

import maths_reference as ref  # noqa: E402

from agl.errors import AlgorithmError  # noqa: E402
from agl_learning.advantages.comparisons import Inputs  # noqa: E402
from agl_learning.advantages.estimators import ESTIMATORS  # noqa: E402
from agl_learning.advantages.trajectories import Trajectories  # noqa: E402
from agl_records.types import Credit, StepCredit  # noqa: E402
from agl_verl.rows import CallNote, RowNotes  # noqa: E402
from agl_verl.trainer_mixin import trajectories  # noqa: E402

TOLERANCE = 1e-5
REWARDS = st.sampled_from([0.0, 0.25, 0.5, 1.0, -1.0])


@st.composite
def masks(draw: Any) -> list[list[int]]:
    """One to four rows of zero to six response tokens, with a sampled one among them."""
    row = st.lists(st.integers(0, 1), min_size=1, max_size=6)
    rows = draw(st.lists(row, min_size=1, max_size=4))
    rows[draw(st.integers(0, len(rows) - 1))][0] = 1
    return rows


@st.composite
def batches(draw: Any, calls: bool = False) -> list[ref.Rollout]:
    """One to three tasks of one to four rollouts."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batch: list[ref.Rollout] = []
    for task in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 4))):
            one = ref.Rollout(f"t{task}", draw(REWARDS), draw(masks()))
            fill(one, rng)
            if calls:
                one.calls = draw(split(one))
            batch.append(one)
    return batch


@st.composite
def split(draw: Any, one: ref.Rollout) -> list[ref.Call]:
    """Calls: runs of sampled tokens that stand together in a row."""
    found: list[ref.Call] = []
    done = 0
    for mask in one.masks:
        for _, length in runs(mask):
            step = None
            if draw(st.booleans()):
                step = (
                    f"s{draw(st.integers(0, 1))}",
                    draw(REWARDS),
                    draw(st.sampled_from([1, 0.5])),
                )
            group = draw(st.sampled_from(["", "writer"]))
            found.append(ref.Call(done, done + length, draw(REWARDS), group, step))
            done += length
    return found


def fill(one: ref.Rollout, rng: np.random.Generator, penalties: bool = True) -> None:
    one.values = rng.normal(size=one.length)
    one.penalties = 0.1 * rng.normal(size=one.length) * penalties
    # Of numbers that float32 holds: their differences may be as small as its rounding.
    one.old = np.float32(np.log(rng.uniform(0.05, 0.9, size=one.length))).astype(float)
    one.sum_pi_squared = np.float32(rng.uniform(0.1, 0.9, size=one.length)).astype(float)
    one.dimensions = {"right": float(rng.integers(0, 2)), "short": float(rng.normal())}


def runs(mask: list[int]) -> list[tuple[int, int]]:
    """Start and length of each run of ones."""
    found: list[tuple[int, int]] = []
    for place, bit in enumerate(mask):
        if bit and place and mask[place - 1]:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        elif bit:
            found.append((place, 1))
    return found


class Laid:
    """A batch as verl has it: rows in any order, padding among them."""

    def __init__(self, batch: list[ref.Rollout], seed: int = 0, padding: int = 2) -> None:
        self.batch = batch
        rows: list[tuple[str, bool, list[int], str, int, int]] = []
        for number, one in enumerate(batch):
            done = 0
            for index, mask in enumerate(one.masks):
                notes = RowNotes(calls=self._calls(one, mask, done), rewards=one.dimensions)
                key = f"{one.task}_{number}_{index}"
                rows.append((key, False, mask, notes.model_dump_json(), number, done))
                done += sum(mask)
        # verl copies the first row's fields into padding, its notes among them.
        for number in range(padding):
            rows.append((f"padabc_{number}_0", True, [0], rows[0][3], -1, 0))
        random.Random(seed).shuffle(rows)
        self.rows = rows
        self.width = max(len(row[2]) for row in rows)
        mask_BL = torch.zeros(len(rows), self.width, dtype=torch.int64)
        for place, row in enumerate(rows):
            mask_BL[place, : len(row[2])] = torch.tensor(row[2])
        self.mask_BL = mask_BL
        self.rollouts = trajectories(
            [row[0] for row in rows], [row[1] for row in rows], mask_BL, [row[3] for row in rows]
        )
        # trajectories() has rollouts in order of appearance
        self.order = [int(name.rsplit("_", 1)[1]) for name in self.rollouts.names]

    def _calls(self, one: ref.Rollout, mask: list[int], done: int) -> list[CallNote]:
        if one.calls is None:
            return []
        notes: list[CallNote] = []
        for start, length in runs(mask):
            call = next(c for c in one.calls if c.start == done)
            step = None
            if call.step:
                step = StepCredit(group=call.step[0], reward=call.step[1], weight=call.step[2])
            credit = Credit(reward=call.reward, rule="by hand", group=call.group, step=step)
            notes.append(CallNote(start=start, end=start + length, credit=credit))
            done += length
        return notes

    def spread(self, per_rollout: list[Any]) -> Any:
        """Per rollout an array over its sampled tokens -> rows ``(B, L)``."""
        result = np.zeros((len(self.rows), self.width))
        for place, (_, _, mask, _, number, done) in enumerate(self.rows):
            for position, bit in enumerate(mask):
                if bit:
                    result[place, position] = per_rollout[number][done]
                    done += 1
        return result

    def packed(self, name: str) -> Any:
        values = self.spread([getattr(one, name) for one in self.batch])
        return self.rollouts.pack(torch.tensor(values, dtype=torch.float32))

    def inputs(self, **options: Any) -> Inputs:
        return Inputs(
            self.rollouts,
            torch.tensor([self.batch[i].reward for i in self.order]),
            self.packed("penalties"),
            values_NT=self.packed("values"),
            old_logprobs_NT=self.packed("old"),
            sum_pi_squared_NT=self.packed("sum_pi_squared"),
            **options,
        )

    def estimate(self, name: str, **options: Any) -> tuple[Any, Any]:
        result = ESTIMATORS[name](self.inputs(**options))
        pair = result if isinstance(result, tuple) else (result, result)
        return self.rollouts.unpack(pair[0]), self.rollouts.unpack(pair[1])


def check(laid: Laid, got: Any, expected: list[Any]) -> None:
    np.testing.assert_allclose(got.numpy(), laid.spread(expected), rtol=TOLERANCE, atol=TOLERANCE)


def without_calls(batch: list[ref.Rollout]) -> Laid:
    return Laid(batch, seed=len(batch))


OF_TWO = {"reward_keys": ["right", "short"], "reward_weights": [1.0, 0.5]}


@pytest.mark.parametrize(
    ("name", "options", "reference"),
    [
        ("grpo", {}, ref.grpo),
        ("grpo", {"normalise_std": False}, partial(ref.grpo, normalise=False)),
        ("rloo", {}, ref.rloo),
        ("opo", {}, ref.opo),
        ("gpg", {}, ref.gpg),
        ("grpo_passk", {}, ref.grpo_passk),
        ("gdpo", OF_TWO, lambda batch: ref.gdpo(batch, *OF_TWO.values())),
        ("reinforce_plus_plus_baseline", {}, ref.reinforce_plus_plus_baseline),
        ("optimal_token_baseline", {}, ref.optimal_token_baseline),
        *(
            ("reinforce_plus_plus", {"gamma": gamma}, partial(ref.reinforce_plus_plus, gamma=gamma))
            for gamma in (1.0, 0.9)
        ),
        *(
            ("gae", {"gamma": gamma, "lam": lam}, partial(ref.gae, gamma=gamma, lam=lam))
            for gamma in (1.0, 0.9)
            for lam in (1.0, 0.95, 0.0)
        ),
    ],
)
@settings(max_examples=25)
@given(data=st.data())
def test_estimators_of_whole_rollouts_equal_numpy(name, options, reference, data) -> None:
    """What goes on from row to row, too."""
    laid = without_calls(data.draw(batches()))
    expected = reference(laid.batch)
    advantages, returns = expected if isinstance(expected, tuple) else (expected, expected)
    got, got_returns = laid.estimate(name, **options)
    check(laid, got, advantages)
    check(laid, got_returns, returns)


@settings(max_examples=50)
@given(batch=batches(calls=True), normalise=st.booleans())
def test_grpo_compares_calls_where_credits_say_so(batch: list[ref.Rollout], normalise: bool):
    for one in batch:
        one.penalties = np.zeros(one.length)
    laid = without_calls(batch)
    got, _ = laid.estimate("grpo", normalise_std=normalise)
    check(laid, got, ref.grpo_by_calls(batch, normalise))


def keyed(*keys: str, notes: Any = None, mask: Any = None, padding: bool = False) -> Trajectories:
    mask = torch.ones(len(keys), 2) if mask is None else mask
    given = None if notes is None else [note.model_dump_json() for note in notes]
    return trajectories(list(keys), [padding] * len(keys), mask, given)


def note(start: int, end: int, reward: float | None = 1.0, group: str = "") -> RowNotes:
    credit = Credit(reward=reward, rule="per_agent", group=group)
    return RowNotes(calls=[CallNote(start=start, end=end, credit=credit)])


@pytest.mark.parametrize(
    ("keys", "given", "said"),
    [
        *(([key], {}, "cannot tell its rollout") for key in ("t", "t_0", "t_0_x", "_0_0")),
        (["t_0_0", "t_0_0"], {}, "twice"),
        (["pada_0_0"], {"padding": True}, "all of them are padding"),
        (["t_0_0"], {"notes": [note(0, 1)]}, "calls cover 1 sampled tokens, its .* has 2"),
        (["t_0_0"], {"notes": [note(0, 3)]}, "out of the row's 2"),
        (["t_0_0"], {"notes": [note(1, 1)]}, "empty"),
        (["t_0_0"], {"notes": [note(0, 2, None)]}, "got no reward"),
        (["t_0_0"], {"notes": [note(0, 2)], "mask": torch.tensor([[1, 0]])}, "zeros within the"),
    ],
)
def test_rows_that_do_not_fit_are_refused(keys: list[str], given: Any, said: str) -> None:
    with pytest.raises(AlgorithmError, match=said):
        keyed(*keys, **given)


@pytest.mark.parametrize(
    "name", ["gae", "gdpo", "grpo_passk", "optimal_token_baseline", "reinforce_plus_plus"]
)
def test_estimators_of_whole_rollouts_refuse_credits_that_tell_calls_apart(name: str) -> None:
    rollouts = keyed("t_0_0", "t_0_1", notes=[note(0, 2, 1.0), note(0, 2, 0.0)])
    zeros = torch.zeros(1, 4)
    inputs = Inputs(rollouts, torch.ones(1), zeros, values_NT=zeros, reward_keys=["right"])
    with pytest.raises(AlgorithmError, match=f"'{name}' takes the reward of whole rollouts.*per_a"):
        ESTIMATORS[name](inputs)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gae", {}, "needs a critic's values"),
        ("gdpo", {"reward_keys": ["right"]}, "rollout 't_0' has no reward 'right'"),
        ("gdpo", {}, "needs rewards"),
    ],
)
def test_an_estimator_without_what_it_needs_is_refused(name: str, options: Any, said: str) -> None:
    inputs = Inputs(keyed("t_0_0"), torch.ones(1), torch.zeros(1, 2), **options)
    with pytest.raises(AlgorithmError, match=said):
        ESTIMATORS[name](inputs)
