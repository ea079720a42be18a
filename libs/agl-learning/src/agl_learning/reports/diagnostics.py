"""From the metrics of steps to what keeps a run from learning.

Each sign is a function of the metrics of the last few steps, and of the rewards of all steps, so
that it is the same for every trainer and after a restart. What a run has learned to the end is no
sign: equal rewards and certain answers are as they should be where the reward has risen. Where
several models are trained, each is looked at for itself.

Each is said once: as a warning, in ``findings.jsonl`` in the run's folder, and at the end.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from agl_learning.reports.json_lines import is_number, read_json_lines

STEPS: Final = 3
"""So many steps in a row must look alike before it is said; fewer where the run has fewer."""
LEAST_ENTROPY = 0.005
"""Nats per token; a model below it says nearly the same whatever is drawn."""
LEAST_BIAS = 0.05
"""Deviations of the reward by which failures move its mean; nobody minds less."""
SLOW_SECONDS = 30.0
"""Of a step's rollouts; below it nobody minds that they run one by one."""

Metrics = Mapping[str, Any]
"""Of one training step, as in ``metrics.jsonl``."""

OF_MODELS: Final = ("calls/", "prompts/", "tokens/")
"""Metrics of all models together that each of several has for itself, too, after its name."""
OF_A_MODEL: Final = "/calls/trained"
"""Each of several models has it after its name; so has ``val``, which is none."""

TOKENIZER: Final = (
    "the tokenizer does not know this text: its pre_tokenizer or vocabulary is not the one of the "
    "model, or was set after the tokenizer was wrapped, or its chat template leaves the content "
    "out",
    "Compare tokenizer.decode(ids) with the prompt for one of them (agl show ROLLOUT --tokens has "
    "the ids; agl doctor compares them), and train with the tokenizer of the model",
)
"""The likely cause, and the advice."""


FINDINGS: Final = "findings.jsonl"
"""In a run's folder: a JSON object per finding."""


@dataclass(frozen=True)
class Finding:
    """Something that keeps a run from learning."""

    code: str
    step: int
    """After which it was noticed."""
    seen: str
    likely: str
    """The cause that is most frequent."""
    advice: str
    model: str = ""
    """Which it is about, where several are trained."""

    def __str__(self) -> str:
        return f"{self.seen}. Likely cause: {self.likely}. {self.advice}"

    @classmethod
    def read(cls, folder: Path) -> tuple[list["Finding"], str]:
        """Those of a run, and which lines cannot be read and are left out, in words."""
        found: list[Finding] = []
        read = read_json_lines(folder / FINDINGS)
        for number, said in read.objects:
            kinds = {name: int if name == "step" else str for name in said}
            try:
                if any(type(said[name]) is not kind for name, kind in kinds.items()):
                    raise TypeError
                found.append(cls(**said))
            except TypeError:
                read.leave_out(f"line {number}: no finding")
        return found, read.unread

    def write(self, folder: Path) -> None:
        """Append it to those of a run."""
        with (folder / FINDINGS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(self)) + "\n")


class Diagnostics:
    """Watches the training steps of a run for what may keep it from learning.

    Of all steps it keeps the last few whole, and of the others their mean rewards.
    The run is to have ``steps``, 0 where nobody knows; advantages of a model ("" where there is
    one) are made by ``estimator_of`` it.
    """

    def __init__(self, steps: int, estimator_of: Callable[[str], str] = str) -> None:
        self._steps, self._estimator_of = steps, estimator_of
        self._last: deque[dict[str, float]] = deque(maxlen=STEPS)
        self._means: dict[str, list[float]] = {"": []}
        """Model -> the mean reward of each step; "" of all together."""
        self._norms: set[bool] = set()
        """Whether gradients were 0."""

    def add(self, step: Metrics) -> None:
        """Take in the metrics of the next step; what is no number is left out."""
        known = {name: value for name, value in step.items() if is_number(value)}
        self._last.append(known)
        for name in known:
            if name.endswith(OF_A_MODEL):
                self._means.setdefault(name.removesuffix(OF_A_MODEL), [])
        for model, means in self._means.items():
            own = _own(known, model)
            if "reward/mean" in own:
                means.append(own["reward/mean"])
            if "grad_norm" in own:
                self._norms.add(own["grad_norm"] == 0)

    def found(self) -> list[Finding]:
        """What is seen after the last step."""
        if not self._last:
            return []
        models = self._means.keys() - {""}
        return [
            replace(one, model=model, seen=f"model {model!r}: {one.seen}" if model else one.seen)
            for model in sorted(models or {""})
            for one in self._of_model([_own(step, model) for step in self._last], model)
        ]

    def _of_model(self, last: Sequence[Metrics], model: str) -> list[Finding]:
        enough = min(STEPS, self._steps or STEPS)
        codes = [*AT_ONCE]
        if len(last) < enough:
            last = last[-1:]
        else:
            last = last[-max(1, enough) :]
            codes.append("no_gradient")
            means = self._means[model] or [0.0]
            first, newest, most = means[0], means[-1], max(means)
            if not (newest > first and newest >= most - 0.05 * (most - first)):
                has_teacher = self._estimator_of(model) == "reverse_kl"
                codes += ["equal_to_teacher" if has_teacher else "equal_rewards", "no_entropy"]
            codes += ["no_tokens", "unreadable", "no_calls", "biased_failures"]
        found: list[Finding] = []
        for code in codes:
            look, *advice = SIGNS[code]
            if seen := look(last):
                if code == "no_gradient" and any(SIGNS[lost][0](last) for lost in LOST_TEXT):
                    advice = TOKENIZER
                found.append(Finding(code, int(last[-1]["step"]), seen, *advice))
        return found

    @property
    def is_unchanged(self) -> bool:
        """Whether no step has changed the weights, although calls were trained."""
        return self._norms == {True}


