"""Which attempts were made by which request, as long as its answer may have been lost."""


class ClaimKeys:
    """Attempts that nobody has begun to work on yet, by the key of the request that made them."""

    def __init__(self) -> None:
        self._attempts: dict[str, dict[str, str]] = {}
        self._keys: dict[str, str] = {}

    def __contains__(self, key: str | None) -> bool:
        return key in self._attempts

    def add(self, key: str, rollout_id: str, attempt_id: str) -> None:
        """Note a new attempt."""
        self._attempts.setdefault(key, {})[attempt_id] = rollout_id
        self._keys[attempt_id] = key

    def begun(self, attempt_id: str) -> None:
        """The attempt is worked on, or has ended: whoever has it got the answer."""
        key = self._keys.pop(attempt_id, None)
        if key is not None:
            attempts = self._attempts[key]
            del attempts[attempt_id]
            if not attempts:
                del self._attempts[key]

    def made_by(self, key: str) -> list[tuple[str, str]]:
        """The request's attempts: rollout id and attempt id."""
        found = self._attempts.get(key, {})
        return [(rollout_id, attempt_id) for attempt_id, rollout_id in found.items()]
