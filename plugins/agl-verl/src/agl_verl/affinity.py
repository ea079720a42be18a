"""Which calls belong to one conversation, told from their tokens.

verl's load balancer sends requests with one id to one server, which then has the conversation in
its prefix cache. Calls come without the name of their rollout, but a later call's prompt begins
with the exact prompt and answer of the one before it; where it does not, nothing is cached either.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

MODULUS = 2**61 - 1
BASE = 1_000_003
MAX_KNOWN = 2**17
"""Conversations that are remembered; the oldest are forgotten."""


class Conversations:
    """Gives a call the id of the conversation that it goes on, or a new one."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, int], str] = OrderedDict()
        """(length, hash) of prompt and answer -> id."""

    def find(self, prompt_ids: Sequence[int], new_id: str) -> str:
        """The id of the longest known conversation that the prompt begins with, else ``new_id``."""
        found = new_id
        for key in _hashes(prompt_ids):
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                found = known
        return found

    def add(self, prompt_ids: Sequence[int], answer_ids: Sequence[int], request_id: str) -> None:
        """Remember a call that was answered."""
        *_, key = _hashes([*prompt_ids, *answer_ids])
        self._known[key] = request_id
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


def _hashes(token_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Length and hash of every beginning, the shortest first."""
    value = 0
    for length, token_id in enumerate(token_ids, 1):
        value = (value * BASE + token_id + 1) % MODULUS
        yield length, value
