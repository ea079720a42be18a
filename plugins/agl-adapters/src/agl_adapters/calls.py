"""The model calls of a trace, each once, whoever recorded it and however often."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agl.errors import AdapterError
from agl.semconv import AGL_LEDGER
from agl.types import ExclusionReason, ModelCall, Span
from agl_adapters.sources import read_call
from agl_adapters.sources.fields import MessageError, looks_like_call, make_call
from agl_adapters.sources.gateway import is_gateway_span
from agl_adapters.tree import Node, agent_of, build_tree, repair, walk

FILLED = (
    "messages",
    "tools",
    "response",
    "agent_name",
    "model",
    "model_version",
    "finish_reason",
    "response_id",
)
"""What the kept record of a call takes from the others where it has nothing itself."""


@dataclass(frozen=True)
class Recorded:
    """A span that records a model call."""

    call: ModelCall
    node: Node
    malformed: str | None = None
    """Why the span could not be read; ``call`` then has nothing but ids and times."""
    code: ExclusionReason = "malformed"
    """The same as a code; only read where ``malformed`` is set."""

    @property
    def is_gateways(self) -> bool:
        """Whether the gateway wrote it."""
        return self.node.span is not None and is_gateway_span(self.node.span)

    @property
    def quality(self) -> tuple[bool, ...]:
        """What the record has that counts; the highest of several is kept."""
        call = self.call
        has_ids = bool(call.prompt_token_ids and call.response_token_ids)
        return (
            # A gateway's, read or not, only gives way to one with more tokens: its reason counts.
            self.malformed is None or self.is_gateways,
            has_ids,
            bool(call.response_logprobs),
            self.is_gateways,
            call.response is not None,
        )


def model_calls(spans: Sequence[Span]) -> list[ModelCall]:
    """The model calls among the spans of a rollout, each once, by attempt and number.

    Agent names come from the call itself or from the agents' spans around it.

    Raises:
        AdapterError: A call cannot be read.
    """
    calls: list[ModelCall] = []
    for attempt in by_attempt(spans).values():
        for recorded in recorded_calls(attempt):
            if recorded.malformed is not None:
                raise AdapterError(recorded.malformed)
            calls.append(recorded.call)
    return calls


def by_attempt(spans: Iterable[Span]) -> dict[tuple[str, str], list[Span]]:
    """Spans by (rollout id, attempt id), each once."""
    groups: defaultdict[tuple[str, str], dict[str, Span]] = defaultdict(dict)
    for span in spans:
        # The ledger's own spans are no part of what the agent did.
        if span.name != AGL_LEDGER:
            groups[span.rollout_id, span.attempt_id].setdefault(span.span_id, span)
    return {key: list(group.values()) for key, group in groups.items()}


def recorded_calls(spans: Sequence[Span]) -> list[Recorded]:
    """The calls of one attempt, each once, in order; unreadable ones are marked and kept."""
    if not spans:
        return []
    return _merged_calls(_found(_mended(spans)))


def recorded_and_unrecognised(spans: Sequence[Span]) -> list[Recorded]:
    """The same, and spans that look like a call, are no part of one, and cannot be read."""
    if not spans:
        return []
    root = _mended(spans)
    found = _found(root)
    with_call = {id(above) for r in found for above in (r.node, *r.node.ancestors())}
    calls = {id(recorded.node) for recorded in found}
    unknown: list[Recorded] = []
    for node in walk(root):
        if node.span is None or id(node) in with_call or not looks_like_call(node.span):
            continue
        if any(id(above) in calls for above in node.ancestors()):
            continue
        # Of several spans of that form, one in the other, the innermost is the call.
        unknown = [u for u in unknown if not node.is_within(u.node)]
        why = (
            f"span {node.span.name!r} looks like a model call, but has its messages under no known "
            f"keys: {', '.join(sorted(node.span.attributes)[:6])}"
        )
        call = make_call(node.span, agent_name=agent_of(node))
        unknown.append(Recorded(call, node, why, "unrecognised_span"))
    return sorted([*_merged_calls(found), *unknown], key=_position)


def _mended(spans: Sequence[Span]) -> Node:
    root = build_tree(spans)
    repair(root)
    return root


def _found(root: Node) -> list[Recorded]:
    return [recorded for node in walk(root) if (recorded := record_of(node)) is not None]


def _merged_calls(found: Sequence[Recorded]) -> list[Recorded]:
    return sorted((merged(group) for group in same_calls(found)), key=_position)


def record_of(node: Node) -> Recorded | None:
    """What a node records, its agent's name included, or None when that is no model call."""
    if node.span is None:
        return None
    try:
        call = read_call(node.span)
    except AdapterError as error:
        is_message = isinstance(error.__cause__, MessageError)
        code = "malformed_message" if is_message else "malformed"
        return Recorded(make_call(node.span), node, str(error), code)
    if call is None:
        return None
    if call.agent_name is None:
        call = call.model_copy(update={"agent_name": agent_of(node)})
    return Recorded(call, node)


