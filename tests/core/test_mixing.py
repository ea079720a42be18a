"""How calls of one rollout are found in another; with real runners: tests/seams."""

from collections import Counter

import pytest

import agl
from agl import mixing
from agl.mixing import Call, Ran, beside, find_mixed, ran
from agl.semconv import MODEL_CALL_SPAN, ModelCallAttributes as Key


def rollout(number: int, *calls: Call, words: str | None = None, process: str = "host-1") -> Ran:
    found = frozenset((words or f"town{number} far").split())
    return Ran(f"ro-{number}", found, process, 0.0, 100.0, calls)


def asks(text: str, begin: float = 1.0) -> Call:
    return Call(begin, begin + 1.0, text)


def find(*rollouts: Ran) -> tuple[str, str] | None:
    found = find_mixed(beside(rollouts))
    return None if found is None else (found[0].rollout_id, found[1].rollout_id)


def test_call_with_the_words_of_a_silent_rollout_is_of_that() -> None:
    assert find(rollout(1), rollout(2, asks("how far is town1"))) == ("ro-1", "ro-2")
    assert find(rollout(1), rollout(2, asks("how far is town2"))) is None
    assert find(rollout(1), rollout(2, asks("how far is town1, how far town2"))) is None
    assert find(rollout(1), rollout(2, asks("how far is town1"), process="host-2")) is None
    assert find(rollout(1), rollout(2, asks("how far is town1", begin=200.0))) is None


@pytest.mark.parametrize(
    ("times", "mixed"),
    [
        ([(1, 3), (2, 4)], True),
        ([(1, 2), (3, 4)], False),
        ([(1, 9), (2, 3), (4, 5)], True),
        ([(1, 3), (300, 303), (301, 302)], False),  # not while the silent one ran
    ],
)
def test_calls_of_one_task_are_twins_where_they_are_asked_at_a_time(
    times: list[tuple[float, float]], mixed: bool
) -> None:
    calls = [Call(*time, "how far") for time in times]
    found = find(rollout(1, words="far"), rollout(2, *calls, words="far"))
    assert found == (("ro-1", "ro-2") if mixed else None)


def test_each_call_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()
    find_words = mixing._WORD.findall

    class Pattern:
        @staticmethod
        def findall(text: str) -> list[str]:
            read[text] += 1
            return find_words(text)

    monkeypatch.setattr(mixing, "_WORD", Pattern)
    with_calls = [
        rollout(number, asks(f"call{number} far"), asks(f"other{number} town{number + 8}"))
        for number in range(8)
    ]
    silent = [rollout(number) for number in range(8, 16)]
    assert find(*silent, *with_calls) == ("ro-8", "ro-0")
    assert len(read) == 16
    assert set(read.values()) == {1}


def test_long_request_is_kept_at_its_ends() -> None:
    attempt = agl.Attempt(
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=1,
        status="succeeded",
        start_time=0.0,
        end_time=1.0,
        worker_id="host-7-3",
    )
    span = agl.Span.from_attributes(
        name=MODEL_CALL_SPAN,
        attributes={Key.INPUT_MESSAGES: f"begin {'lorem ipsum ' * 8_000} end"},
    )
    found = ran("ro-1", "how far", attempt, [span])
    assert found is not None
    ((request, process),) = [(call.request, found.process) for call in found.calls]
    assert len(request) == 2 * mixing.MAX_CALL_CHARACTERS + 1
    assert (request[:5], request[-3:], process) == ("begin", "end", "host-7")
