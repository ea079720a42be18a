"""Whether what agents say to the model reaches it: prompts that differ must differ as tokens."""

from collections.abc import Iterable
from typing import Any

from agl_learning.collect.results import Ended


def prompt_metrics(ended: Iterable[Ended], unknown_token_id: int | None) -> dict[str, int]:
    """What the prompts of a collection came to as tokens.

    It looks at the first call of the first row of each rollout that succeeded, images aside.

    Returns:
        ``prompts/different``: how many of them differ in their messages, and
        ``prompts/as_tokens``: as how many sequences of tokens they came; nothing where no gateway
        recorded any. ``tokens/unknown``: tokens of all rows that are the one that the tokenizer
        writes for a word that it does not know; nothing where nobody knows that one.
    """
    asked: set[str] = set()
    given: set[tuple[int, ...]] = set()
    unknown = 0
    for one in ended:
        if unknown_token_id is not None:
            unknown += sum(row.token_ids.count(unknown_token_id) for row in one.rows)
        if one.ran is None or not one.rows:
            continue
        first = one.rows[0]
        requests = {call.call_id: call.request for call in one.ran.calls}
        # Of several choices each has the id of the call and a number of its own.
        request = requests.get(first.call_ids[0].partition("#")[0])
        if request is None or first.images or not first.token_ids:
            continue
        asked.add(request)
        given.add(tuple(first.token_ids[: first.call_ranges[0][0]]))
    found = {"prompts/different": len(asked), "prompts/as_tokens": len(given)} if asked else {}
    return found if unknown_token_id is None else {**found, "tokens/unknown": unknown}


def unknown_token_id(tokenizer: Any) -> int | None:
    """What a tokenizer writes for a word that it does not know; None where it writes no such."""
    known: int | None = getattr(tokenizer, "unk_token_id", None)
    if known is not None:
        return known
    # Of a tokenizer that was wrapped without saying so, the model within knows it.
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    name = getattr(model, "unk_token", None)
    return None if name is None else tokenizer.convert_tokens_to_ids(name)
