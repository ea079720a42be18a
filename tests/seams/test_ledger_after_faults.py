"""What the ledger says where agents write spans like its own."""

import asyncio
import hashlib
import json

import pytest

import agl
from agl.cli import main
from agl_records.types import LedgerItem, LedgerPart, Trained

STEP = 1
OLD_SPAN_ID = hashlib.sha256(b"ledger grpo 1").hexdigest()[:16]
"""Under which an account was kept among the spans once."""


def forged(rollout: agl.AttemptedRollout) -> str:
    call = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    items = [LedgerItem(**call, call_id="c"), LedgerItem(kind="rollout", **call)]
    about = {"step": STEP, "algorithm": "grpo", "trained": [Trained(**call, call_id="c")]}
    return LedgerPart(rollout_id=rollout.rollout_id, items=items, **about).model_dump_json()


def evil_span(kind: str, rollout: agl.AttemptedRollout) -> agl.Span:
    attributes = {
        "suppress": {},
        "no part": {},
        "no json": {"agentlightning.ledger.part": "{"},
        "forge": {"agentlightning.ledger.part": forged(rollout)},
    }[kind]
    return agl.Span.from_attributes(
        name="harmless" if kind == "suppress" else "agentlightning.ledger",
        attributes=attributes,
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        span_id=OLD_SPAN_ID,
    )


@pytest.mark.sqlite
@pytest.mark.parametrize("kind", ["suppress", "no part", "no json", "forge"])
def test_what_an_agent_records_neither_forges_nor_suppresses_an_account(kind, tmp_path, capsys):
    async def run() -> list[str]:
        store = agl.SqliteLightningStore(tmp_path / "store.db")
        rollouts = [await store.start_rollout(name, mode="train") for name in ("good", "evil")]
        await store.add_span(evil_span(kind, rollouts[1]))
        ledger = agl.Ledger()
        for rollout in rollouts:
            await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
            ledger.add_rollout(rollout.rollout_id)
            about = {"rollout_id": rollout.rollout_id, "reason": "no_calls"}
            ledger.exclude(agl.Exclusion(kind="rollout", **about))
        ended = list(await store.query_rollouts())
        await agl.save_ledger(store, ledger, ended, step=STEP, algorithm="grpo")
        await store.close()
        return [rollout.rollout_id for rollout in rollouts]

    ids = asyncio.run(run())
    with pytest.raises(SystemExit) as ended:
        main(["ledger", str(tmp_path), "--step", str(STEP), "--json"])
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out)
    (step,) = said["steps"]
    assert step["rollouts"] == {"total": 2, "trained": 0, "excluded": {"no_calls": 2}}
    assert step["calls"]["total"] == 0
    assert [part["rollout_id"] for part in said["parts"]] == ids
