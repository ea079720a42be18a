"""A client whose spans say in their resource, too, whose they are."""

from typing import Any

import agl
from agl.semconv import LightningResourceAttributes as Key
from agl.types import PaginatedResult, Span


class LightningStoreClient(agl.LightningStoreClient):
    __doc__ = agl.LightningStoreClient.__doc__

    async def query_spans(self, *args: Any, **options: Any) -> PaginatedResult[Span]:
        """See ``LightningStore``."""
        page = await super().query_spans(*args, **options)
        return page.model_copy(update={"items": list(map(_with_ids, page.items))})


def _with_ids(span: Span) -> Span:
    whose = {Key.ROLLOUT_ID.value: span.rollout_id, Key.ATTEMPT_ID.value: span.attempt_id}
    attributes = {**whose, **span.resource.attributes}
    return span.changed(resource=span.resource.model_copy(update={"attributes": attributes}))
