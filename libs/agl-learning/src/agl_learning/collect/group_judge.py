"""A judge's turn between collecting and weighing: the scores of a group become its rewards.

Each group is a rollout of its own in the store, with an attempt whose calls the gateway records and
counts in the budget, and which are in the ledger as ``judge``. Its scores lie in the metadata of
that attempt: who reads the same rollouts again, going on or replaying, asks nobody again.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from agl.algorithm.gateway import Gateway
from agl.errors import AdapterError, ConfigError, GatewayError
from agl.store.base import LightningStore
from agl.store.rules import ENDED
from agl.types import LLM, AttemptedRollout, Failure
from agl_learning.collect.results import Collected, Ended
from agl_models.task_group import gather_or_cancel
from agl_records.calls.conversations import conversation
from agl_records.calls.reader import by_attempt, recorded_calls, recorded_parts
from agl_records.credit import Conversation, GroupRule, Score
from agl_records.training_data import TrainedModel
from agl_records.types import ExclusionReason
from agl_runs.failures import RolloutFailure

logger = logging.getLogger("agl.learning")

TRIES = 2
"""How often, in each start of a run, a judge that is down is asked about a group."""
AT_ONCE = 8
TIMEOUT_SECONDS = 300.0
SCORES, GAVE_UP = "scores", "gave_up"


class Judging:
    """Has a rule score groups; without a gateway, only what its judge said before can be read."""

    def __init__(self, rule: GroupRule, store: LightningStore, gateway: Gateway | None) -> None:
        rule.is_awaited = True
        self._rule = rule
        self._store = store
        self._gateway = gateway
        self._serving = 0
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def judge(
        self, collected: Collected, model: TrainedModel | None, metadata: Mapping[str, Any] | None
    ) -> None:
        """Give the training rollouts of a collection, all of its groups, their scores as rewards.

        The judge is shown the calls of ``model``, or without one all. Its own rollouts get
        ``metadata``; without any only those are read that there are.

        Raises:
            ConfigError: The gateway has no such model.
        """
        groups: dict[int, list[Ended]] = {}
        for one in collected.ended:
            is_usable = one.unusable is None and one.rows and one.rollout.mode == "train"
            if one.penalty is not None:
                _give(one, one.penalty, "its rollout failed, and is penalised")
            elif is_usable:
                groups.setdefault(one.group, []).append(one)
        found = Counter[str]({"judge/groups": 0, "judge/equal": 0, "judge/failed": 0})
        async with contextlib.nullcontext() if metadata is None else self._served():
            each = [self._judge(group, model, metadata, collected) for group in groups.values()]
            for what in await gather_or_cancel(each):
                found.update(what)
        collected.judged = dict(found)

    def _asked(self) -> Gateway:
        if self._gateway is None:
            raise ConfigError(
                "a judge is asked through the gateway, which books its calls, and the algorithm "
                "has none. Take another credit rule"
            )
        return self._gateway

    @contextlib.asynccontextmanager
    async def _served(self) -> AsyncGenerator[None]:
        """The gateway serves the judge meanwhile; several may ask at once."""
        gateway, judge = self._asked(), self._rule.judge
        if self._serving == 0 and not isinstance(judge, str):
            gateway.add_model(judge)
        self._serving += 1
        try:
            yield
        finally:
            self._serving -= 1
            if self._serving == 0 and not isinstance(judge, str):
                gateway.remove_model(judge["model_name"])

    async def _judge(
        self,
        group: Sequence[Ended],
        model: TrainedModel | None,
        metadata: Mapping[str, Any] | None,
        collected: Collected,
    ) -> list[str]:
        """Score a group; which metrics it counts in."""
        texts = await gather_or_cancel(self._text(one, model) for one in group)
        # By what they say, so that who came first has no better place in the judge's list.
        distinct = sorted({*texts}, key=lambda text: hashlib.sha256(text.encode()).digest())
        if len(group) < 2:
            why = "a judge compares rollouts of one task, and of this one there is no other"
            _leave_out(group, "no_reward", why)
            return ["judge/failed"]
        if len(distinct) == 1:
            said = f"no judge was asked: all {len(group)} rollouts of the task said the same"
            scores = [Score(0.5, said)]
        else:
            async with self._at_once:
                scores = await self._scores(group, distinct, metadata, collected)
        if scores is None:
            return ["judge/failed"]
        by_text = dict(zip(distinct, scores, strict=True))
        for one, text in zip(group, texts, strict=True):
            score = by_text[text]
            better = sum(by_text[other].value > score.value for other in texts)
            place = f"place {better + 1} of {len(group)}"
            because = f"the judge's score is {score.value:.4g}, {place}: {score.because}"
            _give(one, score.value, because)
            one.reward, one.rewards = score.value, {**one.rewards, "judge": score.value}
        is_equal = len({score.value for score in scores}) == 1
        return ["judge/groups", *(["judge/equal"] if is_equal else [])]

    async def _text(self, one: Ended, model: TrainedModel | None) -> str:
        """What can be read of what a rollout said: conversations, up to the last answer; JSON."""
        used = {row.attempt_id for row in one.rows}
        spans = await self._store.query_spans(one.rollout.rollout_id)
        said: list[Conversation] = []
        own = by_attempt(span for span in spans if span.attempt_id in used).values()
        for call in (r.call for each in own for r in recorded_calls(each) if r.malformed is None):
            if call.response is None or (model is not None and not model.made(call)):
                continue
            try:
                now = conversation(call)["messages"]
            except AdapterError:  # a message has a role that nobody knows
                continue
            before = [n for n, old in enumerate(said) if now[: len(old)] == old]
            if before:
                said[before[-1]] = now
            else:
                said.append(now)
        return json.dumps(said, ensure_ascii=False, sort_keys=True)

    async def _scores(
        self,
        group: Sequence[Ended],
        distinct: Sequence[str],
        metadata: Mapping[str, Any] | None,
        collected: Collected,
    ) -> list[Score] | None:
        """What the store has, or else the judge says; None where the group was left out."""
        ids = sorted(one.rollout.rollout_id for one in group)
        name = hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:24]
        task, number, tries = group[0].rollout.input, 0, 0
        about = {**(metadata or {}), "judges": ids}
        while True:
            rollout = await self._store.start_rollout(
                {"judged": ids}, metadata=about, key=f"judge/{name}/{number}"
            )
            is_open = rollout.attempt.status in ("preparing", "running")
            ended = rollout.status in ENDED or not is_open
            if not ended:
                await self._ask(rollout, task, distinct)
                tries += 1
            ended_as = (await self._store.query_attempts(rollout.rollout_id))[-1]
            await self._book(rollout, collected)
            kept = ended_as.metadata or {}
            if ended_as.status == "succeeded":
                return [Score(*pair) for pair in kept[SCORES]]
            error = ended_as.error
            is_down = error is None or error.boundary != "evaluator"
            is_last = kept.get(GAVE_UP) and metadata is None
            spent = self._gateway is not None and self._gateway.spent_budget() is not None
            if is_last or (tries and (not is_down or tries >= TRIES or spent)):
                why = f"its judge gave no scores: {error.message if error else ended_as.status}"
                if not ended:
                    of_it = (rollout.rollout_id, rollout.attempt.attempt_id)
                    await self._store.update_attempt(*of_it, metadata={GAVE_UP: True})
                    logger.warning("rollouts of task %d are left out: %s", group[0].group, why)
                _leave_out(group, "infrastructure" if is_down else "no_reward", why)
                return None
            number += 1

    async def _ask(self, rollout: AttemptedRollout, task: Any, distinct: Sequence[str]) -> None:
        """One attempt at scores; how it ended is in the store."""
        judge, ids = self._rule.judge, (rollout.rollout_id, rollout.attempt.attempt_id)
        name = judge if isinstance(judge, str) else judge["model_name"]
        gateway = self._asked()
        llm = gateway.as_resource(*ids, model=name)
        attempts = [json.loads(text) for text in distinct]
        try:
            scores = await self._rule.score(task, attempts, partial(_send, llm))
            _check_scores(type(self._rule).__name__, scores, len(attempts))
        except (AdapterError, GatewayError) as error:
            boundary = "evaluator" if isinstance(error, AdapterError) else "model"
            failure = Failure(boundary=boundary, type=type(error).__name__, message=str(error))
            end: dict[str, Any] = {"status": "failed", "error": failure}
        else:
            pairs = [(score.value, score.because) for score in scores]
            end = {"status": "succeeded", "metadata": {SCORES: pairs}}
        await gateway.flush()
        await self._store.update_attempt(*ids, **end)

    async def _book(self, rollout: AttemptedRollout, collected: Collected) -> None:
        """Have the judge's calls in the account of the collection."""
        ledger = collected.ledger
        ledger.add_rollout(rollout.rollout_id)
        collected.others.append(await self._store.get_rollout_by_id(rollout.rollout_id) or rollout)
        detail = "it compared the rollouts of a task"
        calls = recorded_parts(await self._store.query_spans(rollout.rollout_id))
        for call in (one.call for one in calls):
            ledger.add_call(call)
            ledger.exclude_call(call, "judge", detail)
        if not calls:
            ledger.exclude_rollout(rollout.rollout_id, "no_calls", "the judge could not be asked")


