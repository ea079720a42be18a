import inspect

import pytest

from agl.errors import NotSupportedError
from agl.store.base import UNSET, LightningStore
from agl_server.calls import CALLS


class Noted(LightningStore):
    """Says what was asked."""

    async def call(self, operation, arguments):
        return operation, arguments


async def test_a_store_is_one_method():
    asked = await Noted().query_attempts("ro-1", limit=2)
    assert asked == ("query_attempts", {"rollout_id": "ro-1", "limit": 2})
    with pytest.raises(NotSupportedError, match=r"LightningStore has no query_attempts\(\)"):
        await LightningStore().query_attempts("ro-1")


async def test_none_is_given_and_unset_is_not():
    changes = {"mode": None, "status": "failed", "metadata": UNSET}
    name, given = await Noted().update_rollout("ro-1", UNSET, **changes)
    assert given == {"rollout_id": "ro-1", "input": UNSET, **changes}
    complete = CALLS[name].complete(given)
    assert complete == {"rollout_id": "ro-1", "mode": None, "status": "failed"}


def test_older_names_are_the_names():
    call = CALLS["query_rollouts"]
    complete = call.complete({"status": ["failed"], "rollout_ids": ["a"]})
    assert (complete["status_in"], complete["rollout_id_in"]) == (["failed"], ["a"])
    assert call.complete({"status": ["failed"], "status_in": []})["status_in"] == []
    assert not {"status", "rollout_ids"} & complete.keys()


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing 1 required positional argument: 'rollout_id'"),
        (("ro-1", "at-1", "x"), {}, "takes from 2 to 3 positional arguments but 4 were given"),
        (("ro-1",), {"rollout_id": "ro-2"}, "multiple values for argument 'rollout_id'"),
        (("ro-1",), {"nam": "x"}, "unexpected keyword argument 'nam'"),
        ((), {"nam": "x"}, "unexpected keyword argument 'nam'"),
    ],
)
async def test_what_python_refuses_is_refused_in_its_words(args, kwargs, words):
    with pytest.raises(TypeError, match=words):
        await Noted().query_spans(*args, **kwargs)


def test_a_method_shows_the_signature_of_the_contract():
    shown = inspect.signature(Noted().start_attempt)
    assert list(shown.parameters) == ["rollout_id", "worker_id", "key"]