def _same_prompts(last: Sequence[Metrics]) -> str:
    different, as_tokens = _number(last[-1], "prompts/different"), last[-1].get("prompts/as_tokens")
    if different < 2 or as_tokens is None or 2 * as_tokens > different:
        return ""
    return (
        f"{different:.0f} prompts of step {last[-1]['step']} that differ reach the model as "
        f"{as_tokens} sequence{'s' if as_tokens > 1 else ''} of tokens, so it cannot tell them "
        "apart"
    )


def _unknown_tokens(last: Sequence[Metrics]) -> str:
    unknown, step = _number(last[-1], "tokens/unknown"), last[-1]
    tokens = _number(step, "tokens/given") + _number(step, "tokens/sampled")
    if not tokens or unknown < tokens / 2:
        return ""
    return (
        f"{unknown:.0f} of {tokens:.0f} tokens of step {step['step']} are the tokenizer's unknown "
        "token"
    )


def _one_by_one(last: Sequence[Metrics]) -> str:
    number = _number(last[-1], "rollouts/succeeded")
    at_once = last[-1].get("time/rollouts_at_once") or number
    if number < 8 or at_once > 2 or _number(last[-1], "time/rollouts") < SLOW_SECONDS:
        return ""
    return (
        f"{number:.0f} rollouts of {_steps(last)} took {last[-1]['time/rollouts']:.0f} s, and "
        f"{at_once:.1f} of them ran at once: the model's server waits for calls"
    )


def _no_gradient(last: Sequence[Metrics]) -> str:
    if any(step.get("grad_norm") != 0 for step in last):
        return ""
    trained = sum(_number(step, "calls/trained") for step in last)
    return (
        f"the gradient was 0 in {_steps(last)}, with {trained:.0f} calls trained: the weights do "
        "not change"
    )


def _equal_rewards(last: Sequence[Metrics]) -> str:
    if not all(_first_reason(step) == "zero_advantage" for step in last):
        return ""
    means = [step["reward/mean"] for step in last if step.get("reward/mean") is not None]
    same = all(step.get("reward/std") == 0 for step in last) and len({*means}) == 1
    if same:
        seen = f"every reward in {_steps(last)} is {means[0]:.4g}"
    else:
        seen = f"the rewards of each task's rollouts are equal in {_steps(last)}"
    return f"{seen}, so no rollout is better than its siblings, and nothing is trained"


def _equal_to_teacher(last: Sequence[Metrics]) -> str:
    if not all(_first_reason(step) == "zero_advantage" for step in last):
        return ""
    return (
        f"the teacher finds each token as likely as the model does in {_steps(last)}, and nothing "
        "is trained"
    )


def _no_entropy(last: Sequence[Metrics]) -> str:
    found = [step.get("entropy") for step in last]
    if not all(isinstance(one, int | float) and one < LEAST_ENTROPY for one in found):
        return ""
    return (
        f"the entropy is below {LEAST_ENTROPY} nats per token in {_steps(last)}: the model gives "
        "the same answer every time, and its reward is no better than at the beginning"
    )


def _no_tokens(last: Sequence[Metrics]) -> str:
    reasons = {_first_reason(step) for step in last}
    if not reasons or not reasons <= {"no_token_ids", "no_logprobs"}:
        return ""
    what = "token ids" if "no_token_ids" in reasons else "log-probabilities"
    return f"model calls have no {what} in {_steps(last)}, and nothing is trained"


def _no_calls(last: Sequence[Metrics]) -> str:
    if any(_number(step, "calls/total") or "calls/total" not in step for step in last):
        return ""
    if not any(_number(step, "rollouts/succeeded") for step in last) or _unreadable(last):
        return ""
    return f"rollouts succeed in {_steps(last)}, and no model call of theirs is recorded"


def _unreadable(last: Sequence[Metrics]) -> str:
    most = [
        _number(step, "rollouts/unreadable") > _number(step, "rollouts/succeeded") / 2
        for step in last
    ]
    return f"most rollouts of {_steps(last)} succeed, and cannot be read" if all(most) else ""


