"""The parts of the answer to why one token got what it got, its terms among them.

These are what it adds to the objective of its gradient step, summands and factors in their order:

    event      what the reward events that reached its call say, added up
    rule       what the credit rule made of them: a share, a discount
    overlong   what the length of its rollout's longest answer cost
    baseline   less the mean of its group
    scale      divided by the deviation of its group
    estimator  in the place of these two: what another estimator made of it
    mask       all of it away, where the call was not trained
    staleness  the weights that sampled it were behind
    clip       the bound on the ratio of probabilities held it
    length     its weight among the tokens of the step

A number that nobody kept is None, and the sentence says so; what comes after it is of the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agl_learning.advantages.estimator_option import ABOUT, DEFAULT
from agl_learning.reports.json_lines import is_number
from agl_learning.trainer.comparison import Compared
from agl_views.explanations.explanation import CallLine
from agl_views.explanations.trace_reader import RewardLine

_SMALL = 1e-9
"""Relative: less than this is rounding."""


@dataclass(frozen=True)
class Term:
    """One change."""

    name: str
    value: float | None
    """What it adds; None where nobody kept it."""
    because: str
    factor: float | None = None
    """What the sum of those before is multiplied by; None for a summand."""


@dataclass(frozen=True)
class Member:
    """A rollout of the group, this one included."""

    rollout_id: str
    reward: float | None
    """Its final reward, before any rule."""
    credit: float | None
    """Mean of what those of its calls got that are compared."""
    is_counted: bool
    """Whether it is in the mean."""
    left_out: str = ""
    """Why it is not."""


@dataclass(frozen=True)
class Group:
    """What a call was compared with."""

    name: str
    """"" for all calls of the sibling rollouts."""
    members: tuple[Member, ...]
    mean: float
    """Over the rollouts that are counted, each with weight 1."""
    std: float
    """Sample standard deviation of the same."""

    @property
    def num_counted(self) -> int:
        """How many rollouts are in the mean."""
        return sum(one.is_counted for one in self.members)


@dataclass(frozen=True)
class Bin:
    """Where the ledger has the token's call."""

    name: str
    """``trained``, ``excluded``, or ``open`` where no algorithm has accounted for it."""
    reason: str = ""
    """Code of why it was not trained."""
    because: str = ""
    row: int | None = None
    position: int | None = None
    """Of the token in that row."""
    is_lost: bool = False
    """Whether the run went back behind its step."""


@dataclass(frozen=True)
class Step:
    """The step of the algorithm, and what is known of its gradient."""

    run: str | None
    algorithm: str | None
    number: int | None
    generation: int
    sampled_by: str | None
    """Weights that sampled the token."""
    made: str | None
    """Weights that came out."""
    num_trained: int
    """Rollouts of it of which something was trained."""
    num_rollouts: int
    """Rollouts in the means of the loss: these, and their siblings whose advantage is 0."""
    num_tokens: int | None = None
    """Sampled tokens of this rollout that are in these means; None where not all of it is read."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Those of the run's metrics that are about gradients; none where its folder is not here."""


@dataclass(frozen=True)
class Recomputed:
    """Numbers of the ledger beside those that come out now."""

    numbers: tuple[Compared, ...]
    problem: str = ""
    """Why something could not be computed."""

    @property
    def differs(self) -> bool:
        """Whether any number is another one."""
        return not all(one.same for one in self.numbers)


@dataclass(frozen=True)
class TokenExplanation:
    """All there is to say about one sampled token."""

    rollout_id: str
    call: CallLine
    """What the call that sampled it got."""
    place: int
    """In the answer, from 0."""
    token_id: int
    logprob: float | None
    events: tuple[RewardLine, ...]
    """The reward events that reached it."""
    group: Group | None
    num_shared: int
    """So many tokens have this very number: it is not this token's own where it is above 1; 0 where
    no token is known to have it, as it is the mean over those of the call."""
    num_calls: int
    """So many calls of the attempt were given the very same reward events."""
    bin: Bin
    step: Step | None
    terms: tuple[Term, ...] = ()
    again: Recomputed | None = None