def _give(one: Ended, reward: float, because: str) -> None:
    given = {"reward": reward, "because": because}
    for row in one.rows:
        row.credits = [credit.model_copy(update=given) for credit in row.credits]


def _leave_out(group: Sequence[Ended], reason: ExclusionReason, why: str) -> None:
    for one in group:
        one.reward, one.rewards, one.unusable = None, {}, (reason, why)
        if reason == "infrastructure":
            one.failed = RolloutFailure("infrastructure", why)


def _check_scores(judge: str, given: Any, number: int) -> None:
    """Refuse what a judge gave for attempts, if it is not one finite score each.

    Raises:
        AdapterError: It says what came, and what was expected.
    """
    scores = cast("Sequence[Any]", given) if isinstance(given, list | tuple) else None
    if (
        scores is None
        or len(scores) != number
        or not all(
            isinstance(one, Score)
            and isinstance(cast(Any, one.value), int | float)
            and math.isfinite(one.value)
            for one in scores
        )
    ):
        raise AdapterError(
            f"judge {judge!r} gave {given!r:.300} for {number} attempts; expected a list of as "
            "many agl_records.credit.Score(value, because), each value a finite number"
        )


async def _send(llm: LLM, messages: list[dict[str, str]], fields: Mapping[str, Any]) -> str:
    """The text of an answer.

    Raises:
        GatewayError: There is none: the model or the gateway is down, or refuses.
        AdapterError: The answer has no text.
    """
    import aiohttp

    body = {"model": llm.model, "messages": messages, **fields}
    key = {"authorization": f"Bearer {llm.api_key}"} if llm.api_key else {}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(headers=key, timeout=timeout) as session,
            session.post(f"{llm.endpoint}/chat/completions", json=body) as response,
        ):
            text = await response.text()
            if response.status != 200:
                raise GatewayError(f"status {response.status}: {text[:300]}")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise GatewayError(f"{type(error).__name__}: {error}") from None
    try:
        content = json.loads(text)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        content = None
    if not isinstance(content, str):
        raise AdapterError(f"the answer has no text: {text[:300]}")
    return content
