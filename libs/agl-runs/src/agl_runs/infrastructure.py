"""Failures of servers or of the network under an agent that says it succeeded."""

from collections.abc import Sequence
from typing import Literal

from agl.algorithm.gateway import is_gateway_span
from agl.semconv import CLIENT_GONE, ModelCallAttributes as Key
from agl.types import Span

InfrastructureFailures = Literal["exclude", "drop_group", "keep"]
"""What becomes of a rollout that succeeded although servers or the network failed a model call of
it: it has no reward and trains nothing; nor do the other rollouts of its task; or it counts as any
other. An option of every algorithm; ``infrastructure_failure`` finds such rollouts."""


def infrastructure_failure(spans: Sequence[Span]) -> str | None:
    """Why the reward of an attempt says nothing about the model, if that is so.

    It is, when servers or the network failed a model call (5xx, 429, a timeout, a lost connection)
    and the agent had to go on without its answer. A call is not counted if the same was asked again
    and answered: a later call of the attempt, to the same model with the same messages and tools,
    whether the client's library repeated it or the agent did. For a call that its client closed, an
    answer that came since it began will do: who asks twice and takes the first answer lost none.

    Args:
        spans: Of one attempt. Only the gateway's say why a call failed. They are in the order of
            their numbers, which a call has from its end.

    Returns:
        The error of the first such call.
    """
    calls = [span for span in spans if is_gateway_span(span)]
    failed = [span for span in calls if span.attributes.get(Key.ERROR_KIND) == "infrastructure"]
    if not failed:
        return None
    last: dict[str, int] = {}
    end: dict[str, float] = {}
    for span in calls:
        if Key.ERROR not in span.attributes:
            asked = _asked(span)
            last[asked] = max(span.sequence_id, last.get(asked, 0))
            end[asked] = max(span.end_time or 0.0, end.get(asked, 0.0))
    for span in failed:
        asked = _asked(span) if Key.INPUT_MESSAGES in span.attributes else ""
        is_closed = span.attributes.get(Key.STATUS_CODE) == CLIENT_GONE
        is_answered = last.get(asked, 0) > span.sequence_id or (
            is_closed and end.get(asked, 0.0) > (span.start_time or 0.0)
        )
        if not is_answered:
            return str(span.attributes.get(Key.ERROR))
    return None


def _asked(span: Span) -> str:
    keys = (Key.REQUEST_MODEL, Key.INPUT_MESSAGES, Key.TOOL_DEFINITIONS)
    # Agents can write spans of this form, too, with any values.
    return repr([span.attributes.get(key) for key in keys])
