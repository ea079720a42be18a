"""Span names and attribute keys. Nothing else.

Names that agl shares with Agent Lightning 0.3 keep its values, so that spans of either can be read
by the other. ``gen_ai.*`` keys are OpenTelemetry's conventions for generative AI.
"""

from enum import StrEnum

AGL_ANNOTATION = "agentlightning.annotation"
AGL_MESSAGE = "agentlightning.message"
AGL_OBJECT = "agentlightning.object"
AGL_EXCEPTION = "agentlightning.exception"
AGL_OPERATION = "agentlightning.operation"
AGL_REWARD = "agentlightning.reward"
AGL_VIRTUAL = "agentlightning.virtual"

MODEL_CALL_SPAN = "openai.chat.completion"
"""Name of the span that the gateway writes for one model call."""
CLIENT_GONE = 499
"""Status of an answer that nobody waited for (nginx's number)."""


class LightningResourceAttributes(StrEnum):
    """Keys of an OpenTelemetry resource (or span) that say whose span it is."""

    ROLLOUT_ID = "agentlightning.rollout_id"
    ATTEMPT_ID = "agentlightning.attempt_id"
    SPAN_SEQUENCE_ID = "agentlightning.span_sequence_id"
    TRACER_NAME = "agentlightning.tracer.name"


class LightningSpanAttributes(StrEnum):
    """Keys (or key prefixes) of the spans that the emitters write."""

    REWARD = "agentlightning.reward"
    """Prefix: ``.<i>.name`` and ``.<i>.value``; index 0 is the primary reward."""
    GRADED = "agentlightning.graded"
    """True where the runner recorded what the agent's grader got and gave; no other reward of the
    attempt counts."""
    UNORDERED = "agentlightning.unordered"
    """True where the gateway could not say that the calls before the reward have lower numbers."""
    LINK = "agentlightning.link"
    """Prefix: ``.<i>.key_match`` and ``.<i>.value_match``; all links must match."""
    TAG = "agentlightning.tag"
    """Prefix: ``.<i>``."""
    CHOSEN = "agentlightning.chosen_choice"
    """Int: which of several answers to the linked model call was used, from 0."""
    MESSAGE_BODY = "agentlightning.message.body"
    OBJECT_TYPE = "agentlightning.object.type"
    OBJECT_LITERAL = "agentlightning.object.literal"
    OBJECT_JSON = "agentlightning.object.json"
    OPERATION_NAME = "agentlightning.operation.name"
    OPERATION_INPUT = "agentlightning.operation.input"
    OPERATION_OUTPUT = "agentlightning.operation.output"


class ModelCallAttributes(StrEnum):
    """Keys of a model-call span: OpenTelemetry's GenAI keys, and ours for what those lack."""

    OPERATION = "gen_ai.operation.name"
    PROVIDER = "gen_ai.provider.name"
    REQUEST_MODEL = "gen_ai.request.model"
    RESPONSE_ID = "gen_ai.response.id"
    RESPONSE_MODEL = "gen_ai.response.model"
    FINISH_REASONS = "gen_ai.response.finish_reasons"
    INPUT_MESSAGES = "gen_ai.input.messages"
    """JSON string: the request's messages, in OpenTelemetry's parts form or OpenAI's chat form."""
    OUTPUT_MESSAGES = "gen_ai.output.messages"
    """JSON string: the answer's messages, one per choice."""
    TOOL_DEFINITIONS = "gen_ai.tool.definitions"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    CACHED_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
    REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
    AGENT_NAME = "gen_ai.agent.name"
    PROMPT_TOKEN_IDS = "prompt_token_ids"
    """List of ints: exactly what the model was given (key of 0.3)."""
    RESPONSE_TOKEN_IDS = "response_token_ids"
    """List of ints: exactly what the model sampled, end token included (key of 0.3)."""
    RESPONSE_LOGPROBS = "agentlightning.response_logprobs"
    """List of floats, one per response token: natural log-probability under the sampling policy."""
    CHOICE = "agentlightning.choice"
    """Prefix of what later choices have: ``.<i>.token_ids``, ``.logprobs``, ``.model_version``,
    ``.model_version_spans``, ``.contradiction``; messages and ends stand beside the first's."""
    TIME_TO_FIRST_TOKEN = "gen_ai.response.time_to_first_chunk"
    """Float: seconds from the request's arrival to the first piece of a stream."""
    STATUS_CODE = "http.response.status_code"
    """Int: what the agent got; 499 when it closed the connection before the answer began."""
    LATENCY = "agentlightning.latency_seconds"
    """Float: seconds from the request's arrival to the answer's last byte."""
    MODEL_VERSION = "agentlightning.model_version"
    """String: which weights answered; ``3-4`` where they changed from 3 to 4 meanwhile."""
    VERSION_SPANS = "agentlightning.model_version_spans"
    """JSON string, then: ``[["3", 5], ["4", 7]]``, how many tokens each version sampled."""
    UNREADABLE = "agentlightning.response.unreadable"
    """List of strings: fields of the server's answer that cannot be read, with the reasons."""
    CONTRADICTION = "agentlightning.response.contradiction"
    """String: how the server's answer contradicts itself, where it does."""
    PROMPT_DIGEST = "agentlightning.request.prompt_digest"
    """String: tells a prompt of token ids, or several prompts, from others."""
    OVERRIDDEN = "agentlightning.request.overridden"
    """List of strings: parameters that the gateway forced, parts of the request that it changed."""
    ERROR = "agentlightning.model_call.error"
    """String: why there is no usable answer; absent when the call succeeded."""
    ERROR_KIND = "agentlightning.model_call.error_kind"
    """String: whose fault ``ERROR`` is, ``infrastructure`` or ``request``; absent if unknown."""
