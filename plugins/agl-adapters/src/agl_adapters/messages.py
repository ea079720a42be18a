"""Chat messages of each model call, as OpenAI's clients take them."""

from collections.abc import Sequence

from agl.algorithm.adapter import TraceAdapter
from agl.errors import AdapterError
from agl.types import Span
from agl_records.calls.conversations import ChatMessages, conversation, tool_spans_of
from agl_records.calls.reader import by_attempt, recorded_calls


class TraceToMessages(TraceAdapter[list[ChatMessages]]):
    """Makes one entry per model call, in order of attempt and number.

    Tool calls are in the assistant's message; where a tracer recorded them only as spans below the
    call (``tool.*``, AgentOps), they are taken from there. A call that two instruments recorded is
    one entry; one that failed has no answer, and says so in its metadata. Nor has one with several
    answers (``n`` above 1) of which nobody says which was used; else it has the one that was.
    """

    def adapt(self, source: Sequence[Span], /) -> list[ChatMessages]:
        """Conversations; none for no spans.

        Raises:
            AdapterError: A call cannot be read; the message says which span and why.
        """
        entries: list[ChatMessages] = []
        for spans in by_attempt(source).values():
            tool_spans = tool_spans_of(spans)
            for record in recorded_calls(spans):
                if record.malformed is not None:
                    raise AdapterError(record.malformed)
                entries.append(conversation(record.call, tool_spans.get(record.call.call_id, ())))
        return entries
