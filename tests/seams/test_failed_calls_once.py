"""A call that failed, told by its gateway and by a client that is traced, is in the books once."""

import pytest

pytest.importorskip("agl_adapters")

from agl_adapters import TraceToRows
from agl_testing.traces import Trace

FAILED = {"status_code": "ERROR", "description": "503 out of order"}


def reasons(trace: Trace) -> list[tuple[str, int]]:
    adapted = TraceToRows().adapt(trace.spans)
    return sorted((one.kind, len(one.call_id)) for one in adapted.ledger.exclusions)


@pytest.mark.parametrize("order", [1, -1])
def test_a_failed_call_is_counted_once(order: int) -> None:
    trace = Trace()
    trace.gateway(error="503 out of order", start_time=1.0, end_time=2.0)
    alone = len(reasons(trace))
    trace.flat(start_time=0.5, end_time=2.5, status=FAILED)
    trace.spans.sort(key=lambda span: order * (span.start_time or 0.0))
    assert len(reasons(trace)) == alone


def test_another_failed_call_of_the_client_is_another() -> None:
    trace = Trace()
    trace.gateway(error="503 out of order", start_time=1.0, end_time=2.0)
    alone = len(reasons(trace))
    trace.flat(start_time=3.0, end_time=4.0, status=FAILED)
    assert len(reasons(trace)) == alone + 1
