"""How many tokens a message would have, by the model's server or by an estimate."""

import re
from contextlib import closing

import msgspec

from agl_gateway.dialect import TOKENIZE, Exchange, dumps
from agl_gateway.errors import NOT_JSON, BrokenOffError, RefusedError
from agl_gateway.records import BYTES_PER_TOKEN
from agl_gateway.upstream import Failover, Upstream

_IMAGE = re.compile(rb'(?<="url":")data:[^"]*')


class _Counted(msgspec.Struct):
    count: int


async def count_tokens(
    exchange: Exchange, upstream: Upstream, failover: Failover, strict: bool
) -> bytes:
    """The answer of ``/v1/messages/count_tokens``, asked for as vLLM's ``/tokenize`` takes it.

    Raises:
        RefusedError: No server can be reached, or none counts and an estimate will not do.
    """
    try:
        with (
            closing(failover),
            closing(await upstream.open(failover, exchange, TOKENIZE, ())) as answer,
        ):
            why = f"{TOKENIZE} answered {answer.status}"
            if answer.status == 200:
                counted = msgspec.json.decode(await answer.read(), type=_Counted)
                return dumps({"input_tokens": counted.count})
    except RefusedError as refused:
        if refused.status >= 500:
            raise
        why = refused.message
    except (BrokenOffError, *NOT_JSON) as error:
        why = f"{TOKENIZE}: {error}"
    if strict:
        raise RefusedError(404, f"nobody counts tokens of model {exchange.model!r} ({why}), and "
                           "the model is strict: no estimate will do")  # fmt: skip
    size = len(_IMAGE.sub(b"", exchange.request))
    return dumps({"input_tokens": size // BYTES_PER_TOKEN, "is_estimate": True})
