"""Random operations against each store and against a model that fits on a screen."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agl.emitter import find_final_reward, reward_attributes
from agl.errors import InvalidTransitionError
from agl.store.memory import InMemoryLightningStore
from agl.types import RolloutConfig, Span
from agl_sqlite import SqliteLightningStore

ENDED = {"succeeded", "failed", "cancelled"}
OPEN = {"preparing", "running"}


class ModelAttempt:
    def __init__(self, attempt_id, first):
        self.attempt_id, self.status, self.spans = attempt_id, "preparing", []
        self.first = first

    @property
    def next(self):
        return self.first + len(self.spans)


class ModelRollout:
    def __init__(self, config):
        self.config, self.status, self.attempts = config, "queuing", []


class Model:
    """What a store should say, in the plainest words."""

    def __init__(self):
        self.rollouts, self.queue = {}, []

    def enqueue(self, rollout_id, config):
        self.rollouts[rollout_id] = ModelRollout(config)
        self.queue.append(rollout_id)

    def begin(self, rollout_id, attempt_id):
        self.move(rollout_id, "preparing")
        attempts = self.rollouts[rollout_id].attempts
        first = max((one.next for one in attempts), default=1)
        attempts.append(ModelAttempt(attempt_id, first))

    def move(self, rollout_id, status):
        rollout = self.rollouts[rollout_id]
        if rollout.status in ENDED or rollout.status == status:
            return
        rollout.status = status
        if rollout_id in self.queue:
            self.queue.remove(rollout_id)
        if status == "requeuing":
            self.queue.append(rollout_id)

    def current(self, rollout_id, attempt):
        rollout = self.rollouts[rollout_id]
        return rollout.attempts[-1] is attempt and rollout.status not in ENDED

    def report(self, rollout_id, attempt, status):
        """The new status, or an error."""
        if attempt.status == status:
            return
        current = self.current(rollout_id, attempt)
        if attempt.status in ("succeeded", "failed", "timeout"):
            raise InvalidTransitionError
        if attempt.status == "unresponsive" and status == "running" and not current:
            raise InvalidTransitionError
        attempt.status = status
        if not current:
            return
        if status in ("running", "succeeded"):
            self.move(rollout_id, status)
            return
        config = self.rollouts[rollout_id].config
        left = len(self.rollouts[rollout_id].attempts) < config.max_attempts
        retry = left and status in config.retry_condition
        self.move(rollout_id, "requeuing" if retry else "failed")

    def span(self, rollout_id, attempt, span_id):
        if span_id not in attempt.spans:
            attempt.spans.append(span_id)
        revived = attempt.status == "unresponsive" and self.current(rollout_id, attempt)
        if attempt.status == "preparing" or revived:
            self.report(rollout_id, attempt, "running")


configs = st.sampled_from(
    [
        RolloutConfig(),
        RolloutConfig(max_attempts=2, retry_condition=["failed", "unresponsive"]),
        RolloutConfig(max_attempts=3, retry_condition=["timeout", "unresponsive"]),
    ]
)
picks = st.integers(min_value=0, max_value=1000)
GRADED = {"agentlightning.graded": True}
OF_AGENTOPS = {"agentops.task.output": '{"type": "reward", "value": 0.75}'}
rewards = st.sampled_from(
    [
        *({}, GRADED, OF_AGENTOPS, {"agentlightning.reward.0.value": "much"}),
        *(reward_attributes(0.5), reward_attributes(-1.0), reward_attributes(0.25) | GRADED),
    ]
)
writers = st.sampled_from([None, "agent", "runner", "algorithm"])


class StoreMachine(RuleBasedStateMachine):
    def make_store(self, folder):
        raise NotImplementedError

    @initialize()
    def open(self):
        self.folder = tempfile.TemporaryDirectory()
        self.store = self.make_store(Path(self.folder.name))
        self.model = Model()
        self.loop = asyncio.new_event_loop()

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def pick(self, number):
        """A rollout, and one of its attempts; the newest attempts are the likely ones."""
        if not self.model.rollouts:
            return None, None
        ids = list(self.model.rollouts)
        rollout_id = ids[number % len(ids)]
        attempts = self.model.rollouts[rollout_id].attempts
        return rollout_id, attempts[-1 - (number // 500) % len(attempts)] if attempts else None

    def same_outcome(self, expected, coroutine):
        """Both succeed, or both refuse the step."""
        try:
            expected()
        except InvalidTransitionError:
            try:
                self.run(coroutine)
            except InvalidTransitionError:
                return
            raise AssertionError("the store accepted what the model refuses") from None
        self.run(coroutine)

    @rule(config=configs)
    def enqueue(self, config):
        rollout = self.run(self.store.enqueue_rollout("task", config=config))
        self.model.enqueue(rollout.rollout_id, config)

    @rule(limit=st.integers(min_value=1, max_value=3))
    def dequeue(self, limit):
        claimed = self.run(self.store.dequeue_many_rollouts(limit=limit, worker_id="w"))
        assert [one.rollout_id for one in claimed] == self.model.queue[:limit]
        for one in claimed:
            self.model.begin(one.rollout_id, one.attempt.attempt_id)

    @rule(number=picks)
    def start_attempt(self, number):
        rollout_id, _ = self.pick(number)
        if rollout_id is None or self.model.rollouts[rollout_id].status in ENDED:
            return
        started = self.run(self.store.start_attempt(rollout_id))
        self.model.begin(rollout_id, started.attempt.attempt_id)

    @rule(
        number=picks,
        status=st.sampled_from(["running", "succeeded", "failed", "timeout", "unresponsive"]),
    )
    def report(self, number, status):
        rollout_id, attempt = self.pick(number)
        if attempt is None or (attempt.status == "running" and status == "running"):
            return
        self.same_outcome(
            lambda: self.model.report(rollout_id, attempt, status),
            self.store.update_attempt(rollout_id, attempt.attempt_id, status=status),
        )

    @rule(number=picks, span=st.integers(0, 5), reward=rewards, writer=writers)
    def add_span(self, number, span, reward, writer):
        rollout_id, attempt = self.pick(number)
        if attempt is None:
            return
        ids = {"rollout_id": rollout_id, "attempt_id": attempt.attempt_id}
        made = Span.from_attributes(attributes=reward, span_id=f"{span:016x}", **ids)
        made = made.model_copy(update={"writer": writer})
        added = self.run(self.store.add_span(made))
        assert (added is None) == (made.span_id in attempt.spans)
        self.model.span(rollout_id, attempt, made.span_id)

    @rule(number=picks)
    def cancel(self, number):
        rollout_id, _ = self.pick(number)
        if rollout_id is None or self.model.rollouts[rollout_id].status in ENDED:
            return
        self.run(self.store.update_rollout(rollout_id, status="cancelled"))
        self.model.move(rollout_id, "cancelled")

    @rule(number=picks)
    def put_back(self, number):
        rollout_id, attempt = self.pick(number)
        if attempt is None or self.model.rollouts[rollout_id].status not in OPEN:
            return
        self.run(self.store.update_rollout(rollout_id, status="requeuing"))
        self.model.move(rollout_id, "requeuing")
        latest = self.model.rollouts[rollout_id].attempts[-1]
        if latest.status in OPEN:
            latest.status = "failed"

    @invariant()
    def store_says_what_the_model_says(self):
        if not hasattr(self, "model"):
            return
        found = self.run(self.store.query_rollouts())
        assert {one.rollout_id: one.status for one in found} == {
            rollout_id: rollout.status for rollout_id, rollout in self.model.rollouts.items()
        }
        for rollout_id, rollout in self.model.rollouts.items():
            attempts = self.run(self.store.query_attempts(rollout_id))
            assert [(one.attempt_id, one.status) for one in attempts] == [
                (one.attempt_id, one.status) for one in rollout.attempts
            ]
            assert all((one.end_time is None) == (one.status in OPEN) for one in attempts)
        busy = any(
            attempt.status in OPEN and attempt_id in self.claimed_by_w()
            for attempt_id, attempt in self.attempts()
        )
        worker = self.run(self.store.get_worker_by_id("w"))
        assert (worker is not None and worker.status == "busy") == busy

    def attempts(self):
        for rollout in self.model.rollouts.values():
            for attempt in rollout.attempts:
                yield attempt.attempt_id, attempt

    def claimed_by_w(self):
        found = set()
        for rollout_id in self.model.rollouts:
            for one in self.run(self.store.query_attempts(rollout_id)):
                if one.worker_id == "w":
                    found.add(one.attempt_id)
        return found

    def teardown(self):
        if not hasattr(self, "model"):
            return
        for rollout_id, rollout in self.model.rollouts.items():
            for attempt in rollout.attempts:
                spans = self.run(self.store.query_spans(rollout_id, attempt.attempt_id))
                assert [one.span_id for one in spans] == attempt.spans
                numbers = [one.sequence_id for one in spans]
                assert numbers == list(range(attempt.first, attempt.next))
            found = self.run(self.store.get_rollout_by_id(rollout_id))
            given = None
            for one in self.run(self.store.query_attempts(rollout_id)):
                spans = self.run(self.store.query_spans(rollout_id, one.attempt_id))
                assert one.reward == (given := find_final_reward(spans))
            assert found.reward == (given if found.status == "succeeded" else None)
        self.run(self.store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()


def case_of(make_store, max_examples):
    case = type("Machine", (StoreMachine,), {"make_store": make_store}).TestCase
    slow = [HealthCheck.too_slow]
    case.settings = settings(
        max_examples=max_examples, stateful_step_count=25, suppress_health_check=slow
    )
    return case


def in_a_file(machine, folder):
    return SqliteLightningStore(folder / "agl.db", durability="process")


TestMemory = case_of(lambda machine, folder: InMemoryLightningStore(), 30)
TestSqlite = case_of(in_a_file, 15)
