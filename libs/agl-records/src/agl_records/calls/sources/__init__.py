"""Readers of model-call spans: a dialect for each way in which such spans are written.

``read_call(span)`` gives the same ``ModelCall`` whoever wrote the span. ``why_unread(span)`` speaks
of one that looks like a call, and that no dialect reads.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import ClassVar

from agl.errors import AdapterError, AglError, install_line
from agl.plugins.build import build_component
from agl.plugins.registry import GROUPS, components, names_in
from agl.semconv import ModelCallAttributes as Key
from agl.types import Span
from agl.utils.catalogue import offered
from agl_records.training_data import ModelCall

logger = logging.getLogger("agl.records")

CALLS = ("chat", "text_completion", "generate_content")
"""Values of ``gen_ai.operation.name`` that are model calls; agents and tools are others."""
_HINTS = ("gen_ai.usage.", "gen_ai.response.", "gen_ai.request.", "llm.", "prompt_token_ids")
"""Keys, or beginnings of them, that only model calls (or parts of one) have."""


class Dialect(ABC):
    """Reads the model calls that one library writes; a component of the group ``agl.dialects``."""

    is_standard: ClassVar[bool] = False
    """Whether several libraries write it; such dialects are asked after all others."""

    @abstractmethod
    def read(self, span: Span) -> ModelCall | None:
        """The call that a span records, made by ``make_call``; None for a span of another kind.

        Raises:
            ValueError: It is a call of this dialect, and cannot be read.
        """


@cache
def dialects() -> tuple[Dialect, ...]:
    """All dialects that are installed, in the order in which they are asked."""
    found: list[Dialect] = []
    for name in names_in(group := GROUPS["dialect"]):
        try:
            found.append(build_component(name, group=group, expected_type=Dialect))
        except AglError as error:
            logger.warning("spans of this dialect are not read: %s", error)
    return tuple(sorted(found, key=lambda dialect: dialect.is_standard))


def read_call(span: Span) -> ModelCall | None:
    """The model call that a span records, or None when it records none.

    Raises:
        AdapterError: It is a model call, and its attributes cannot be read.
    """
    for dialect in dialects():
        try:
            call = dialect.read(span)
        except AdapterError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise AdapterError(
                f"span {span.span_id!r} ({span.name!r}) of rollout {span.rollout_id!r}, attempt "
                f"{span.attempt_id!r} is a model call that "
                f"{type(dialect).__name__!r} cannot read: {type(error).__name__}: {error}"
            ) from error
        if call is not None:
            return call
    return None


def looks_like_call(span: Span) -> bool:
    """Whether a span that no reader knows has what only model calls have."""
    if span.attributes.get(Key.OPERATION, CALLS[0]) not in CALLS:
        return False
    kind = str(span.attributes.get("openinference.span.kind", "LLM"))
    return kind == "LLM" and any(key.startswith(_HINTS) for key in span.attributes)


def why_unread(span: Span) -> str:
    """A sentence on the spans of this one's scope; see ``by_scope``."""
    scope: str = (span.model_extra or {}).get("scope") or span.name
    why = (
        f"spans of scope {scope!r} look like model calls; no reader knows where they have their "
        f"messages, among {', '.join(sorted(span.attributes)[:6])}"
    )
    offers = {dist.partition("[")[0] for dist in offered(GROUPS["dialect"]).values()}
    missing = offers - {component.distribution for component in components(GROUPS["dialect"])}
    return f"{why}. More readers: {install_line(*sorted(missing))}" if missing else why


def by_scope(whys: Iterable[str]) -> list[str]:
    """One sentence for each scope, with the number of its spans, out of one for each span."""
    said = list(whys)
    first = {why.partition(";")[0]: why for why in reversed(said)}
    counts = Counter(why.partition(";")[0] for why in said)
    return [f"{counts[scope]} {why}" for scope, why in first.items()]
