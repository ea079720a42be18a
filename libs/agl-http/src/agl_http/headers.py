"""Request headers of our own: their names, as clients send them and as ASGI has them."""

IDEMPOTENCY_KEY = "Idempotency-Key"
ABANDONED = "AGL-Abandoned"
"""Of a post that asks what another one, of the same key, had claimed for nobody any more."""
ATTEMPTS = "AGL-Attempts"
"""Of a runner: the tokens of attempts that it has claimed, with commas between."""
FENCE = "AGL-Fence"
"""Of a writer that may be replaced: version, kind and key of its ``Fence``, with spaces between."""
_NAMES = IDEMPOTENCY_KEY, ABANDONED, ATTEMPTS, FENCE
RECEIVED = {name: name.lower().encode() for name in _NAMES}
