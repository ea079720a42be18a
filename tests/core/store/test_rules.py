import itertools
from typing import get_args

import pytest

from agl.errors import InvalidTransitionError
from agl.store import rules
from agl.types import Attempt, AttemptStatus, Rollout, RolloutConfig, RolloutStatus

ROLLOUT_STATUSES = get_args(RolloutStatus)
ATTEMPT_STATUSES = get_args(AttemptStatus)


def attempt(status="running", **fields):
    base = {"rollout_id": "ro-1", "attempt_id": "at-1", "sequence_id": 1, "start_time": 100.0}
    return Attempt(**base | fields | {"status": status})


def rollout(status="running", **config):
    return Rollout(
        rollout_id="ro-1", input=None, start_time=0.0, status=status, config=RolloutConfig(**config)
    )


def test_tables_name_every_status():
    assert set(rules.ROLLOUT_NEXT) == set(ROLLOUT_STATUSES)
    assert set(rules.ATTEMPT_NEXT) == set(ATTEMPT_STATUSES)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(ROLLOUT_STATUSES, repeat=2)))
def test_rollout_moves_as_its_table_says(old, new):
    if old == new or new in rules.ROLLOUT_NEXT[old]:
        moved = rules.move_rollout(rollout(old), new, 9.0)
        assert moved.status == new
        assert moved.end_time == (9.0 if new in rules.ENDED and old != new else None)
    else:
        with pytest.raises(InvalidTransitionError, match=f"from '{old}' to '{new}'"):
            rules.move_rollout(rollout(old), new, 9.0)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(ATTEMPT_STATUSES, repeat=2)))
def test_attempt_moves_as_its_table_says(old, new):
    if old == new or new in rules.ATTEMPT_NEXT[old]:
        moved = rules.move_attempt(attempt(old), new, 9.0, current=True)
        assert moved.status == new
        assert moved.end_time == (None if new in rules.OPEN or old == new else 9.0)
    else:
        with pytest.raises(InvalidTransitionError, match=f"from '{old}' to '{new}'"):
            rules.move_attempt(attempt(old), new, 9.0, current=True)


def test_ended_rollouts_go_nowhere():
    assert all(not rules.ROLLOUT_NEXT[status] for status in rules.ENDED)


@pytest.mark.parametrize(
    ("move", "old", "new", "said"),
    [
        (rules.move_rollout, "running", "done", "unknown status 'done'; expected one of"),
        (rules.move_rollout_by_hand, "preparing", "running", "use start_attempt or update_att"),
    ],
)
def test_what_is_refused_says_why(move, old, new, said):
    with pytest.raises(InvalidTransitionError, match=said):
        move(rollout(old), new, 9.0)


@pytest.mark.parametrize(
    ("config", "heartbeat", "now", "expected"),
    [
        ({}, None, 1e9, None),
        ({"timeout_seconds": 10}, None, 110.0, None),
        ({"timeout_seconds": 10}, None, 110.1, "timeout"),
        ({"timeout_seconds": 10}, 109.0, 110.1, "timeout"),
        ({"unresponsive_seconds": 5}, None, 105.1, "unresponsive"),
        ({"unresponsive_seconds": 5}, 103.0, 105.1, None),
        ({"unresponsive_seconds": 5}, 103.0, 108.1, "unresponsive"),
        # both have passed: the timeout is the one that says more
        ({"timeout_seconds": 10, "unresponsive_seconds": 5}, None, 111.0, "timeout"),
    ],
)
def test_overdue(config, heartbeat, now, expected):
    config = RolloutConfig(**config)
    late = attempt(last_heartbeat_time=heartbeat)
    verdict = rules.overdue(late, config, now)
    assert (verdict[0] if verdict else None) == expected
    deadline = rules.deadline(late, config)
    assert (deadline is not None and now > deadline) == (expected is not None)
