"""Request headers of our own: their names, as clients send them and as ASGI has them."""

IDEMPOTENCY_KEY = "Idempotency-Key"
ABANDONED = "AGL-Abandoned"
"""Of a post that asks what another one, of the same key, had claimed for nobody any more."""
ATTEMPTS = "AGL-Attempts"
"""Of a runner: the tokens of attempts that it has claimed, with commas between."""
WRITER = "AGL-Writer"
"""Of the start of a run: its number and the run's id, with a space between."""
_NAMES = IDEMPOTENCY_KEY, ABANDONED, ATTEMPTS, WRITER
RECEIVED = {name: name.lower().encode() for name in _NAMES}
