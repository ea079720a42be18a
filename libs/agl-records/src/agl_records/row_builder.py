"""Training rows of token ids: a call continues the row with whose exact ids its prompt begins."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from agl.algorithm.adapter import TraceAdapter
from agl.plugins.build import build_component
from agl.types import Attempt, Span
from agl_records.ledger.ledger import Ledger
from agl_records.training_data import ModelCall, RowBreak, TrainedModel, TrainingRow
from agl_records.types import Credit


@dataclass
class RowSet:
    """Training rows, and what became of the calls that are in none of them."""

    rows: list[TrainingRow] = field(default_factory=list[TrainingRow])
    ledger: Ledger = field(default_factory=Ledger)
    """Knows every call, rollout and reward. Calls outside of ``rows`` are excluded with a reason;
    those in ``rows`` are open until ``ledger.train(row)`` or ``ledger.exclude_row(row, reason)`` is
    called for each row, after which ``ledger.check()`` passes."""

    def __len__(self) -> int:
        return len(self.rows)


class RowsAdapter(TraceAdapter[RowSet]):
    """Base of the adapters that make training rows."""

    @abstractmethod
    def adapt(
        self,
        source: Sequence[Span],
        /,
        attempts: Sequence[Attempt] | None = None,
        model: TrainedModel | None = None,
    ) -> RowSet:
        """Rows of one rollout, or of several.

        Args:
            source: Spans in any order; empty gives no rows.
            attempts: The rollouts' attempts: then the last that succeeded is used, and a rollout
                without spans is accounted for too. Otherwise it is the attempt that began last.
            model: The one that is trained: calls of others are excluded and get no rewards, and
                so are answers with token ids beyond its vocabulary. None takes all.
        """


def new_row(call: ModelCall, credit: Credit, row_break: RowBreak | None) -> TrainingRow:
    """A row of one call."""
    # Without validation, which looks at every token: they were checked when the call was read.
    row = TrainingRow.model_construct(
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        agent_name=call.agent_name,
        token_ids=[],
        logprobs=[],
        call_ids=[],
        call_ranges=[],
        credits=[],
        row_break=row_break,
    )
    extend(row, call, credit)
    return row


def extend(row: TrainingRow, call: ModelCall, credit: Credit) -> None:
    """Append what a call adds to a row that its prompt continues."""
    given = (call.prompt_token_ids or [])[len(row.token_ids) :]
    sampled = call.response_token_ids or []
    start = len(row.token_ids) + len(given)
    row.token_ids.extend(given + sampled)
    row.logprobs.extend([0.0] * len(given) + (call.response_logprobs or []))
    row.call_ranges.append((start, start + len(sampled)))
    row.note(call, credit)
    row.images = image_urls(call.messages)


def image_urls(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The addresses in the ``image_url`` parts of messages, in order; "" for one without."""
    # Anybody may write spans: a content may hold what is no part, and an image no address.
    contents = [message.get("content") for message in messages]
    parts: list[Any] = [
        part for one in contents if isinstance(one, list) for part in cast(Any, one)
    ]
    return [
        _address(cast(Any, part).get("image_url"))
        for part in parts
        if isinstance(part, Mapping) and cast(Any, part).get("type") == "image_url"
    ]


def _address(image: Any) -> str:
    url = cast(Any, image).get("url") if isinstance(image, Mapping) else image
    return url if isinstance(url, str) else ""


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common from their beginning."""
    if not one or not other or one[0] != other[0]:
        return 0
    # By halves, as comparing slices is a hundred times quicker than comparing tokens one by one.
    same, differs = 0, min(len(one), len(other)) + 1
    while differs - same > 1:
        middle = (same + differs) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            differs = middle
    return same


def rows_adapter(**options: Any) -> RowsAdapter:
    """The adapter with these of its options.

    Raises:
        PluginError: It is not installed.
    """
    return build_component(
        {"type": "rows", **options}, group="agl.adapters", expected_type=RowsAdapter
    )