def same_calls(found: Sequence[Recorded]) -> list[list[Recorded]]:
    """Records of one call together, groups in order of their first record.

    Records are of one call when they have one response id, and when one stands below another and
    one of the two has no id. A gateway's spans are always calls of their own; other spans with one
    id are apart when their times do not meet, as some servers give the same id to every answer.
    """
    groups: list[list[Recorded]] = []
    group_at: dict[int, list[Recorded]] = {}
    by_response: defaultdict[str, list[list[Recorded]]] = defaultdict(list)
    for recorded in found:
        group = None
        response_id = recorded.call.response_id
        around = next(
            (g for node in recorded.node.ancestors() if (g := group_at.get(id(node)))), None
        )
        if response_id:
            group = _group_with(by_response[response_id], recorded)
            # A framework's span around the client's, which alone knows the id. One that cannot be
            # read stays by itself: its reason must not get lost behind the framework's.
            if (
                around is not None
                and recorded.malformed is None
                and not any(member.call.response_id or member.is_gateways for member in around)
            ):
                if group is None:
                    group = around
                    by_response[response_id].append(group)
                else:
                    group.extend(around)
                    group_at.update((id(member.node), group) for member in around)
                    groups = [each for each in groups if each is not around]
        elif not recorded.is_gateways:
            group = around
        if group is None:
            group = []
            groups.append(group)
            if response_id:
                by_response[response_id].append(group)
        group.append(recorded)
        group_at[id(recorded.node)] = group
    return groups


def _group_with(groups: Sequence[list[Recorded]], recorded: Recorded) -> list[Recorded] | None:
    for group in groups:
        if recorded.is_gateways:
            if not any(member.is_gateways for member in group):
                return group
            continue
        others = [member for member in group if not member.is_gateways]
        if not others or any(_meet(member.call, recorded.call) for member in others):
            return group
    return None


def _meet(one: ModelCall, other: ModelCall) -> bool:
    times = (one.start_time, one.end_time, other.start_time, other.end_time)
    if any(time is None for time in times):
        return True
    start, end, other_start, other_end = (time or 0.0 for time in times)
    return start <= other_end and other_start <= end


def merged(group: Sequence[Recorded]) -> Recorded:
    """The best record of a call, completed by the others."""
    best = max(group, key=lambda recorded: recorded.quality)
    if len(group) == 1:
        return best
    update: dict[str, Any] = {}
    for name in FILLED:
        if not getattr(best.call, name):
            values = (getattr(recorded.call, name) for recorded in group)
            value = next((value for value in values if value), None)
            if value is not None:
                update[name] = value
    # Whoever stood in the agent's process knows better than a clock who the agent was.
    inside = [r.call.agent_name for r in group if not r.is_gateways and r.call.agent_name]
    own = best.node.span.attributes.get("gen_ai.agent.name") if best.node.span else None
    if inside and not own:
        update["agent_name"] = inside[0]
    return Recorded(best.call.model_copy(update=update), best.node, best.malformed, best.code)


def _position(recorded: Recorded) -> tuple[float, float, str]:
    call = recorded.call
    return (call.sequence_id or math.inf, call.start_time or 0.0, call.call_id)
