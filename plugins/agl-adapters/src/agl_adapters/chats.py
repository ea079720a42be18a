"""Training rows of text, for trainers that take conversations and give no token ids."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import Field

from agl.errors import AdapterError
from agl_adapters.rows import TraceToRows, Truncated, WrongToolCalls
from agl_records.calls.conversations import conversation
from agl_records.calls.reader import Recorded
from agl_records.credit import CreditRule
from agl_records.training_data import PER_CALL, ModelCall, TrainedModel, TrainingRow, items_of_calls
from agl_records.types import Credit, ExclusionReason


class ChatRow(TrainingRow):
    """One conversation to train on, made of one call or of several that continue each other.

    It has no tokens: ``token_ids``, ``logprobs`` and ``call_ranges`` are empty.
    """

    messages: list[dict[str, Any]]
    """OpenAI chat messages, answers included."""
    tools: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """OpenAI tool definitions that the last call had."""
    answers: list[int]
    """Per call, which message is its answer."""

    def only(self, numbers: Collection[int]) -> "ChatRow":
        """The row with these of its calls (from 0); the others' answers count as given."""
        kept = sorted(numbers)
        return self.model_copy(update=items_of_calls(self, kept, ("answers", *PER_CALL)))


class TraceToChats(TraceToRows):
    """Makes rows of messages, with credit per call, and an account of every call and reward.

    A call continues the longest row of its agent with whose messages, answers included, its prompt
    begins, so that a conversation is trained, and paid for, once.
    Calls without token ids are taken; one that has no answer or messages that cannot be read is
    excluded.

    Args:
        truncated: What to do with an answer that was cut off at the limit of tokens (its reason to
            finish is ``length``). ``train`` trains it as any other. ``mask`` excludes the call and
            trains the others; a conversation that goes on behind it has its answer as a given one.
            With ``exclude`` no call of an attempt with such an answer is trained.
        wrong_tool_calls: What to do with an answer that calls a tool with arguments that are no
            JSON object, or one that was not offered. ``exclude`` excludes the call: its text is
            what the server's parser made of the sampled tokens, and would be imitated. ``train``
            trains it as any other.

    Raises:
        ConfigError: A wrong regular expression.
        PluginError: There is no such credit rule.
    """

    def __init__(
        self,
        agent_match: str | None = None,
        credit: str | dict[str, Any] | CreditRule = "final",
        truncated: Truncated = "train",
        wrong_tool_calls: WrongToolCalls = "exclude",
    ) -> None:
        super().__init__(
            agent_match, credit, truncated=truncated, wrong_tool_calls=wrong_tool_calls
        )

    def _problem(
        self, record: Recorded, model: TrainedModel | None
    ) -> tuple[ExclusionReason, str] | None:
        call = record.call
        if (problem := self._no_answer(record)) is not None:
            return problem
        if call.response is None:
            return "malformed", "no answer was recorded"
        if call.finish_reason == "content_filter":
            return "model_error", "the provider's content filter cut the answer off"
        if not call.messages:
            return "malformed_message", "no message of the request was recorded"
        try:
            conversation(call)
        except AdapterError as error:
            return "malformed_message", str(error)
        return None

    def _take(
        self, call: ModelCall, credit: Credit, rows: Sequence[TrainingRow]
    ) -> TrainingRow | None:
        chat = conversation(call)
        messages, tools = chat["messages"], chat["tools"] or []
        begun = [
            row
            for row in rows
            if isinstance(row, ChatRow) and _continues(messages[:-1], row.messages)
        ]
        row = max(begun, key=lambda row: len(row.messages), default=None) or ChatRow(
            rollout_id=call.rollout_id,
            attempt_id=call.attempt_id,
            agent_name=call.agent_name,
            token_ids=[],
            logprobs=[],
            call_ids=[],
            call_ranges=[],
            credits=[],
            messages=[],
            answers=[],
        )
        row.messages, row.tools = messages, tools
        row.answers.append(len(messages) - 1)
        row.note(call, credit)
        return None if begun else row


def _continues(prompt: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a prompt begins with all of an earlier conversation, as a model reads them."""
    return len(prompt) > len(earlier) and all(
        _read(one) == _read(other) for one, other in zip(prompt, earlier, strict=False)
    )


def _read(message: Mapping[str, Any]) -> str:
    """What of a message a model gets to see; clients add and drop the rest as they like."""
    seen = {
        name: message[name]
        for name in ("role", "name", "content", "tool_calls", "tool_call_id")
        if message.get(name) not in (None, "", [])
    }
    return json.dumps(seen, sort_keys=True)
