"""What 32 clients saw of rollouts at three servers is what one store would have shown them.

Each client notes when it asked, what, and what came back. For each rollout there must be an order
of these calls, each at a moment between its question and its answer, in which a plain model of one
rollout gives the same answers (Wing and Gong's search, Lowe's memory of what was seen).
"""

import asyncio
import random
import time
from collections import defaultdict
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from agl import LightningStoreClient
from agl.errors import InvalidTransitionError
from agl.types import EnqueueRolloutRequest, RolloutConfig

from .test_doors import served_process

MOST_ATTEMPTS = 4
ENDED = ("succeeded", "failed", "cancelled")
QUEUED = ("queuing", "requeuing")
REFUSED = "refused"


class Call(NamedTuple):
    asked: float
    answered: float
    name: str
    given: tuple
    answer: object


class State(NamedTuple):
    rollout: str = "queuing"
    attempts: tuple[str, ...] = ()


def step(state, name, given):
    """What becomes of one rollout, and the answer; no answer where the call cannot come then."""
    rollout, attempts = state
    if name == "claim":
        if rollout not in QUEUED:
            return state, None
        return State("preparing", (*attempts, "preparing")), len(attempts) + 1
    if name == "read":
        return state, (rollout, len(attempts), attempts[-1] if attempts else None)
    if name == "end":
        number, status = given
        if number > len(attempts):
            return state, None
        old = attempts[number - 1]
        if old == status:
            return state, status
        if old in ENDED:
            return state, REFUSED
        after = tuple(status if n == number else one for n, one in enumerate(attempts, 1))
        if number < len(attempts) or rollout in ENDED:
            return State(rollout, after), status
        may_again = status == "failed" and number < MOST_ATTEMPTS
        return State("requeuing" if may_again else status, after), status
    (status,) = given
    if rollout == status:
        return state, status
    if rollout in ENDED or (rollout, status) == ("queuing", "requeuing"):
        return state, REFUSED
    if status == "requeuing" and attempts[-1] == "preparing":
        attempts = (*attempts[:-1], "failed")
    return State(status, attempts), status


def is_linearizable(calls):
    calls = sorted(calls)
    begin = (State(), frozenset(range(len(calls))))
    stack, seen = [begin], {begin}
    while stack:
        state, left = stack.pop()
        if not left:
            return True
        first_answer = min(calls[one].answered for one in left)
        for one in left:
            call = calls[one]
            if call.asked > first_answer:
                continue
            after, answer = step(state, call.name, call.given)
            found = after, left - {one}
            if answer == call.answer and found not in seen:
                seen.add(found)
                stack.append(found)
    return False


@pytest.mark.parametrize(
    ("calls", "is_right"),
    [
        ([Call(0, 2, "claim", (), 1), Call(1, 3, "end", (1, "succeeded"), "succeeded")], True),
        ([Call(0, 1, "claim", (), 1), Call(0, 1, "claim", (), 1)], False),
        ([Call(0, 1, "claim", (), 1), Call(2, 3, "read", (), ("queuing", 0, None))], False),
        ([Call(0, 3, "claim", (), 1), Call(1, 2, "read", (), ("queuing", 0, None))], True),
        (
            [
                Call(0, 1, "claim", (), 1),
                Call(2, 5, "end", (1, "succeeded"), "succeeded"),
                Call(3, 6, "end", (1, "failed"), "failed"),
            ],
            False,
        ),
        (
            [
                Call(0, 1, "claim", (), 1),
                Call(2, 5, "end", (1, "succeeded"), REFUSED),
                Call(2, 5, "move", ("requeuing",), "requeuing"),
                Call(6, 7, "claim", (), 2),
            ],
            True,
        ),
    ],
)
def test_the_checker_knows_right_from_wrong(calls, is_right):
    assert is_linearizable(calls) is is_right


class Client:
    """Asks at random, and notes what came of it."""

    def __init__(self, number, address, world):
        self.store = LightningStoreClient(address)
        self.world = world
        self.name = f"w{number}"
        self.random = random.Random(number)

    async def note(self, rollout_id, name, given, ask):
        asked = time.monotonic()
        try:
            answer = await ask
        except InvalidTransitionError:
            answer = REFUSED
        self.world.calls[rollout_id].append(Call(asked, time.monotonic(), name, given, answer))

    async def claim(self):
        asked = time.monotonic()
        claimed = await self.store.dequeue_many_rollouts(
            limit=self.random.randint(1, 3), worker_id=self.name
        )
        answered = time.monotonic()
        for one in claimed:
            number = one.attempt.sequence_id
            self.world.calls[one.rollout_id].append(Call(asked, answered, "claim", (), number))
            self.world.claimed.append((one.rollout_id, one.attempt.attempt_id, number))

    async def end(self):
        if self.world.claimed:
            rollout_id, attempt_id, number = self.random.choice(self.world.claimed[-40:])
            status = self.random.choice(["succeeded", "failed", "failed", "failed"])

            async def ask():
                ended = await self.store.update_attempt(rollout_id, attempt_id, status=status)
                return ended.status

            await self.note(rollout_id, "end", (number, status), ask())

    async def move(self):
        rollout_id = self.random.choice(self.world.ids)
        status = self.random.choice(["requeuing"] * 4 + ["cancelled"])

        async def ask():
            return (await self.store.update_rollout(rollout_id, status=status)).status

        await self.note(rollout_id, "move", (status,), ask())

    async def read(self):
        rollout_id = self.random.choice(self.world.ids)

        async def ask():
            found = await self.store.get_rollout_by_id(rollout_id)
            attempt = getattr(found, "attempt", None)
            if attempt is None:
                return found.status, 0, None
            return found.status, attempt.sequence_id, attempt.status

        await self.note(rollout_id, "read", (), ask())

    async def work(self, end):
        while time.monotonic() < end:
            if self.random.random() < 0.02:
                await self.world.enqueue(self.store)
            await self.random.choice([self.claim, self.end, self.end, self.move, self.read])()
        await self.store.close()


class World:
    def __init__(self):
        self.calls = defaultdict(list)
        self.claimed = []
        self.ids = []

    async def enqueue(self, store):
        config = RolloutConfig(max_attempts=MOST_ATTEMPTS, retry_condition=["failed"])
        tasks = [EnqueueRolloutRequest(input=n, config=config) for n in range(3)]
        new = [one.rollout_id for one in await store.enqueue_many_rollouts(tasks)]
        self.ids = [*self.ids, *new][-12:]  # so that many meet at few


@pytest.mark.parametrize("seconds", [3, pytest.param(120, marks=pytest.mark.nightly)])
async def test_each_rollout_is_as_at_one_store(url, seconds):
    world = World()
    with ExitStack() as stack:
        addresses = [stack.enter_context(served_process(url))[1] for _ in range(3)]
        clients = [Client(n, addresses[n % 3], world) for n in range(32)]
        await world.enqueue(clients[0].store)
        end = time.monotonic() + seconds
        await asyncio.gather(*(one.work(end) for one in clients))
    wrong = [one for one, calls in world.calls.items() if not is_linearizable(calls)]
    num_calls = sum(map(len, world.calls.values()))
    kinds = defaultdict(int)
    for calls in world.calls.values():
        for call in calls:
            kinds[call.name, call.answer == REFUSED] += 1
    print(f"{num_calls} calls of {len(world.calls)} rollouts, {dict(kinds)}")
    assert not wrong, "\n".join(map(str, sorted(world.calls[wrong[0]])))
    assert num_calls > 20 * seconds  # also on a machine that has much else to do
    assert len(world.calls) > 10
