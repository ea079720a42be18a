"""What every model call passes: forced parameters, the gate, and the budgets."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from agl_gateway.backends import Backends
from agl_gateway.budget import Budgets
from agl_gateway.errors import RefusedError
from agl_gateway.forced import Modes, force
from agl_gateway.gate import Gate

if TYPE_CHECKING:
    from agl_gateway.app import Call


class Controls:
    """A guard of the gateway.

    Args:
        backends: Those of this moment.
        gate: Holds calls back.
        budgets: Refuses calls over a limit.
        modes: Which parameters a rollout's calls are forced to have.
    """

    def __init__(
        self, backends: Callable[[], Backends], gate: Gate, budgets: Budgets, modes: Modes
    ) -> None:
        self._backends = backends
        self._gate = gate
        self._budgets = budgets
        self._modes = modes

    async def before(self, call: "Call") -> None:
        """May wait, or refuse.

        Raises:
            RefusedError: A limit is reached, or the model is paused.
        """
        model = call.exchange.model
        forced = self._backends().of(model)[0].forced
        if forced:
            rollout_id = call.origin.rollout_id
            force(call.exchange, forced, await self._modes.of(rollout_id) if rollout_id else None)
            call.record.request = call.exchange.request
        await self._gate.enter(model)
        try:
            self._budgets.admit(call.origin.attempt_id)
        except RefusedError:
            self._gate.leave(model)
            raise

    def after(self, call: "Call") -> None:
        """The call is over."""
        model = call.exchange.model
        self._gate.leave(model)
        if self._budgets.counts_usage:
            replicas = self._backends().of(model)
            price = replicas[0].price if replicas else None
            self._budgets.charge(call.origin.attempt_id, *call.record.usage(), price)
