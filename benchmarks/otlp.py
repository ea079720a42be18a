"""What reading OTLP costs a store server, in CPU time per span.

From the bytes of a request to the text that the store writes, without HTTP and the store.

Spans of about 1 KB (five texts, as agents write them) and of about 16 KB (the token ids of a model
call, and its messages), 64 to a request.

    python benchmarks/otlp.py
"""

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from agl.cli.shared import print_table
from agl.types import Span
from agl_http import otlp

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.otlp_requests import request_of

SPANS = 64


def request(span: Span) -> bytes:
    """The span so many times, with ids of their own."""
    spans = [span.model_copy(update={"span_id": f"{n:016x}"}) for n in range(SPANS)]
    whole = ExportTraceServiceRequest.FromString(request_of(spans))
    merged = ExportTraceServiceRequest(resource_spans=whole.resource_spans[:1])
    merged.resource_spans[0].resource.attributes.append(
        KeyValue(key="service.name", value=AnyValue(string_value="agent"))
    )
    for group in whole.resource_spans[1:]:
        merged.resource_spans[0].scope_spans[0].spans.extend(group.scope_spans[0].spans)
    return merged.SerializeToString()


def span(attributes: dict[str, object]) -> Span:
    """A span of some attempt."""
    return Span.from_attributes(
        name="bench",
        rollout_id="ro-1",
        attempt_id="at-1",
        attributes=attributes,  # type: ignore[arg-type]
        start_time=1.5,
        end_time=2.5,
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds: int = parser.parse_args().rounds
    draw = random.Random(1)
    tokens = [draw.randrange(150_000) for _ in range(835)]
    text = "The quick brown fox jumps over the lazy dog. "
    payloads = {
        "1 KB": {f"gen_ai.text.{n}": text * 3 for n in range(5)},
        "16 KB": {
            "gen_ai.response.token_ids": tokens,
            "gen_ai.response.logprobs": [draw.random() for _ in range(200)],
            "gen_ai.input": text * 120,
        },
    }
    rows: list[list[str]] = []
    for name, attributes in payloads.items():
        body = request(span(dict(attributes)))
        times: list[float] = []
        for _ in range(rounds):
            begin = time.process_time()
            packed, rejected = otlp.packed_of(body)
            times.append((time.process_time() - begin) / SPANS * 1e6)
            assert (len(packed), rejected) == (SPANS, [])
        rows.append([name, str(len(body) // SPANS), f"{statistics.median(times):.1f}"])
    print_table(["span", "bytes in OTLP", "CPU us per span"], rows)


if __name__ == "__main__":
    main()
