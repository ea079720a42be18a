"""Hard limits on calls, tokens and money, of one attempt and of the whole run."""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from agl.errors import ConfigError
from agl_gateway.errors import NO_RETRY, ErrorKind, RefusedError

logger = logging.getLogger("agl.gateway")

MAX_ATTEMPTS = 100_000
"""So many attempts are remembered; the one whose last call is longest ago is forgotten first."""


class Budget(TypedDict, total=False):
    """Limits; what is left out has none."""

    calls: int
    """Model calls, failed ones included."""
    tokens: int
    """Of prompts and answers together."""
    cost: float
    """In the currency of the prices in the model list."""


class Price(TypedDict, total=False):
    """What a model costs per million tokens; what is left out is free."""

    input: float
    output: float


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
        run: Of everything that the gateway forwards, attributed to an attempt or not.
        attempt: Of each attempt.

    Raises:
        ConfigError: An unknown limit, or one that is not a number above 0.
    """

    def __init__(self, run: Budget | None = None, attempt: Budget | None = None) -> None:
        self._run_limits = _checked(run, "run_budget")
        self._attempt_limits = _checked(attempt, "attempt_budget")
        self.counts_usage = bool({"tokens", "cost"} & {*self._run_limits, *self._attempt_limits})
        """Whether ``charge`` has to be called."""
        self.run = Spending()
        self._attempts: OrderedDict[str, Spending] = OrderedDict()
        self.spent: str | None = None
        """Which limit of the run is used up; None while there is budget."""

    def admit(self, attempt_id: str) -> None:
        """Count a call that begins.

        Args:
            attempt_id: Whose call it is; empty for one that belongs to no attempt.

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
            cost = input_tokens * price.get("input", 0) + output_tokens * price.get("output", 0)
            cost /= 1e6
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


def _checked(limits: Budget | None, name: str) -> Budget:
    for key, value in (limits or {}).items():
        if key not in Budget.__annotations__:
            raise ConfigError(
                f"LLMProxy {name}: unknown limit {key!r}; expected any of "
                f"{', '.join(Budget.__annotations__)}"
            )
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise ConfigError(f"LLMProxy {name}: {key} is {value!r}; expected a number above 0")
    return limits or {}


def checked_price(price: object, where: str) -> Price | None:
    """A price out of a model list.

    Raises:
        ConfigError: It is none.
    """
    if price is None:
        return None
    if not isinstance(price, Mapping):
        raise ConfigError(
            f"{where}: price is {price!r}; expected, per million tokens, "
            "{'input': NUMBER, 'output': NUMBER}"
        )
    checked = Price()
    for key, value in price.items():
        if key not in Price.__annotations__:
            raise ConfigError(f"{where}: unknown key {key!r} of price; expected input, output")
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise ConfigError(
                f"{where}: price {key} is {value!r}; expected an amount per million tokens"
            )
        checked[key] = float(value)
    return checked
