"""A soft punishment for answers that come near the limit of tokens.

With L the limit ``max_tokens``, b the buffer and n the sampled tokens of a rollout's longest answer

    p = 0                      n <= L - b
        -(n - (L - b)) / b     beyond

times ``overlong.penalty`` comes to the reward of each of its calls. Source: the soft overlong
punishment of DAPO (arXiv:2503.14476, formula 13). Where we differ: a rollout may have several
answers, and its longest counts; for all of its calls, so that no rule of credit is overruled.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from agl.errors import ConfigError
from agl_learning.collect.step_metrics import Usable
from agl_records.training_data import TrainingRow
from agl_runs.options import AboveZero, Count, Group


@dataclass(frozen=True, kw_only=True, repr=False)
class Overlong(Group):
    """What long answers cost.

    Args:
        buffer: Answers of the last so many tokens before ``max_tokens`` cost reward, in a line from
            nothing to the penalty (DAPO). None punishes none.
        penalty: What an answer of ``max_tokens`` costs.
    """

    buffer: Count | None = None
    penalty: AboveZero = 1.0

    def problem(self) -> str | None:
        if self.buffer is not None or self.penalty == type(self).penalty:
            return None
        return (
            f"penalty is {self.penalty}, and without overlong.buffer no answer is punished. Give "
            "overlong.buffer, in tokens"
        )


def check_overlong(owner: str, options: Any) -> None:
    """Refuse a punishment that would never come, or always.

    Raises:
        ConfigError: It names the options.
    """
    buffer, limit = options.overlong.buffer, options.max_tokens
    if buffer is None:
        return
    if limit is None or buffer >= limit:
        raise ConfigError(
            f"{owner}: overlong.buffer is {buffer}: the last so many tokens before max_tokens, "
            f"which is {limit}. Give max_tokens, and fewer tokens than that"
        )
    if options.estimator.type == "gdpo":
        raise ConfigError(
            f"{owner}: overlong.buffer changes the reward, and the estimator 'gdpo' compares its "
            "dimensions, estimator.rewards. Leave it out, or have the agent emit the length as one"
        )


def punishment(tokens: int, limit: int, buffer: int) -> float:
    """The punishment of an answer with so many tokens, between 0 and -1.

    Example:
        With a limit of 100 and a buffer of 20: 80 tokens give 0, 90 give -0.5, and 100 give -1.
    """
    return -min(max(tokens - (limit - buffer), 0) / buffer, 1.0)


def punished(
    usable: Iterable[Usable], options: Any, cut_off: Container[str] = ()
) -> Iterator[Usable]:
    """The same rows, with rewards less what the longest answer of their rollout costs.

    ``cut_off`` are rollouts with an answer that was cut off, and is in none of their rows.
    """
    for one, numbered in usable:
        if options.overlong.buffer is not None:
            answers = [end - at for _, row in numbered for at, end in row.call_ranges]
            if one.rollout.rollout_id in cut_off:
                answers.append(options.max_tokens)
            longest = max(answers, default=0)
            part = punishment(longest, options.max_tokens, options.overlong.buffer)
            cost = options.overlong.penalty * part
            why = f"; {cost:+.4g} for an answer of {longest} tokens" if cost else ""
            numbered = [(number, _with(row, cost, why)) for number, row in numbered]
        yield one, numbered


def _with(row: TrainingRow, cost: float, why: str) -> TrainingRow:
    credits = [
        credit.changed(
            reward=(credit.reward or 0.0) + cost, because=credit.because + why, overlong=cost
        )
        for credit in row.credits
    ]
    return row.model_copy(update={"credits": credits})
