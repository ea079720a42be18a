"""Prompts improved on recorded attempts alone: nothing is run, so their rewards are predicted.

1. The recorded prompts are ranked by what they got: by the lower bound of the mean reward.
2. Half of the tasks are for critiques, as in a run of APO; an edited prompt is criticised by the
   attempts of the recorded prompt that it comes from.
3. A model that sees such attempts predicts what a prompt would get on the other half. It predicts
   the recorded prompts as well, whose rewards there are known: how far it is off is its error.
4. An edited prompt takes the place of the best recorded one only if its predicted gain over it is
   larger than that error. It stays a prediction: a run with an agent is what decides.
"""

import asyncio
import logging
import random
import re
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agl.errors import AlgorithmError, ConfigError
from agl.types import PromptTemplate
from agl_apo.copying import copied_tasks
from agl_apo.logged import Attempt, Logged
from agl_apo.models import Models, bare, fill
from agl_apo.options import APOOptions
from agl_apo.statistics import bounds
from agl_apo.templates import BrokenTemplateError, check_edit, placeholders

logger = logging.getLogger("agl.apo")

FEWEST_TASKS = 4
"""Two to learn from, and two to predict."""
_PLAIN = "plain text"
"""What editors are told of a prompt that is no template."""


@dataclass(frozen=True)
class LoggedPrompt:
    """A prompt that was used, and what it got; rewards in the units of the data."""

    text: str
    attempts: int
    mean: float
    lower: float
    upper: float
    """Of the mean: wrong together with a chance of 1 - ``confidence``, if tasks were assigned to
    prompts at random."""


@dataclass
class Proposed:
    """A prompt of the search, recorded or edited."""

    text: str
    ancestor: str
    """The recorded prompt that it comes from; itself, if it is one."""
    predicted: float | None = None
    """Mean predicted reward on the held-out tasks; None where no prediction came."""


@dataclass(frozen=True)
class OffPolicyResult:
    """What came of ``APO.optimize``."""

    best_prompt: str
    is_new: bool
    """Whether it was edited; False: it is the best of the recorded ones."""
    evidence: str
    """What speaks for it, in words: off-policy, whatever it is."""
    logged: list[LoggedPrompt]
    """The best first."""
    candidates: list[Proposed]
    """The best first, as predicted."""
    prediction_error: float | None
    """How far predicted means of recorded prompts were off; None where none could be checked."""
    dropped: Counter[str]
    """Why an edit was not tried -> how many."""
    left_out: Counter[str]
    """Why a record was not used -> how many."""
    tokens: int
    """Of all calls to models."""


