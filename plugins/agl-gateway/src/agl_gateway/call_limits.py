"""What every model call passes: forced parameters, seeds, pauses, and the budgets."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from agl.errors import StoreUnavailableError
from agl.store.base import LightningStore
from agl_gateway import request_changes
from agl_gateway.attempts import OpenAttempt, RolloutSettings
from agl_gateway.backends import Backends
from agl_gateway.budget import Budgets, Price
from agl_gateway.dialect import Exchange
from agl_gateway.errors import RefusedError
from agl_gateway.pause import PauseControl
from agl_gateway.records import CallRecord
from agl_records.seeds import SEED

logger = logging.getLogger("agl.gateway")


class CallLimits:
    """Looks at every model call before it goes to a backend, and after it has ended."""

    def __init__(
        self,
        backends: Backends,
        max_pause_seconds: float,
        budgets: Budgets,
        get_store: Callable[[], LightningStore],
    ) -> None:
        self.backends = backends
        self.pause_control = PauseControl(max_pause_seconds)
        self._budgets = budgets
        self._get_store = get_store
        self._prices: dict[str, Price | None] = {}
        self.overridden: Counter[tuple[str, str]] = Counter()
        """Model and parameter -> calls that asked for another value than the forced one."""
        self.num_unattributed = 0
        """Calls to an address of no rollout."""

    async def before(
        self, record: CallRecord, exchange: Exchange, attempt: OpenAttempt | None
    ) -> None:
        """May wait, or refuse.

        Raises:
            RefusedError: A limit is reached, the model is paused, or nobody can say in which mode
                the rollout is.
        """
        model = exchange.model
        self.num_unattributed += not record.origin.rollout_id
        if not (replicas := self.backends.of(model)):
            why = f"model {model!r} left the list of models while the call waited"
            raise RefusedError(404, why, "model_not_found")
        backend = replicas[0].settings  # they agree
        self._prices[model] = backend.price
        if exchange.degraded and backend.strict:
            raise RefusedError(400, f"{exchange.degraded[0]}; leave it out, as the model is strict")
        request_changes.change_system_messages(exchange, backend.system_messages)
        record.overridden = exchange.degraded or None
        if backend.max_tokens is not None:
            request_changes.limit_tokens(exchange, backend.max_tokens)
        record.request = exchange.request
        if backend.forced_parameters or backend.send_seed:
            known = await self._rollout(record.origin.rollout_id, attempt)
            forced = backend.forced_parameters
            asked = request_changes.force_parameters(exchange, forced, known.mode) if forced else {}
            if backend.send_seed and known.seed is not None and attempt is not None:
                record.release_number = request_changes.give_seed(
                    exchange, known.seed, attempt.conversations
                )
            record.request = exchange.request
            if asked:
                record.overridden = [*exchange.degraded, *asked]
                self._tell(model, asked, exchange)
        await self.pause_control.enter(model)
        try:
            self._budgets.admit(record.origin.attempt_id)
        except RefusedError:
            self.pause_control.leave(model)
            raise

    def _tell(self, model: str, asked: Mapping[str, Any], exchange: Exchange) -> None:
        for name, wish in asked.items():
            self.overridden[model, name] += 1
            if self.overridden[model, name] == 1:
                given = bytes(exchange.fields.get(name, b"the server's default")).decode()
                logger.warning(
                    "agents ask model %r for %s=%.200r and get %s, as its forced_parameters say: "
                    "an algorithm must know how the answers that it learns from were drawn. "
                    "This is told once; the calls are counted, and their spans name the parameter",
                    model,
                    name,
                    wish,
                    given,
                )

    async def _rollout(self, rollout_id: str, attempt: OpenAttempt | None) -> RolloutSettings:
        if attempt is None:
            return RolloutSettings()
        try:
            if attempt.rollout is None:
                rollout = await self._get_store().get_rollout_by_id(rollout_id)
                seed = ((rollout and rollout.metadata) or {}).get(SEED)
                seed = seed if type(seed) is int else None
                attempt.rollout = RolloutSettings(rollout and rollout.mode, seed)
            return attempt.rollout
        except StoreUnavailableError as error:
            why = f"rollout {rollout_id!r} cannot be looked up now: {error}"
            raise RefusedError(503, why) from None

    def after(self, record: CallRecord, exchange: Exchange) -> None:
        """Once per call that came past ``before``, just before the agent gets the last byte."""
        model = exchange.model
        self.pause_control.leave(model)
        if self._budgets.counts_usage:
            # The model may have left the list by now.
            price = self._prices.get(model)
            self._budgets.charge(record.origin.attempt_id, *record.usage(), price)