def terms_of(found: TokenExplanation, options: Mapping[str, Any]) -> tuple[Term, ...]:
    """The terms of a token, out of all else about it; none where no reward reached it."""
    if found.call.reward is None:
        return ()
    terms = [*_rewards(found, found.call.reward, options)]
    if found.call.advantage is None:
        return tuple(terms)
    terms += _advantage(found, found.call.reward, found.call.advantage, options)
    if found.bin.name == "excluded":
        away = -found.call.advantage if found.num_shared else None
        terms.append(Term("mask", away, f"not trained, {found.bin.because}", 0.0))
        return tuple(terms)
    terms.append(Term("mask", 0.0, "sampled by the model, in a call that is trained", 1.0))
    terms.append(_staleness(found, options))
    # A loss of one's own may have no ratio; then none was ever held.
    bounds = {"clip.low", "clip.high", "clip.ratio_cap", "ratio_cap"} & {*options}
    if bounds or _step_metric(found, "clip_fraction"):
        terms.append(_clip(found, found.call.advantage, options))
    length = _length(found, found.call.advantage, options)
    if length.value is not None and any(one.value is None for one in terms):
        length = replace(length, because=f"{length.because}, with what is not kept as 0")
    return (*terms, length)


def _rewards(found: TokenExplanation, credit: float, options: Mapping[str, Any]) -> list[Term]:
    raw = sum(one.value for one in found.events)
    said = ", ".join(f"{one.value:.4g} ({one.name})" for one in found.events) or "no reward event"
    terms = [Term("event", raw, said)]
    cost = found.call.overlong
    rest = credit - raw - (cost or 0.0)
    why = (
        f"rule {found.call.rule!r}: {found.call.because}" if found.call.rule else found.call.because
    )
    terms.append(Term("rule", 0.0 if abs(rest) <= _SMALL * max(1.0, abs(raw)) else rest, why))
    buffer = options.get("overlong.buffer")
    if cost or (cost is None and buffer):
        told = f"an answer within the last {buffer} tokens before the limit"
        told = told if cost else f"what {told} cost is not recorded, and is in the rule's number"
        terms.append(Term("overlong", cost, told))
    return terms


def _advantage(
    found: TokenExplanation, credit: float, advantage: float, options: Mapping[str, Any]
) -> list[Term]:
    name, group = found.call.estimator, found.group
    if not found.num_shared:
        why = "what each token of the call had is not kept, only their mean"
        return [Term("estimator", None, f"{why}: {found.call.advantage_because}")]
    if name != DEFAULT or group is None:
        about = f"{name!r}: {ABOUT[name]}; " if name in ABOUT else ""  # one's own has said it
        named = f"estimator {about}" if name else "by which estimator is not recorded: "
        why = f"{named}{found.call.advantage_because}"
        return [Term("estimator", advantage - credit, why)]
    distance = credit - group.mean
    counted = f"{group.num_counted} rollouts"
    terms = [Term("baseline", -group.mean, f"the mean of {counted} is {group.mean:.6g}")]
    is_divided = bool(options.get("estimator.normalise_std", True))
    scaled = distance / (group.std + 1e-6) if is_divided else distance
    if is_divided:
        why = f"divided by their standard deviation {group.std:.6g} + 0.000001"
        terms.append(Term("scale", scaled - distance, why, 1.0 / (group.std + 1e-6)))
    # A rule may compare the step as well; and an account may be of other numbers than these.
    rest = advantage - scaled
    if abs(rest) > 1e-6 * max(1.0, abs(advantage)):
        why = f"what else its ledger says: {found.call.advantage_because}"
        terms.append(Term("estimator", rest, why))
    return terms


def _lag(found: TokenExplanation) -> int | None:
    """By how many updates the weights that sampled it were behind; None where nobody noted it."""
    step = found.step
    made, sampled = (step.made, step.sampled_by) if step else (None, None)
    if not (made and sampled and made.isdigit() and sampled.isdigit()):
        return None
    return int(made) - 1 - int(sampled)


