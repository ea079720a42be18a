"""Tokens of a batch as they are sampled, turned into text that can be sent at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agl_models.sampling.sequences import SamplingRequest


class TextStream:
    """Brings tokens from the sampler's thread to an event loop, with the text that is certain.

    Text is held back while it may still change: half of a character, or what may be the beginning
    of a stop text.

    Args:
        decode: Makes text of token ids.
        requests: One per choice; use ``self.requests``, which report to this stream.
        marks: Texts from which on nothing is sent before the end.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        requests: Sequence[SamplingRequest],
        marks: Sequence[str] = (),
    ) -> None:
        self._decode = decode
        self._stop = (*requests[0].stop, *marks)
        self._queue: asyncio.Queue[tuple[int, int, float] | None] = asyncio.Queue()
        self._token_ids: list[list[int]] = [[] for _ in requests]
        self._read = [(0, 0) for _ in requests]
        """The tokens whose text came last: what follows them is decoded behind them."""
        self._held = ["" for _ in requests]
        self._sent = [0 for _ in requests]
        loop = asyncio.get_running_loop()

        def report(index: int, token_id: int, logprob: float) -> None:
            loop.call_soon_threadsafe(self._queue.put_nowait, (index, token_id, logprob))

        self.requests = [
            replace(one, on_token=partial(report, index)) for index, one in enumerate(requests)
        ]

    async def tokens(
        self, tasks: Sequence[asyncio.Task[Any]]
    ) -> AsyncIterator[tuple[int, int, float, str]]:
        """Index, token id, log-probability and new text, until all tasks have ended."""
        everything = asyncio.gather(*tasks, return_exceptions=True)
        everything.add_done_callback(lambda _: self._queue.put_nowait(None))
        while (token := await self._queue.get()) is not None:
            index, token_id, logprob = token
            self._token_ids[index].append(token_id)
            yield index, token_id, logprob, self._advance(index)

    def rest(self, index: int, text: str) -> str:
        """What of the final ``text`` has not been sent yet."""
        return text[self._sent[index] :]

    def _advance(self, index: int) -> str:
        token_ids, (start, end) = self._token_ids[index], self._read[index]
        before, text = self._decode(token_ids[start:end]), self._decode(token_ids[start:])
        if len(text) > len(before) and not text.endswith("\ufffd"):  # half of a character
            self._held[index] += text[len(before) :]
            self._read[index] = (end, len(token_ids))
        held = self._held[index]
        certain = 0  # characters up to where a stop text begins, or may have begun
        while certain < len(held) and not any(
            one.startswith(held[certain : certain + len(one)]) for one in self._stop
        ):
            certain += 1
        self._held[index] = held[certain:]
        self._sent[index] += certain
        return held[:certain]