def _biased_failures(last: Sequence[Metrics]) -> str:
    bias = math.fsum(_number(step, "failures/bias") for step in last)
    error = math.hypot(*(_number(step, "failures/bias_error") for step in last))
    if abs(bias) < max(LEAST_BIAS * len(last), 3 * error):
        return ""
    by_task = math.fsum(_number(step, "failures/bias_task") for step in last) / len(last)
    return (
        f"what failures left out of {_steps(last)} makes rewards look {abs(bias) / len(last):.2f} "
        f"deviations {'better' if bias > 0 else 'worse'} than they are; {by_task:+.2f} of that by "
        "task, and the rest by length"
    )


def nothing_to_gain(evaluation: Metrics) -> Finding | None:
    """Whether the evaluation before training may leave nothing to become better at."""
    reward = evaluation.get("val/reward/mean") or 0.0
    if reward < 1.0 or evaluation.get("val/reward/std") != 0:
        return None
    return Finding(
        "nothing_to_gain",
        0,
        f"every held-out reward is {reward:.4g} before training; if no reward can be higher, the "
        "held-out rewards cannot show what is learned, and no checkpoint is better than the first",
        "the held-out tasks are too few, or too easy for this model at evaluation.temperature, or "
        "the reward has few values",
        "Give harder tasks as val, more of them, or a finer reward",
    )


LOST_TEXT: Final = ("same_prompts", "unknown_tokens")
"""Signs of a tokenizer that does not know the text."""
AT_ONCE: Final = (*LOST_TEXT, "one_by_one")
"""Signs that one step is enough for."""
SIGNS: Final[Mapping[str, tuple[Callable[[Sequence[Metrics]], str], str, str]]] = {
    "same_prompts": (_same_prompts, *TOKENIZER),
    "unknown_tokens": (_unknown_tokens, *TOKENIZER),
    "one_by_one": (
        _one_by_one,
        "each runner runs one rollout at a time, as it does by default",
        "Give an async agent Trainer(concurrency=64), and others more n_runners",
    ),
    "no_gradient": (
        _no_gradient,
        "the model cannot answer otherwise (its tokens are padding, or each has probability 1), or "
        "the weights that would change are frozen",
        "Look at what was sampled (agl show ROLLOUT --tokens), and try the model that you began "
        "with: agl doctor FILE",
    ),
    "equal_rewards": (
        _equal_rewards,
        "the reward does not depend on the answer, or the tasks are far too hard or too easy for "
        "this model, or it is sampled too coldly to differ",
        "Look at some answers with their rewards (agl rollouts, agl show ROLLOUT). Give a finer "
        "reward, tasks that succeed now and then, a larger group_size or a higher temperature",
    ),
    "equal_to_teacher": (
        _equal_to_teacher,
        "the teacher has the weights of the model",
        "Compare the options model and teacher",
    ),
    "no_entropy": (
        _no_entropy,
        "it has settled on one answer too early: the learning rate is too high, or nothing keeps "
        "it from that",
        "Begin again with a lower learning_rate, a higher temperature, an entropy_bonus, or a "
        "kl.coefficient",
    ),
    "no_tokens": (
        _no_tokens,
        "the agent does not ask through the gateway, or asks for a form (a stream, parsed answers) "
        "in which the model's server does not give them",
        "Use the base_url of the LLM resource, and see agl doctor FILE for each call",
    ),
    "unreadable": (
        _unreadable,
        "a credit rule or an adapter raises an error, or the spans hold what none can be",
        "The log has a warning for each rollout, and a traceback; agl ledger says the same",
    ),
    "no_calls": (
        _no_calls,
        "the agent does not use the base_url of its LLM resource, or calls no model at all",
        "See what a rollout does: agl doctor FILE",
    ),
    "biased_failures": (
        _biased_failures,
        "hard tasks, or long answers, fail more often than others: they run into a limit, say",
        "See which they are (agl rollouts), and give them more time, run them again "
        "(failures.timeout=retry), or say what they are worth (penalise)",
    ),
}
"""Code -> says what is seen in steps, "" where that is nothing; the likely cause; the advice."""


def _steps(last: Sequence[Metrics]) -> str:
    first, end = last[0]["step"], last[-1]["step"]
    return f"step {end}" if first == end else f"steps {first} to {end}"


def _number(step: Metrics, name: str) -> float:
    return step.get(name) or 0


def _own(step: Mapping[str, float], model: str) -> dict[str, float]:
    """What a step says of a model; all of it for "", which is the one model that there is."""
    if not model:
        return dict(step)
    at = f"{model}/"
    shared = {name: value for name, value in step.items() if not name.startswith((*OF_MODELS, at))}
    own = {name.removeprefix(at): value for name, value in step.items() if name.startswith(at)}
    return shared | own


def _first_reason(step: Metrics) -> str | None:
    """The most frequent reason of a step that trained nothing; None where it trained."""
    if step.get("calls/trained") != 0:
        return None
    beginning = "calls/excluded/"
    counts = {name: count for name, count in step.items() if name.startswith(beginning) and count}
    return max(counts, key=lambda name: counts[name]).removeprefix(beginning) if counts else None
