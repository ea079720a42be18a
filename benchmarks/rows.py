"""How fast spans become training rows: 1,000 rollouts of 10 calls of 2,000 tokens on one core.

Each call's span has 1,500 prompt and 500 sampled tokens with their log-probabilities, and messages
of about as many words. Three ways in which an agent may call: every prompt anew, each prompt going
on from the answer before it (of 200 new tokens a turn, 2,000 in the last), and a conversation to
which every call adds 2,000 tokens (so that the last has 20,000). Only ``TraceToRows.adapt`` is
timed, in processor time of one core: spans in, rows and ledger out; the store and the making of
spans are not.
"""

import argparse
import gc
import json
import os
import random
import time
from collections.abc import Callable, Iterator

from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl.types import Span

CALLS = 10
VOCABULARY = 50_000
Call = tuple[list[int], list[int]]
"""Prompt and sampled tokens."""


def tokens(number: int) -> list[int]:
    """Distinct objects, as decoding JSON makes them."""
    return [random.randrange(VOCABULARY) for _ in range(number)]


def anew() -> Iterator[Call]:
    """1,500 prompt and 500 sampled tokens, never the same."""
    for _ in range(CALLS):
        yield tokens(1500), tokens(500)


def going_on() -> Iterator[Call]:
    """200 tokens more each time, half of them sampled; 2,000 in the last call."""
    so_far: list[int] = []
    for _ in range(CALLS):
        prompt, sampled = so_far + tokens(100), tokens(100)
        yield prompt, sampled
        so_far = prompt + sampled


def growing() -> Iterator[Call]:
    """2,000 tokens more each time, 500 of them sampled; 20,000 in the last call."""
    so_far: list[int] = []
    for _ in range(CALLS):
        prompt, sampled = so_far + tokens(1500), tokens(500)
        yield prompt, sampled
        so_far = prompt + sampled


def spans_of(rollout_id: str, calls: Iterator[Call]) -> list[Span]:
    """As the store gives them: gateway spans, and a reward at the end."""
    spans: list[Span] = []
    for number, (prompt, sampled) in enumerate(calls, 1):
        text = " ".join("word" for _ in range(min(len(prompt), 1500)))
        attributes = {
            Key.OPERATION.value: "chat",
            Key.REQUEST_MODEL.value: "policy",
            Key.AGENT_NAME.value: "writer",
            Key.INPUT_MESSAGES.value: json.dumps([{"role": "user", "content": text}]),
            Key.OUTPUT_MESSAGES.value: json.dumps([{"role": "assistant", "content": "yes"}]),
            Key.PROMPT_TOKEN_IDS.value: prompt,
            Key.RESPONSE_TOKEN_IDS.value: sampled,
            Key.RESPONSE_LOGPROBS.value: [-random.random() for _ in sampled],
        }
        spans.append(_span(rollout_id, number, MODEL_CALL_SPAN, attributes))
    reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0}
    spans.append(_span(rollout_id, len(spans) + 1, AGL_ANNOTATION, reward))
    return spans


def _span(rollout_id: str, number: int, name: str, attributes: dict[str, object]) -> Span:
    return Span.from_attributes(
        name=name,
        attributes=attributes,  # pyright: ignore[reportArgumentType]
        rollout_id=rollout_id,
        attempt_id="at-1",
        sequence_id=number,
        start_time=float(number),
        end_time=number + 0.5,
    )


def measure(shape: Callable[[], Iterator[Call]], rollouts: int) -> tuple[float, int, int]:
    """Seconds of ``adapt``, rows, and tokens in the calls."""
    import agl

    adapter = agl.TraceToRows()
    seconds, rows, total = 0.0, 0, 0
    for number in range(rollouts):
        spans = spans_of(f"ro-{number}", shape())
        total += sum(
            len(span.attributes.get(key, ()))  # pyright: ignore[reportArgumentType]
            for span in spans
            for key in (Key.PROMPT_TOKEN_IDS, Key.RESPONSE_TOKEN_IDS)
        )
        begin = time.process_time()
        result = adapter.adapt(spans)
        seconds += time.process_time() - begin
        rows += len(result.rows)
    return seconds, rows, total


def main() -> None:
    """Measure and print one line per way of calling."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1000)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    random.seed(0)
    measure(anew, 3)
    print(f"{arguments.rollouts} rollouts of {CALLS} calls, one core")
    print(f"{'way':<10}{'seconds':>10}{'rows':>10}{'tokens':>14}{'tokens/s':>14}")
    for shape in (anew, going_on, growing):
        gc.collect()
        seconds, rows, total = measure(shape, arguments.rollouts)
        print(
            f"{shape.__name__:<10}{seconds:>10.2f}{rows:>10}{total:>14,}{total / seconds:>14,.0f}"
        )


if __name__ == "__main__":
    main()
