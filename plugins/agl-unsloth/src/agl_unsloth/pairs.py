"""Preference pairs on recorded tokens: one prompt, two answers, two rewards."""

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agl.errors import AlgorithmError
from agl_learning.collect.step_metrics import usable_rows, why_nothing
from agl_learning.pairs import Pairing, preference_pairs

if TYPE_CHECKING:
    from agl_learning.collect.results import Collected
    from agl_records.training_data import TrainingRow

NOT_PAIRED = (
    "no other rollout of its task answered this prompt otherwise, for another reward, and was free "
    "to be paired"
)


@dataclass(frozen=True)
class Answer:
    """A call of a row, and what it got."""

    row: int
    """Position among the usable rows."""
    call: int
    """Position in the row."""
    rollout_id: str
    prompt: tuple[int, ...]
    said: tuple[int, ...]
    """Its tokens."""
    reward: float


def select_pairs(
    collected: "Collected", *, pairing: Pairing, min_gap: float, max_length: int | None, seed: str
) -> list[dict[str, Any]]:
    """Pairs among the rollouts of one task, shuffled; every call goes into one bin of the ledger.

    Calls belong together whose agent and prompt are the same, token for token. In rollouts of
    several calls these are the calls up to the one at which the ways part.

    Args:
        pairing: See ``preference_pairs``.
        min_gap: See ``preference_pairs``.
        max_length: Of prompt and answer, in tokens; None for no limit.
        seed: Of the shuffle, and of the order among equal rewards.

    Returns:
        ``prompt_ids``, ``chosen_ids``, ``rejected_ids``, and per side reward and rollout.
    """
    chance = random.Random(seed)
    rows: list[tuple[int, TrainingRow]] = []
    groups: defaultdict[tuple[Any, ...], list[Answer]] = defaultdict(list)
    too_long: set[tuple[int, int]] = set()
    for one, numbered in usable_rows(collected):
        for number, row in numbered:
            for answer in _answers(len(rows), row):
                length = len(answer.prompt) + len(answer.said)
                if max_length is not None and length > max_length:
                    too_long.add((answer.row, answer.call))
                else:
                    groups[one.group, row.agent_name, answer.prompt].append(answer)
            rows.append((number, row))
    pairs: list[tuple[Answer, Answer]] = []
    for answers in groups.values():
        chance.shuffle(answers)
        pairs += preference_pairs(answers, pairing, min_gap)
    used = {(answer.row, answer.call) for pair in pairs for answer in pair}
    ledger = collected.ledger
    for position, (number, row) in enumerate(rows):
        calls = range(len(row.call_ids))
        kept = [call for call in calls if (position, call) in used]
        if kept:
            ledger.train(row.only(kept), number=number)
        for call in calls:
            if (position, call) in too_long:
                why = "prompt and answer are longer than max_length"
                ledger.exclude_row(row.only([call]), "over_length", why)
            elif call not in kept:
                ledger.exclude_row(row.only([call]), "not_paired", NOT_PAIRED)
    chance.shuffle(pairs)
    return [
        {
            "prompt_ids": list(chosen.prompt),
            "chosen_ids": list(chosen.said),
            "rejected_ids": list(rejected.said),
            "chosen_reward": chosen.reward,
            "rejected_reward": rejected.reward,
            "chosen_rollout_id": chosen.rollout_id,
            "rejected_rollout_id": rejected.rollout_id,
        }
        for chosen, rejected in pairs
    ]


def no_pairs(collected: "Collected", iteration: int) -> AlgorithmError:
    """The error of an iteration without a pair; it says what there was instead."""
    message = f"iteration {iteration}: there is no preference pair: {why_nothing(collected)}"
    if "not_paired" in collected.ledger.reasons():
        message += (
            ". Rollouts of one task must answer the same prompt in different ways and get "
            "different rewards: run more rollouts_per_task, or raise the temperature"
        )
    return AlgorithmError(message)


def _answers(position: int, row: "TrainingRow") -> list[Answer]:
    return [
        Answer(
            row=position,
            call=call,
            rollout_id=row.rollout_id,
            prompt=tuple(row.token_ids[:start]),
            said=tuple(row.token_ids[start:end]),
            reward=credit.reward or 0.0,
        )
        for call, ((start, end), credit) in enumerate(
            zip(row.call_ranges, row.credits, strict=True)
        )
    ]
