"""Hard limits on calls, tokens and money, of one attempt and of the whole run."""

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt
from typing_extensions import TypedDict

from agl_gateway.errors import NO_RETRY, ErrorKind, RefusedError

logger = logging.getLogger("agl.gateway")

MAX_ATTEMPTS = 100_000
"""So many attempts are remembered; the one whose last call is longest ago is forgotten first."""


class Budget(TypedDict, total=False):
    """Limits; what is left out has none."""

    calls: Annotated[int, Gt(0)]
    """Model calls, failed ones included."""
    tokens: Annotated[int, Gt(0)]
    """Of prompts and answers together."""
    cost: Annotated[float, Gt(0)]
    """In the currency of the prices in the model list."""


@dataclass(frozen=True)
class Price:
    """What a model costs per million tokens; what is left out is free."""

    input: Annotated[float, Ge(0)] = 0.0
    output: Annotated[float, Ge(0)] = 0.0


@dataclass
class Spending:
    """What has been used up."""

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0


class Budgets:
    """Admits calls while there is budget, and counts what they use.

    A call is counted when it is admitted, so that limits on calls are exact. Tokens and money are
    known when a call ends: those in flight at that moment may still exceed these limits.

    Args:
        run_budget: Of everything that the gateway forwards, attributed to an attempt or not.
        attempt_budget: Of each attempt.
    """

    def __init__(
        self, run_budget: Budget | None = None, attempt_budget: Budget | None = None
    ) -> None:
        self._run_limits, self._attempt_limits = run_budget or Budget(), attempt_budget or Budget()
        self.counts_usage = bool({"tokens", "cost"} & {*self._run_limits, *self._attempt_limits})
        """Whether ``charge`` has to be called."""
        self.run = Spending()
        self._attempts: OrderedDict[str, Spending] = OrderedDict()
        self.spent: str | None = None
        """Which limit of the run is used up; None while there is budget."""

    def admit(self, attempt_id: str) -> None:
        """Count a call that begins, of an attempt or (with an empty id) of none.

        Raises:
            RefusedError: Status 429: a limit is reached. The message names it.
        """
        if self._run_limits and (limit := _reached(self.run, self._run_limits)):
            self._end_run(limit)
            raise _refused(f"the run has spent its budget: {limit}", "infrastructure")
        if self._attempt_limits and attempt_id:
            spending = self._attempt(attempt_id)
            if limit := _reached(spending, self._attempt_limits):
                raise _refused(f"attempt {attempt_id!r} has spent its budget: {limit}", "request")
            spending.calls += 1
        self.run.calls += 1

    def charge(
        self, attempt_id: str, input_tokens: int, output_tokens: int, price: Price | None
    ) -> None:
        """Count what a call has used."""
        tokens = input_tokens + output_tokens
        cost = 0.0
        if price:
            cost = (input_tokens * price.input + output_tokens * price.output) / 1e6
        accounts = [self.run]
        if self._attempt_limits and attempt_id:
            accounts.append(self._attempt(attempt_id))
        for account in accounts:
            account.tokens += tokens
            account.cost += cost
        if self._run_limits and (limit := _reached(self.run, self._run_limits)):
            self._end_run(limit)

    def _attempt(self, attempt_id: str) -> Spending:
        spending = self._attempts.setdefault(attempt_id, Spending())
        self._attempts.move_to_end(attempt_id)
        if len(self._attempts) > MAX_ATTEMPTS:
            self._attempts.popitem(last=False)
        return spending

    def _end_run(self, limit: str) -> None:
        if self.spent is None:
            self.spent = limit
            logger.warning("the run has spent its budget: %s; further calls get 429", limit)


def _reached(spending: Spending, limits: Budget) -> str | None:
    for name, limit in limits.items():
        used = getattr(spending, name)
        if used >= limit:
            return f"{name} {used:g} of {limit:g}"
    return None


def _refused(message: str, kind: ErrorKind) -> RefusedError:
    return RefusedError(429, message, "budget_spent", headers=NO_RETRY, kind=kind)
