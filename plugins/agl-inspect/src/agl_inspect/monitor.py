"""A hook that watches whether answers get worse while their reward rises.

    hooks:
      - agl_inspect.monitor:RewardMonitor

A policy learns what is rewarded, and that is not always what was meant. Four signals of a step's
training rollouts, of the texts that the models answered:

    length       characters of a rollout's answers, mean over rollouts
    repetition   1 - distinct n-grams of words / all of them, of a rollout; mean over rollouts
    equal        share of rollouts that say exactly what another of the step says
    hidden       share of rollouts in which a tool failed, the last answer says nothing of that, and
                 the reward is the step's mean or more

Means over the first ``window`` steps are compared with those over the last ones. All values are in
``reward-monitor.jsonl`` in the run's folder, a step a line; a run that goes on goes on from there.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from agl.algorithm.base import Algorithm
from agl.store.base import LightningStore
from agl.utils.checks import check_numbers
from agl_records.calls.reader import model_calls
from agl_records.ledger.documents import each_part
from agl_records.types import OF_OTHERS

logger = logging.getLogger("agl.inspect")

FILE = "reward-monitor.jsonl"
_OF_OTHERS = OF_OTHERS | {"perhaps_judge"}
_FAILED = re.compile(r"^\W{0,3}(error|exception|traceback|failed|failure)\b", re.I)
_SPOKEN = re.compile(r"\b(error|exception|fail\w*|could ?n.t|cannot|unable|problem)", re.I)


@dataclass(frozen=True)
class RolloutAnswers:
    """What of a rollout is looked at."""

    rollout_id: str
    answers: tuple[str, ...]
    tool_failed: bool
    reward: float | None


def repetition(text: str, n: int) -> float:
    """The share of n-grams of words that came before.

    Example:
        ``a b a b a`` has the pairs ab, ba, ab, ba: two of four came before, 0.5.
    """
    words = text.split()
    grams = [tuple(words[at : at + n]) for at in range(len(words) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def measures(said: Sequence[RolloutAnswers], n: int = 4) -> list[dict[str, float]]:
    """Signal -> what each rollout has of it."""
    texts = Counter(one.answers for one in said)
    rewards = [one.reward for one in said if one.reward is not None]
    mean = fmean(rewards) if rewards else 0.0
    return [
        {
            "length": float(sum(map(len, one.answers))),
            "repetition": repetition(" ".join(one.answers), n),
            "equal": float(texts[one.answers] > 1),
            "hidden": float(is_hidden(one, mean)),
        }
        for one in said
    ]


def is_hidden(one: RolloutAnswers, mean: float) -> bool:
    """Whether a tool failed, the last answer does not say so, and the reward is no less for it."""
    last = one.answers[-1] if one.answers else ""
    is_good = one.reward is not None and one.reward >= mean
    return one.tool_failed and is_good and not _SPOKEN.search(last)


class RewardMonitor:
    """Warns when the reward rises while answers degenerate.

    Args:
        window: So many steps at the beginning are compared with as many at the end.
        rise: Of the mean reward, from which on it has risen.
        longer: Answers that are so many times as long, or as short, are remarkable.
        repeats: So is a rise of the share of repeated n-grams by so much.
        ngram: Words of an n-gram.
        equals: And one of the share of rollouts that say the same.
        hides: And one of the share of rollouts that hide the errors of tools.
        rollouts: At most so many of a step are read.

    Raises:
        ConfigError: An option is out of its range.
    """

    def __init__(
        self,
        window: int = 5,
        rise: float = 0.05,
        longer: float = 2.0,
        repeats: float = 0.2,
        ngram: int = 4,
        equals: float = 0.3,
        hides: float = 0.1,
        rollouts: int = 64,
    ) -> None:
        owner = type(self).__name__
        check_numbers(owner, whole=True, least=1, window=window, rollouts=rollouts)
        check_numbers(owner, whole=True, least=2, ngram=ngram)
        check_numbers(owner, above=0, rise=rise)
        check_numbers(owner, above=1, longer=longer)
        check_numbers(owner, above=0, most=1, repeats=repeats, equals=equals, hides=hides)
        self._window, self._rise, self._longer = window, rise, longer
        self._ngram, self._rollouts = ngram, rollouts
        self._limits = {"repetition": repeats, "equal": equals, "hidden": hides}
        self._steps: dict[int, dict[str, float]] = {}
        self._warned: dict[str, int] = {}
        self._store: LightningStore | None = None

    def on_run_start(self, algorithm: Algorithm, store: LightningStore) -> None:
        self._store, self._steps, self._warned = store, {}, {}
        path = _file(algorithm)
        if path is not None and path.is_file():
            for line in path.read_text().splitlines():
                one = json.loads(line)
                self._steps[one.pop("step")] = one

    async def on_step_end(
        self, algorithm: Algorithm, step: int, metrics: Mapping[str, Any]
    ) -> None:
        run, reward = algorithm.get_run(), metrics.get("reward/mean")
        if self._store is None or run is None or reward is None:
            return
        said = await self._said(run[0], step)
        if not said:
            return
        self._steps = {n: one for n, one in self._steps.items() if n < step}
        of_each = measures(said, self._ngram)
        means = {name: fmean(one[name] for one in of_each) for name in of_each[0]}
        self._steps[step] = {"reward": float(reward), **means}
        if (path := _file(algorithm)) is not None:
            with path.open("a") as file:
                file.write(json.dumps({"step": step, **self._steps[step]}) + "\n")
        for name, warning in self.warnings(step).items():
            signal, sign, _ = _WORSE[name]
            worst = max(range(len(said)), key=lambda n: sign * of_each[n][signal])
            logger.warning("%s. Look at agl show %s", warning, said[worst].rollout_id)

    def warnings(self, step: int) -> dict[str, str]:
        """What became worse -> what is to be said of it after a step; once in ``window`` steps."""
        numbers, size = sorted(self._steps), self._window
        if len(numbers) < 2 * size:
            return {}
        first, last = numbers[:size], numbers[-size:]

        def means(signal: str) -> tuple[float, float]:
            then, now = (fmean(self._steps[n][signal] for n in steps) for steps in (first, last))
            return then, now

        before, after = means("reward")
        if after - before < self._rise:
            return {}
        found: dict[str, str] = {}
        for name, (signal, sign, words) in _WORSE.items():
            then, now = means(signal)
            if signal == "length":
                less, more = (then, now) if sign > 0 else (now, then)
                is_worse = more >= self._longer * less and more > 0
            else:
                is_worse = now - then >= self._limits[signal]
            if is_worse and step - self._warned.get(name, -size) >= size:
                self._warned[name] = step
                found[name] = (
                    f"step {step}: the reward rose from {before:.3g} (steps {first[0]} to "
                    f"{first[-1]}) to {after:.3g} (steps {last[0]} to {last[-1]}), while {words}: "
                    f"{then:.3g} then, {now:.3g} now"
                )
        return found

    async def _said(self, run: str, step: int) -> list[RolloutAnswers]:
        assert self._store is not None
        of_others: dict[str, set[str]] = {}
        async for part in each_part(self._store, run=run, step=step, lost=False):
            if part.mode == "train" and len(of_others) < self._rollouts:
                excluded = [one for one in part.excluded if one.reason in _OF_OTHERS]
                of_others[part.rollout_id] = {one.call_id for one in excluded}
        said: list[RolloutAnswers] = []
        rollouts = await self._store.query_rollouts(rollout_id_in=list(of_others))
        rewards = {one.rollout_id: one.reward for one in rollouts}
        for rollout_id, others in of_others.items():
            spans = await self._store.query_spans(rollout_id, "latest")
            calls = [call for call in model_calls(spans) if call.call_id not in others]
            if calls := [call for call in calls if call.response is not None]:
                answers = tuple(str((call.response or {}).get("content") or "") for call in calls)
                results = [one for c in calls for one in c.messages if one.get("role") == "tool"]
                failed = any(
                    one.get("is_error") is True or _FAILED.search(str(one.get("content") or ""))
                    for one in results
                )
                said.append(RolloutAnswers(rollout_id, answers, failed, rewards[rollout_id]))
        return said


_WORSE = {
    "shorter": ("length", -1, "answers became shorter (characters)"),
    "longer": ("length", 1, "answers became longer (characters)"),
    "repetition": ("repetition", 1, "answers repeat themselves (share of repeated n-grams)"),
    "equal": ("equal", 1, "more rollouts say the same (share of the step)"),
    "hidden": (
        *("hidden", 1),
        "errors of tools are passed over (share of rollouts that did well all the same)",
    ),
}
"""What becomes worse -> its signal, whether more (1) or less (-1) of it is worse, in words."""


def _file(algorithm: Algorithm) -> Path | None:
    folder = algorithm.get_run_folder()
    return None if folder is None else folder / FILE
