"""The model calls of a trace, each once, whoever recorded it and however often."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agl.algorithm.gateway import is_gateway_span
from agl.errors import AdapterError
from agl.types import Span
from agl_records.calls.choices import decided
from agl_records.calls.sources import looks_like_call, read_call, why_unread
from agl_records.calls.sources.fields import OF_ANSWER, MessageError, make_call
from agl_records.calls.span_tree import SpanNode, in_time, late_spans
from agl_records.dialects.fields import FieldError
from agl_records.training_data import Choice, ModelCall
from agl_records.types import LATE, ExclusionReason

_FILLED = (
    *("messages", "tools", "response", "agent_name", "model", "requested_model"),
    *("served_model", "model_version", "finish_reason", "response_id"),
)
"""What the kept record of a call takes from the others where it has nothing itself."""
_CHOICE_PARTS = tuple(Choice.model_fields)


@dataclass(frozen=True)
class Recorded:
    """A span that records a model call."""

    call: ModelCall
    node: SpanNode
    malformed: str | None = None
    """Why the span could not be read; ``call`` then has nothing but ids and times."""
    code: ExclusionReason = "malformed"
    """The same as a code; only read where ``malformed`` is set."""
    rewards: frozenset[str] = frozenset()
    """The ids of the spans above it that hold a reward."""
    perhaps: frozenset[str] = frozenset()
    """The ids of others that hold a reward, and of which only the time says that it is below."""
    merged_ids: frozenset[str] = frozenset()
    """The ids of all spans that record the call, where several do."""

    @property
    def is_gateways(self) -> bool:
        """Whether the gateway wrote it."""
        return self.node.span is not None and is_gateway_span(self.node.span)

    @property
    def is_placed(self) -> bool:
        """Whether the span that it names as its parent is there."""
        above = self.node.parent and self.node.parent.span
        return bool(above and self.node.span and above.span_id == self.node.span.parent_id)

    @property
    def says_nothing(self) -> bool:
        """Whether a call that went well has neither messages nor tokens."""
        call = self.call
        said = (call.messages, call.response, call.choices, call.response_token_ids, call.error)
        return not (self.is_gateways or self.malformed or any(said))

    @property
    def problem(self) -> tuple[ExclusionReason, str] | None:
        """Why the call has no whole answer that its agent used; None if it has one."""
        call = self.call
        if call.error is not None and call.error_kind == "infrastructure":
            return "infrastructure", call.error
        if self.malformed is not None:
            return self.code, self.malformed
        if call.error is not None:
            return "model_error", call.error
        return call.answer_problem

    @property
    def quality(self) -> tuple[bool, ...]:
        """What the record has that counts; the highest of several is kept."""
        call, choices = self.call, self.call.choices
        response_ids = call.response_token_ids or any(choice.token_ids for choice in choices)
        has_ids = bool(call.prompt_token_ids and response_ids)
        return (
            # A gateway's, read or not, only gives way to one with more tokens: its reason counts.
            self.malformed is None or self.is_gateways,
            has_ids,
            bool(call.response_logprobs) or any(choice.logprobs for choice in choices),
            self.is_gateways,
            call.response is not None or bool(choices),
        )

    @classmethod
    def of(cls, node: SpanNode) -> "Recorded | None":
        """What a node records, its agent's name included, or None when that is no model call."""
        if node.span is None:
            return None
        try:
            call = read_call(node.span)
        except AdapterError as error:
            is_message = isinstance(error.__cause__, MessageError | FieldError)
            code = "malformed_message" if is_message else "malformed"
            return cls(make_call(node.span), node, str(error), code)
        if call is None:
            return None
        if call.agent_name is None:
            call = call.model_copy(update={"agent_name": node.agent_around})
        return cls(call, node)

    @staticmethod
    def by_call(found: "Sequence[Recorded]") -> "list[list[Recorded]]":
        """Records of one call together, groups in order of their first record.

        Records are of one call when they have one response id, and when one stands below another
        and one of the two has no id; and where a call failed, when a client's span is around a
        gateway's. A gateway's spans are always calls of their own; other spans with one id are
        apart when their times do not meet, as some servers give the same id to every answer.
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
                # A framework's span around the client's, which alone knows the id. One that cannot
                # be read stays by itself: its reason must not get lost behind the framework's.
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
                group = list[Recorded]()
                groups.append(group)
                if response_id:
                    by_response[response_id].append(group)
            group.append(recorded)
            group_at[id(recorded.node)] = group
        return _failures_once(groups)

    @staticmethod
    def merged(group: "Sequence[Recorded]") -> "Recorded":
        """The best record of a call, completed by the others."""
        if len(group) == 1:
            return group[0]
        best = max(group, key=lambda recorded: recorded.quality)
        update: dict[str, Any] = {}
        choices = _merged_choices(best, group)
        if choices:
            update = {"choices": choices, **dict.fromkeys(OF_ANSWER)}
        for name in _FILLED:
            known = getattr(best.call, name)
            if name not in update and (known is None if name == "finish_reason" else not known):
                value = _first(getattr(recorded.call, name) for recorded in group)
                if value is not None:
                    update[name] = value
        # Whoever stood in the agent's process knows better than a clock who the agent was.
        inside = [r.call.agent_name for r in group if not r.is_gateways and r.call.agent_name]
        own = best.node.span.attributes.get("gen_ai.agent.name") if best.node.span else None
        if inside and not own:
            update["agent_name"] = inside[0]
        return replace(
            best,
            call=best.call.model_copy(update=update),
            merged_ids=frozenset(recorded.call.call_id for recorded in group),
            rewards=best.rewards.union(*(recorded.rewards for recorded in group)),
            perhaps=frozenset()
            if any(recorded.is_placed for recorded in group)
            else best.perhaps.union(*(recorded.perhaps for recorded in group)),
        )

    @staticmethod
    def with_choices(records: "Sequence[Recorded]", spans: Sequence[Span]) -> "list[Recorded]":
        """The records in order, those of several answers with the answer that was used."""
        if not any(record.call.choices for record in records):
            return list(records)
        calls = decided([record.call for record in records], spans)
        return [replace(record, call=call) for record, call in zip(records, calls, strict=True)]


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


def recorded_parts(spans: Sequence[Span]) -> list[Recorded]:
    """What has a bin of its own in a ledger, of all attempts; see ``ModelCall.parts``."""
    in_time = [one for own in by_attempt(spans).values() for one in recorded_and_unrecognised(own)]
    return [
        replace(record, call=part)
        for record in (*in_time, *late_calls(spans))
        for part in record.call.parts()
    ]


def late_calls(spans: Sequence[Span]) -> list[Recorded]:
    """The calls that nobody recorded in time, marked as such; they are in nothing else."""
    late = late_spans(spans)
    ids = {(span.attempt_id, span.span_id) for span in late}
    every = by_attempt([*(span for span in spans if not span.late), *late]) if late else {}
    return [
        replace(record, malformed=LATE, code="late")
        for (_, attempt_id), own in every.items()
        for record in recorded_and_unrecognised(own)
        if all((attempt_id, one) in ids for one in record.merged_ids or [record.call.call_id])
    ]


def by_attempt(spans: Iterable[Span]) -> dict[tuple[str, str], list[Span]]:
    """Spans by (rollout id, attempt id), each once, without those that came after its end."""
    groups: defaultdict[tuple[str, str], dict[str, Span]] = defaultdict(dict)
    for span in in_time(spans):
        groups[span.rollout_id, span.attempt_id].setdefault(span.span_id, span)
    return {key: list(group.values()) for key, group in groups.items()}


def recorded_calls(spans: Sequence[Span], attempt: Sequence[Span] | None = None) -> list[Recorded]:
    """The calls of one attempt, each once, in order; unreadable ones are marked and kept.

    All spans of the ``attempt`` say what became of an answer; without them those that may be calls.
    """
    if not spans:
        return []
    return _merged_calls(_found(spans)[1], spans if attempt is None else attempt)


def recorded_and_unrecognised(spans: Sequence[Span]) -> list[Recorded]:
    """The same, and spans that look like a call, are no part of one, and cannot be read."""
    if not spans:
        return []
    root, found = _found(spans)
    with_call = {id(above) for r in found for above in (r.node, *r.node.ancestors())}
    calls = {id(recorded.node) for recorded in found}
    unknown: list[Recorded] = []
    for node in root.walk():
        if node.span is None or id(node) in with_call or not looks_like_call(node.span):
            continue
        if any(id(above) in calls for above in node.ancestors()):
            continue
        # Of several spans of that form, one in the other, the innermost is the call.
        unknown = [u for u in unknown if not node.is_within(u.node)]
        call = make_call(node.span, agent_name=node.agent_around)
        unknown.append(_unrecognised(Recorded(call, node), node.span))
    known = [
        _unrecognised(one, one.node.span) if one.node.span and one.says_nothing else one
        for one in _merged_calls(found, spans)
    ]
    return sorted([*known, *unknown], key=_position)


def unread_spans(spans: Sequence[Span]) -> list[str]:
    """Why spans that look like calls are not read; ``by_scope`` counts these sentences."""
    records = (one for own in by_attempt(spans).values() for one in recorded_and_unrecognised(own))
    return [one.malformed for one in records if one.malformed and one.code == "unrecognised_span"]


def _unrecognised(record: Recorded, span: Span) -> Recorded:
    return replace(record, malformed=why_unread(span), code="unrecognised_span")


def _found(spans: Sequence[Span]) -> tuple[SpanNode, list[Recorded]]:
    """The tree, mended, and the calls in it, each as often as it was recorded."""
    root = SpanNode.tree(spans)
    above = root.rewards_above()  # by what the spans themselves say of their parents
    root.repair()
    in_time, none = root.rewards_above(), frozenset[str]()
    found = [recorded for node in root.walk() if (recorded := Recorded.of(node)) is not None]
    return root, [
        replace(
            record,
            rewards=(known := above.get(id(record.node), none)),
            perhaps=none if record.is_placed else in_time.get(id(record.node), none) - known,
        )
        for record in found
    ]


def _merged_calls(found: Sequence[Recorded], spans: Sequence[Span]) -> list[Recorded]:
    records = sorted((Recorded.merged(group) for group in Recorded.by_call(found)), key=_position)
    return Recorded.with_choices(records, spans)


def _failures_once(groups: list[list[Recorded]]) -> list[list[Recorded]]:
    """Have a failed call once that its gateway and a traced client tell of; no id joins them."""
    of_gateway = [g for g in groups if all(r.is_gateways and r.call.error for r in g)]
    joined: list[list[Recorded]] = []
    for group in groups if of_gateway else ():
        if any(r.is_gateways or r.call.response_id or not r.call.error for r in group):
            continue
        twin = next((g for g in of_gateway if _is_around(group[0].call, g[0].call)), None)
        if twin is not None:
            of_gateway.remove(twin)
            twin.extend(group)
            joined.append(group)
    return [group for group in groups if not any(group is one for one in joined)]


def _is_around(client: ModelCall, gateway: ModelCall) -> bool:
    """Whether a client's call may have been this one at its gateway: its time is inside."""
    begin, end, outer_end = gateway.start_time, gateway.end_time, client.end_time
    if client.start_time is None or begin is None or end is None or outer_end is None:
        return False
    same_model = {client.model, client.requested_model} & {gateway.model, gateway.requested_model}
    return bool(same_model) and client.start_time <= begin and end <= outer_end


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


def _merged_choices(best: Recorded, group: Sequence[Recorded]) -> list[Choice]:
    """The answers to a call, each with what any record has of it; empty where there is but one."""
    listed = [record.call.choices for record in (best, *group) if record.call.choices]
    if not listed:
        return []
    choices = [
        Choice(**{name: _first(getattr(choice, name) for choice in same) for name in _CHOICE_PARTS})
        for same in zip(*(each for each in listed if len(each) == len(listed[0])), strict=True)
    ]
    if not best.call.choices:
        # It knows of one answer only, which is the first, and perhaps its tokens.
        own = best.call
        known = {
            "token_ids": choices[0].token_ids or own.response_token_ids,
            "logprobs": choices[0].logprobs or own.response_logprobs,
        }
        choices[0] = choices[0].model_copy(update=known)
    return choices


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value), None)


def _position(recorded: Recorded) -> tuple[float, float, str]:
    call = recorded.call
    return (call.sequence_id or math.inf, call.start_time or 0.0, call.call_id)
