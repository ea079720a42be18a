"""Spans made by hand, as scripts of 0.3 make them."""

from agentlightning.types import Span


def span(name, number, parent=None, end=None, **attributes) -> Span:
    """The one of this number, which begins then; what is below none lasts for long."""
    ids = {"rollout_id": "ro-1", "attempt_id": "at-1", "span_id": f"{number:016x}"}
    ids["parent_id"] = None if parent is None else f"{parent:016x}"
    lasts = 9 if parent is None else 0.5
    times = {"start_time": float(number), "end_time": end or number + lasts}
    about = {"name": name, "sequence_id": number, "attributes": attributes}
    return Span.from_attributes(**about, **ids, **times)
