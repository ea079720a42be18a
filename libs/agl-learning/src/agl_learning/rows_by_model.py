"""Rows of several models that are trained in one run, and one ledger of them all."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from agl.algorithm.adapter import TraceAdapter
from agl.types import Attempt, Span
from agl_records.ledger.ledger import Ledger
from agl_records.row_builder import RowsAdapter, RowSet
from agl_records.training_data import TrainedModel
from agl_records.types import CallKey, Exclusion, ItemKind


class RowsByModel(RowsAdapter):
    """Asks an adapter with ``model=``, as ``rows``, for the rows of each model, and marks them."""

    def __init__(
        self, adapter: TraceAdapter[Any], models: Callable[[], Sequence[TrainedModel]]
    ) -> None:
        self._adapter, self._models = adapter, models

    def adapt(
        self,
        source: Sequence[Span],
        /,
        attempts: Sequence[Attempt] | None = None,
        model: TrainedModel | None = None,
    ) -> RowSet:
        """Rows of all the models; of a call that none of them made, why it is in no row."""
        adapt = cast("Callable[..., RowSet]", self._adapter.adapt)
        found = {one.name: adapt(source, attempts=attempts, model=one) for one in self._models()}
        rows = [
            row.model_copy(update={"model": name})
            for name, of_model in found.items()
            for row in of_model.rows
        ]
        return RowSet(rows, joined({name: one.ledger for name, one in found.items()}))


def joined(ledgers: Mapping[str, Ledger]) -> Ledger:
    """The ledger of rollouts that each model's ledger has as it sees them; nothing is trained yet.

    A call is open where one of them has it open, and a reward used where one of them uses it. What
    all of them exclude is excluded for the first reason that is not ``other_model``.
    """
    whole = Ledger()
    excluded: dict[tuple[ItemKind, CallKey], list[Exclusion]] = {}
    for ledger in ledgers.values():
        whole.items |= ledger.items
        for one in ledger.exclusions:
            excluded.setdefault((one.kind, one.key), []).append(one)
    used = {item.key: item for ledger in ledgers.values() for item in ledger.used_rewards}
    whole.used_rewards = [*used.values()]
    for reasons in excluded.values():
        if len(reasons) == len(ledgers):
            own = [one for one in reasons if one.reason != "other_model"]
            whole.exclude((own or reasons)[0])
    whole.models = _makers(ledgers, whole.calls)
    return whole


def _makers(ledgers: Mapping[str, Ledger], calls: set[CallKey]) -> dict[CallKey, str]:
    """Which model made a call, where all others say that it is another's."""
    others = {
        name: {one.key for one in ledger.exclusions if one.reason == "other_model"}
        for name, ledger in ledgers.items()
    }
    may = {key: [name for name in ledgers if key not in others[name]] for key in calls}
    return {key: names[0] for key, names in may.items() if len(names) == 1}
