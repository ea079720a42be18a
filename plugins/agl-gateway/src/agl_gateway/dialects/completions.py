"""``/v1/completions``: text that a model continues. It passes through, like chat completions."""

from collections.abc import Mapping, Sequence

from msgspec import Raw

from agl_gateway.dialect import Dialect, Exchange, read_request
from agl_gateway.errors import RefusedError
from agl_gateway.response_history import NO_HISTORY, AttemptHistory


class CompletionExchange(Exchange):
    """One call of ``/v1/completions``."""

    # `logprobs` is the number of alternatives that are listed per token.
    added: Mapping[str, Raw] = {**Exchange.added, "logprobs": Raw(b"1")}
    choice_keys: Mapping[str, Sequence[str]] = {
        **Exchange.choice_keys,
        "return_token_ids": ("token_ids", "prompt_token_ids"),
    }


class Completions(Dialect):
    """Completions of a prompt, which may be text or token ids."""

    operation = "text_completion"
    path = "completions"

    def read(self, body: bytes, history: AttemptHistory = NO_HISTORY) -> Exchange:
        fields = read_request(body)
        if "prompt" not in fields:
            raise RefusedError(400, "the request has no 'prompt'; expected a text or token ids")
        return CompletionExchange(body, fields)