@dataclass
class OffPolicySearch:
    """One search over recorded attempts."""

    options: APOOptions
    models: Models
    templates: Mapping[str, Sequence[str]]
    """What models are asked, for ``critique``, ``edit`` and ``predict``."""
    logged: Logged
    template: PromptTemplate | None
    """What placeholders an edit must keep; None where prompts are plain texts."""
    rng: random.Random = field(init=False)
    tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self.rng = random.Random(self.options.seed)
        tasks = sorted({attempt.task for attempt in self.logged.attempts})
        if len(tasks) < FEWEST_TASKS:
            raise ConfigError(
                f"APO.optimize: {len(self.logged.attempts)} attempts at {len(tasks)} tasks; give "
                f"at least {FEWEST_TASKS} tasks: half are for critiques, half for predictions"
            )
        self.rng.shuffle(tasks)
        held_out = frozenset(tasks[: len(tasks) // 2])
        self.held_out = [task for task in tasks if task in held_out][: self.options.val_batch_size]
        self.search = [one for one in self.logged.attempts if one.task not in held_out]
        size = max(self.options.gradient_batch_size, self.options.val_batch_size)
        self.shown = self.rng.sample(self.search, min(size, len(self.search)))
        """What every prediction sees."""

    async def run(self) -> OffPolicyResult:
        """Search, and say what the result rests on.

        Raises:
            AlgorithmError: The models do not answer.
        """
        ranked = self._ranked()
        known = [Proposed(one.text, one.text) for one in ranked[: self.options.beam_width]]
        await self._predict(known)
        if all(one.predicted is None for one in known):
            raise AlgorithmError(
                "APO.optimize: no prediction of a recorded prompt came back from "
                f"{self.options.gradient_model!r}; the reasons: {dict(self.dropped)}"
            )
        beam = list(known)
        for number in range(self.options.beam_rounds):
            new = await self._edited(number, beam, {one.text for one in known})
            await self._predict(new)
            known += new
            beam = self._best_of(known)[: self.options.beam_width]
        return self._result(ranked, self._best_of(known))

    def _ranked(self) -> list[LoggedPrompt]:
        found = [
            LoggedPrompt(
                text,
                len(attempts),
                self._unscaled(_mean([one.reward for one in attempts])),
                *self._interval([one.reward for one in attempts]),
            )
            for text, attempts in self.logged.by_prompt().items()
        ]
        return sorted(found, key=lambda one: (one.lower, one.mean), reverse=True)

    def _interval(self, rewards: Sequence[float]) -> tuple[float, float]:
        lower, upper = bounds(rewards, 1 - self.options.confidence, (0.0, 1.0))
        return self._unscaled(lower), self._unscaled(upper)

    @staticmethod
    def _best_of(known: Sequence[Proposed]) -> list[Proposed]:
        """By what is predicted, those without a prediction last; of equal ones the earlier."""
        return sorted(known, key=lambda one: (one.predicted is None, -(one.predicted or 0.0)))

    # --- edits

    async def _edited(
        self, number: int, beam: Sequence[Proposed], known: set[str]
    ) -> list[Proposed]:
        places = [
            (parent, branch) for parent in beam for branch in range(self.options.branch_factor)
        ]
        # Drawn before anything waits, so that the same seed asks the same.
        asks = [self._edit(parent, branch, self._sample(parent)) for parent, branch in places]
        texts = await self._all(f"round {number + 1}", asks)
        new: list[Proposed] = []
        for (parent, _), text in zip(places, texts, strict=True):
            why = self._problem(parent, text, known)
            if why is not None:
                self.dropped[why] += 1
                continue
            assert text is not None
            known.add(text)
            new.append(Proposed(text, parent.ancestor))
        return new

    def _problem(self, parent: Proposed, text: str | None, known: set[str]) -> str | None:
        if text is None:
            return "no edit came back"
        if self.template is not None:
            try:
                check_edit(self.template, text)
            except BrokenTemplateError as error:
                return f"the edit breaks the template: {error}"
        if text in known:
            return "the same as an earlier prompt"
        if copied_tasks(text, parent.ancestor, [one.task for one in self.search]):
            return "it copies a recorded task"
        return None

    def _sample(self, parent: Proposed) -> list[Attempt]:
        """Attempts of the recorded prompt, half of them the worst, as ``APO`` shows them."""
        attempts = [one for one in self.search if one.prompt == parent.ancestor] or self.search
        attempts = self.rng.sample(attempts, len(attempts))
        size = min(self.options.gradient_batch_size, len(attempts))
        ranked = sorted(attempts, key=lambda one: one.reward)
        worst = ranked[: (size + 1) // 2]
        rest = [one for one in attempts if one not in worst]
        return [*worst, *rest[: size - len(worst)]]

    async def _edit(self, parent: Proposed, branch: int, sample: Sequence[Attempt]) -> str:
        shared = {"what": "its prompt", "prompt": parent.text}
        before = None if parent.text == parent.ancestor else parent.ancestor
        engine = self.template.engine if self.template is not None else _PLAIN
        fields = sorted(placeholders(self.template)) if self.template is not None else []
        asked = self.templates["critique"]
        critique = await self._ask(
            self.options.gradient_model,
            asked[branch % len(asked)],
            **shared,
            reward_range=self.options.reward_range,
            experiments=[self._shown(one, before) for one in sample],
        )
        asked = self.templates["edit"]
        text = await self._ask(
            self.options.apply_edit_model,
            asked[branch % len(asked)],
            **shared,
            critique=critique,
            engine=engine,
            placeholders=[
                f"{{{name}}}" if engine == "f-string" else f"{{{{ {name} }}}}" for name in fields
            ],
        )
        return bare(text)

    def _shown(self, attempt: Attempt, before: str | None) -> dict[str, Any]:
        """What models see of an attempt; ``before`` is the prompt that was used, if another one."""
        notes = [] if before is None else [f"This was said with an earlier prompt: {before}"]
        notes += [] if attempt.comment is None else [f"What was said of it: {attempt.comment}"]
        return {
            "prompt": attempt.prompt,
            "task": attempt.task,
            "reward": round(self._unscaled(attempt.reward), 3),
            "failure": None,
            "messages": [
                *({"role": "note", "content": note} for note in notes),
                *(
                    {"role": str(m.get("role")), "content": m.get("content") or ""}
                    for m in attempt.messages
                ),
            ],
        }

    # --- predictions

    async def _predict(self, proposed: Sequence[Proposed]) -> None:
        answers = await self._all("predictions", [self._rewards_of(one.text) for one in proposed])
        for one, rewards in zip(proposed, answers, strict=True):
            one.predicted = None if rewards is None else self._unscaled(_mean(rewards))

    async def _rewards_of(self, text: str) -> list[float]:
        """What the model predicts for each held-out task, from 0 to 1."""
        answer = await self._ask(
            self.options.gradient_model,
            self.templates["predict"][0],
            prompt=text,
            reward_range=self.options.reward_range,
            experiments=[self._shown(one, None) for one in self.shown],
            tasks=self.held_out,
        )
        found = dict(re.findall(r"^\s*(\d+)\s*[:.)]\s*(-?\d+(?:\.\d+)?)\s*$", answer, re.M))
        numbers = [found.get(str(number)) for number in range(1, len(self.held_out) + 1)]
        if None in numbers:
            raise AlgorithmError(
                f"a prediction has {len(found)} lines like '1: 0.5', not {len(self.held_out)}"
            )
        low, high = self.options.reward_range
        return [
            (min(max(float(number), low), high) - low) / (high - low)
            for number in numbers
            if number is not None
        ]

    def _error(self, candidates: Sequence[Proposed]) -> float | None:
        """How far predictions of recorded prompts are off, on the held-out tasks where they ran."""
        errors: list[float] = []
        by_prompt, held_out = self.logged.by_prompt(), set(self.held_out)
        for one in candidates:
            attempts = by_prompt.get(one.text, ())
            rewards = [each.reward for each in attempts if each.task in held_out]
            if rewards and one.predicted is not None:
                errors.append(abs(one.predicted - self._unscaled(_mean(rewards))))
        return _mean(errors) if errors else None

    # --- the end

    def _result(self, ranked: list[LoggedPrompt], candidates: list[Proposed]) -> OffPolicyResult:
        best, error = ranked[0], self._error(candidates)
        base = next(one.predicted for one in candidates if one.text == best.text)
        recorded = {one.text for one in ranked}
        leader = next((one for one in candidates if one.text not in recorded), None)
        chosen = best.text
        said = (
            f"it got {best.mean:.3g} (from {best.lower:.3g} to {best.upper:.3g}) over "
            f"{best.attempts} recorded attempts"
        )
        if leader is None or leader.predicted is None or base is None or error is None:
            why = "no edited prompt could be compared with it"
        else:
            gain = leader.predicted - base
            chosen = leader.text if gain > error else best.text
            why = (
                f"{self.options.gradient_model!r} predicts {leader.predicted:.3g} for the best "
                f"edited prompt and {base:.3g} for the best recorded one on {len(self.held_out)} "
                f"held-out tasks: a gain of {gain:.3g}, where its predictions of recorded prompts "
                f"are off by {error:.3g}"
            )
        if chosen != best.text:
            evidence = (
                f"off-policy: this prompt was never run. {why}. The best recorded prompt stays "
                f"behind: {said}. Run APO with an agent before you rely on it."
            )
        else:
            several = "; prompts were not assigned to tasks at random" if len(ranked) > 1 else ""
            evidence = f"off-policy: the best recorded prompt stays: {said}{several}. {why}."
        logger.info("%s", evidence)
        return OffPolicyResult(
            best_prompt=chosen,
            is_new=chosen != best.text,
            evidence=evidence,
            logged=ranked,
            candidates=candidates,
            prediction_error=error,
            dropped=self.dropped,
            left_out=self.logged.left_out,
            tokens=self.tokens,
        )

    async def _ask(self, model: str, template: str, **values: Any) -> str:
        answer = await self.models.ask(model, fill(template, **values))
        self.tokens += answer["tokens"]
        return answer["text"]

    async def _all(self, what: str, asks: Sequence[Awaitable[Any]]) -> list[Any]:
        """The answers, None for a call that failed; if all did, the first error is raised."""
        answers = await asyncio.gather(*asks, return_exceptions=True)
        errors = [one for one in answers if isinstance(one, BaseException)]
        for error in errors:
            if isinstance(error, ConfigError) or not isinstance(error, Exception):
                raise error
            self.dropped[f"{type(error).__name__}: {error}"[:200]] += 1
        if errors and len(errors) == len(answers):
            raise AlgorithmError(
                f"APO.optimize: none of the {len(answers)} model calls of {what} came back; the "
                f"first failed with {type(errors[0]).__name__}: {errors[0]}. Are the models "
                f"{self.options.gradient_model!r} and {self.options.apply_edit_model!r} there?"
            ) from errors[0]
        return [None if isinstance(one, BaseException) else one for one in answers]

    def _unscaled(self, reward: float) -> float:
        low, high = self.options.reward_range
        return low + reward * (high - low)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
