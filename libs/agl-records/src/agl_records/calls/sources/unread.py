"""Spans that look like model calls, and of which no dialect knows how to read them."""

from collections import Counter
from collections.abc import Iterable

from agl.errors import install_line
from agl.plugins.registry import GROUPS, components
from agl.semconv import ModelCallAttributes as Key
from agl.types import Span
from agl.utils.catalogue import offered
from agl_records.calls.sources.fields import CALLS

_HINTS = ("gen_ai.usage.", "gen_ai.response.", "gen_ai.request.", "llm.", "prompt_token_ids")
"""Keys, or beginnings of them, that only model calls (or parts of one) have."""


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
