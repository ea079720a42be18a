"""A client whose spans say in their resource, too, whose they are."""

from collections.abc import Sequence
from typing import Any

import agl
from agl.semconv import LightningResourceAttributes as Key
from agl.types import PaginatedResult, Span
from agl_server.transport import RETRY_DELAYS


class LightningStoreClient(agl.LightningStoreClient):
    __doc__ = agl.LightningStoreClient.__doc__

    def __init__(
        self,
        server_address: str,
        *,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        health_retry_delays: Sequence[float] = (0.1, 0.2, 0.5),
        request_timeout: float = 30.0,
        connection_timeout: float = 5.0,
        token: str | None = None,
    ) -> None:
        # A request is repeated without a look at the server's health: those delays mean nothing.
        super().__init__(
            server_address,
            retry_delays=retry_delays,
            request_timeout=request_timeout,
            connection_timeout=connection_timeout,
            token=token,
        )

    async def query_spans(self, *args: Any, **options: Any) -> PaginatedResult[Span]:
        page = await super().query_spans(*args, **options)
        return page.model_copy(update={"items": list(map(_with_ids, page.items))})


def _with_ids(span: Span) -> Span:
    whose = {Key.ROLLOUT_ID.value: span.rollout_id, Key.ATTEMPT_ID.value: span.attempt_id}
    attributes = {**whose, **span.resource.attributes}
    return span.changed(resource=span.resource.model_copy(update={"attributes": attributes}))
