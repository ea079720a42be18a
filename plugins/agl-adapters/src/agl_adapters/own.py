"""Which calls of an attempt are the trained model's own work.

Not those of a judge or of another model, and not those that failed and were asked again.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from agl.algorithm.gateway import is_gateway_span
from agl.emitter import is_reward_span
from agl.semconv import LightningSpanAttributes
from agl.types import Attempt, Span
from agl.utils.rewards import reward_problem
from agl_records.calls.reader import Recorded
from agl_records.training_data import ModelCall, TrainedModel
from agl_records.types import ExclusionReason

QUESTION = ("requested_model", "agent_name", "messages", "tools")
"""What two calls have in common of which one asks the other's question again."""
CLOCK_TOLERANCE = 1.0
"""So many seconds may spans lie outside of their attempt before clocks are said to differ."""

PERHAPS = (
    "it came without the header traceparent, and may stand below the span of a reward, which went "
    "on meanwhile"
)


def rewards_of_agent(
    records: Sequence[Recorded], spans: Sequence[Span], model: TrainedModel | None
) -> frozenset[str]:
    """The ids of reward spans around all calls of the trained model: the agent's, and no judge's.

    An agent may set the reward on the span of its whole work. A span whose output is the reward is
    that of a function which finds it (AgentOps' operations), whatever else there is.
    """
    prefix = f"{LightningSpanAttributes.REWARD.value}."
    around = [r.rewards | r.perhaps for r in records if model is None or model.made(r.call)]
    return frozenset(
        span.span_id
        for span in (spans if any(around) else ())
        if all(span.span_id in rewards for rewards in around)
        and any(key.startswith(prefix) for key in span.attributes)
    )


def of_another(
    record: Recorded, model: TrainedModel | None, agents: frozenset[str]
) -> tuple[ExclusionReason, str] | None:
    """Why a call is none of the trained model's own work."""
    call = record.call
    if record.rewards - agents:
        return "judge", "it stands below the span of a reward"
    if model is None or model.made(call):
        return ("perhaps_judge", PERHAPS) if record.perhaps - agents else None
    name = call.served_model or call.requested_model or call.model
    if name is None and (record.malformed is not None or call.error is not None):
        return None  # whose call it was cannot be read; what is wrong with it can
    who = "no model is recorded" if name is None else f"its model is {name!r}"
    return "other_model", f"{who}; {model.name!r} is trained"


def perhaps_by_number(
    records: Sequence[Recorded], spans: Sequence[Span], attempt: Attempt
) -> list[Recorded]:
    """The records; where clocks differ, no time says what may stand below a reward.

    They do where spans lie outside of the attempt. Then a call may stand below any span of a reward
    that came to the store later and is not shorter, unless the call's parent is known.
    """
    end = math.inf if attempt.end_time is None else attempt.end_time
    begins = [span.start_time or attempt.start_time for span in spans]
    ends = [span.end_time or attempt.start_time for span in spans]
    early, late = attempt.start_time - min(begins, default=end), max(ends, default=end) - end
    if max(early, late) < CLOCK_TOLERANCE:
        return list(records)
    rewards = [
        (span, (span.end_time or 0.0) - (span.start_time or 0.0))
        for span in spans
        if not is_gateway_span(span) and (is_reward_span(span) or reward_problem(span))
    ]
    return [
        record
        if record.is_placed or record.rewards
        else replace(
            record,
            perhaps=frozenset(
                span.span_id
                for span, seconds in rewards
                if span.sequence_id > record.call.sequence_id
                and 0 < seconds >= (record.call.end_time or 0.0) - (record.call.start_time or 0.0)
            ),
        )
        for record in records
    ]


def asked_again(calls: Sequence[ModelCall]) -> dict[str, str]:
    """Ids of calls that servers or the network failed and that were asked again -> their errors.

    They are no steps of the agent: it, or its client's library, went on from the repetition. A
    request that the client gave up because the same had its answer is one of them.

    Args:
        calls: Of one attempt, in the order of their numbers, which they have from their ends.
    """
    failed = [n for n, call in enumerate(calls) if call.error_kind == "infrastructure"]
    asked = [[getattr(call, name) for name in QUESTION] for call in calls]
    again: dict[str, str] = {}
    for number in failed:
        call = calls[number]
        same = [n for n, one in enumerate(asked) if n != number and one == asked[number]]
        begin = call.start_time or 0.0
        if any(
            n > number or (calls[n].error is None and (calls[n].end_time or begin) > begin)
            for n in same
        ):
            again[call.call_id] = call.error or ""
    return again
