"""``Call``: a model call on its way through the gateway."""

from collections.abc import Sequence
from dataclasses import dataclass

from agl_gateway.dialect import Dialect, Exchange
from agl_gateway.records import CallRecord, Origin


@dataclass(slots=True)
class Call:
    """A model call on its way."""

    dialect: Dialect
    origin: Origin
    record: CallRecord
    exchange: Exchange
    headers: Sequence[tuple[bytes, bytes]]
    """Of the request, names in lower case."""
