"""One conversation, written in each dialect by its library, gives the same rows.

``dialects.json`` says of each where its spans come from: the library with its version, which called
the scripted server of ``tests/plugins/adapters/fixtures/make_spans.py``, or what they were written
after by hand.
"""

import json
from pathlib import Path

import pytest

from agl.types import Event, Span
from agl_records.calls.conversations import conversation
from agl_records.calls.sources import read_call

from ..inspect.test_exchange_forms import SAID  # noqa: TID252

DIALECTS = json.loads(Path(__file__).with_name("dialects.json").read_text())
NO_TOOLS = ("strands events", "strands details", "events with a body", "plain text")
NO_FINISH = ("langfuse", "logfire 3", "plain text")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_conversation_reads_the_same_in_each_dialect(dialect):
    for given in DIALECTS[dialect]["spans"]:
        span = Span.from_attributes(name=given["name"], attributes=given["attributes"])
        events = [Event(**event) for event in given.get("events", ())]
        call = read_call(span.model_copy(update={"events": events}))
        assert call is not None
        said = conversation(call)["messages"]
        assert said == ([SAID[1], SAID[4]] if dialect == "plain text" else SAID[: len(said)])
        assert [t["function"]["name"] for t in call.tools] == ["look"] * (dialect not in NO_TOOLS)
        finish = "tool_calls" if said[-1].get("tool_calls") else "stop"
        assert call.finish_reason == (None if dialect in NO_FINISH else finish)
        assert str(call.model).startswith("qwen")
