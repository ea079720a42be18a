"""Which rollouts have no call beside others that have some; with real runners: tests/seams."""

import agl
from agl.semconv import MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl_runs import mixed_calls
from agl_runs.mixed_calls import Call, MixingCheck, Ran, ran, silent


def rollout(number: int, calls: int, process: str = "host-1", begin: float = 0.0) -> Ran:
    made = (Call("how far", f"call-{n}") for n in range(calls))
    return Ran(f"ro-{number}", process, begin, begin + 100.0, tuple(made))


def test_silent_is_who_has_no_call_beside_one_of_its_process_that_has():
    assert silent([rollout(1, 0), rollout(2, 2)]) == ["ro-1"]
    assert silent([rollout(1, 0), rollout(2, 0)]) == []
    assert silent([rollout(1, 0), rollout(2, 2, process="host-2")]) == []
    assert silent([rollout(1, 0), rollout(2, 2, begin=100.0)]) == []


def test_rollouts_of_several_requests_are_looked_at_together_and_told_once(caplog):
    check = MixingCheck()
    check.look([rollout(1, 0), None])
    assert not caplog.messages
    check.look([rollout(2, 2)])
    check.look([rollout(3, 0)])
    (said,) = caplog.messages
    assert "1 rollouts (ro-1) succeeded without a recorded model call" in said


def test_of_many_rollouts_the_last_are_known_and_no_requests_of_theirs():
    check = MixingCheck()
    check.look(rollout(number, 3) for number in range(2 * mixed_calls.MAX_KNOWN))
    assert len(check._known) == mixed_calls.MAX_KNOWN
    assert sum(len(one.calls) for one in check._known) == mixed_calls.MAX_KNOWN


def test_of_more_rollouts_than_are_known_all_are_looked_at(caplog):
    later = (rollout(number, 1, begin=200.0) for number in range(3, 3 * mixed_calls.MAX_KNOWN))
    MixingCheck().look([rollout(1, 0), rollout(2, 2), *later])
    assert "1 rollouts (ro-1) succeeded without a recorded model call" in caplog.text


def test_long_request_is_kept_at_its_ends():
    about = {"attempt_id": "at-1", "sequence_id": 1, "status": "succeeded"}
    times = {"start_time": 0.0, "end_time": 1.0}
    attempt = agl.Attempt(rollout_id="ro-1", worker_id="host-7-3", **about, **times)
    said = f"begin {'lorem ipsum ' * 8_000} end"
    attributes = {Key.OPERATION: "chat", Key.INPUT_MESSAGES: said}
    span = agl.Span.from_attributes(name=MODEL_CALL_SPAN, attributes=attributes)
    # What a client that is traced says of the same call stands where the agent ran.
    of_client = span.model_copy(update={"writer": "agent"})
    found = ran("ro-1", attempt, [span, of_client])
    ((request, process),) = [(call.request, found.process) for call in found.calls]
    assert len(request) == 2 * mixed_calls.MAX_CALL_CHARACTERS + 1
    assert (request[:5], request[-3:], process) == ("begin", "end", "host-7")
