"""How calls of one rollout are found in another; with real runners: tests/seams."""

import contextlib
from collections import Counter

import pytest

import agl
from agl.errors import MixedCallsError
from agl.semconv import MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl_learning import mixing
from agl_learning.mixing import Call, MixingCheck, Ran, beside, find_mixed, ran


def rollout(
    number: int,
    *calls: Call,
    words: str | None = None,
    process: str = "host-1",
    begin: float = 0.0,
) -> Ran:
    found = frozenset((words or f"town{number} far").split())
    return Ran(f"ro-{number}", found, process, begin, begin + 100.0, calls)


def asks(text: str, begin: float = 1.0) -> Call:
    return Call(begin, begin + 1.0, text)


def find(*rollouts: Ran) -> tuple[str, str] | None:
    found = find_mixed(beside(rollouts))
    return None if found is None else (found[0].rollout_id, found[1].rollout_id)


def test_call_with_the_words_of_a_silent_rollout_is_of_that() -> None:
    foreign, own = asks("how far is town1"), asks("how far is town2")
    assert find(rollout(1), rollout(2, foreign, own)) == ("ro-1", "ro-2")
    assert find(rollout(1), rollout(2, own)) is None
    assert find(rollout(1), rollout(2, asks("how far is town1, how far town2"))) is None
    assert find(rollout(1), rollout(2, foreign, own, process="host-2")) is None
    assert find(rollout(1), rollout(2, asks("how far is town1", begin=200.0), own)) is None


def test_words_of_a_task_in_calls_of_agents_that_never_tell_theirs_are_chance() -> None:
    boards = [rollout(number, asks("the board is 1 2 3"), words=f"{number}") for number in (40, 41)]
    assert find(rollout(3, words="3"), *boards) is None
    # Its own call went on to a third one, whose address came after its own.
    third = rollout(5, asks("how far is town2"), asks("how far is town5"))
    assert find(rollout(1), rollout(2, asks("how far is town1")), third) == ("ro-1", "ro-2")


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
        rollout(number, asks(f"call{number} town{number}"), asks(f"other{number} town{number + 8}"))
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
        attributes={
            Key.OPERATION: "chat",
            Key.INPUT_MESSAGES: f"begin {'lorem ipsum ' * 8_000} end",
        },
    )
    # What a client that is traced says of the same call stands where the agent ran.
    of_client = span.model_copy(update={"writer": "agent"})
    found = ran("ro-1", "how far", attempt, [span, of_client])
    assert found is not None
    ((request, process),) = [(call.request, found.process) for call in found.calls]
    assert len(request) == 2 * mixing.MAX_CALL_CHARACTERS + 1
    assert (request[:5], request[-3:], process) == ("begin", "end", "host-7")


MIXED = [rollout(2, asks("how far is town1"), asks("how far is town2")), rollout(1)]


@pytest.mark.parametrize("order", [MIXED, MIXED[::-1]])
async def test_requests_at_once_are_looked_at_together_when_the_last_of_them_ends(
    order: list[Ran],
) -> None:
    check = MixingCheck()
    with check.request():
        with check.request():
            pass
        await check.look(order[:1])
    with pytest.raises(MixedCallsError, match="'ro-1' succeeded without"):
        await check.look(order[1:])
    await check.look(order[1:])  # what was said is said


async def test_rollouts_of_broken_off_requests_are_waited_for_by_nobody() -> None:
    check = MixingCheck()
    with contextlib.suppress(TimeoutError), check.request():
        await check.look(MIXED[:1])
        raise TimeoutError
    with pytest.raises(MixedCallsError):
        await check.look(MIXED[1:])


async def test_rollouts_of_requests_at_once_that_ran_one_after_the_other_do_not_mix() -> None:
    check = MixingCheck()
    with check.request():
        await check.look(MIXED[:1])
    await check.look([rollout(1, begin=100.0)])


@pytest.mark.parametrize(
    ("limit", "value", "most"),
    [("MAX_KEPT", 10, 10), ("MAX_KEPT_CHARACTERS", 1_000, 40)],
)
async def test_what_is_kept_is_bounded_where_a_request_is_always_open(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, most: int
) -> None:
    monkeypatch.setattr(mixing, limit, value)
    check = MixingCheck()
    kept: list[int] = []
    silent = [rollout(number) for number in range(200, 240)]
    with check.request():
        for number in range(100):
            await check.look([rollout(number, asks(f"how far is it to town{number}"))])
            kept.append(len(check._kept))
        assert 0 < max(kept) < most
        calls = (asks(f"how far is it to town{number}") for number in (1, *range(200, 240)))
        with pytest.raises(MixedCallsError):
            await check.look([rollout(1, *calls), *silent])