def _staleness(found: TokenExplanation, options: Mapping[str, Any]) -> Term:
    lag = _lag(found)
    if options.get("sampling_correction.type", "none") != "none":
        gap = _step_metric(found, "logprob_gap")
        why = f"its sampling_correction is not kept; the logprob_gap of its step is {gap}"
        return Term("staleness", None, why)
    if lag is None:
        why = "nobody noted by which weights it was sampled; nothing is reweighed for it"
    elif lag == 0:
        why = "sampled by the weights that the step began with"
    else:
        why = f"sampled by weights {lag} updates behind; only the clip corrects for it"
    return Term("staleness", 0.0, why, 1.0)


def _clip(found: TokenExplanation, advantage: float, options: Mapping[str, Any]) -> Term:
    bounds = _bounds(options, advantage)
    is_once = options.get("epochs", 1) == 1 and options.get("minibatch_rows") is None
    is_own = options.get("sampling_correction.type", "none") != "none"
    if is_once and (is_own or _lag(found) == 0):
        why = "one gradient step from the weights that it is compared with: the ratio is 1"
        return Term("clip", 0.0, f"{bounds}; {why}", 1.0)
    share = _step_metric(found, "clip_fraction")
    held = "" if share is None else f"; bounds held {100 * share:.3g} % of the weight of its step"
    return Term("clip", None, f"{bounds}; its ratio at each pass is not kept{held}")


def _bounds(options: Mapping[str, Any], advantage: float) -> str:
    """How far a ratio counts where the advantage has this sign; see ``agl_torch.loss.clipped``."""
    given = [options.get(name) for name in ("clip.low", "clip.high")]
    given.append(options.get("clip.ratio_cap", options.get("ratio_cap")))
    low, high, cap = (value if is_number(value) else None for value in given)
    up_to = "" if cap is None else f"up to {cap:.6g}"
    if low is None and high is None:  # CISPO has no other bound
        return f"a ratio counts {up_to}" if up_to else "no bound is among the options of its run"
    if advantage > 0:
        return f"a ratio counts up to {1 + (high or 0.0):.6g}, as the advantage is above 0"
    both = " ".join(filter(None, (f"from {1 - (low or 0.0):.6g}", up_to)))
    return f"a ratio counts {both}, as the advantage is not above 0"


def _step_metric(found: TokenExplanation, name: str) -> float | None:
    metrics = found.step.metrics if found.step else {}
    return next((value for key, value in metrics.items() if key.endswith(name)), None)


def _length(found: TokenExplanation, advantage: float, options: Mapping[str, Any]) -> Term:
    number, tokens = (found.step.num_rollouts, found.step.num_tokens) if found.step else (0, None)
    mean = options.get("loss.type")
    if "models" in options:
        why = "over the calls of its model alone; agl replay has them"
        return Term("length", None, f"its weight among the tokens of the step is {why}")
    if mean is None:  # of another engine than agl-torch
        return Term("length", None, "what it weighs in its step is not among the run's options")
    weight: float | None = None
    if mean == "grpo" and number and tokens:
        weight = 1.0 / (tokens * number)
        why = f"1 / ({tokens} sampled tokens of its rollout * {number} rollouts)"
    elif mean == "dr_grpo" and number and options.get("loss.constant"):
        weight = 1.0 / (options["loss.constant"] * number)
        why = f"1 / ({options['loss.constant']} * {number} rollouts)"
    elif mean == "dapo" and (loss_tokens := _step_metric(found, "loss_tokens")):
        weight = 1.0 / loss_tokens
        why = f"1 / ({loss_tokens:.0f} tokens of the step)"
    else:
        why = f"by loss.type {mean!r}, over {number} rollouts; agl replay has all tokens"
    if weight is None:
        return Term("length", None, f"its weight among the tokens of the step is {why}")
    if options.get("minibatch_rows") is not None:
        why = f"{weight:.4g} = {why} in all minibatches; which rows were in its own is not kept"
        return Term("length", None, f"its weight is {why}")
    value = advantage * (weight - 1.0) if found.num_shared else None
    return Term("length", value, f"its weight among the tokens of the step = {why}", weight)
