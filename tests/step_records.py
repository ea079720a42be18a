"""What the store of a run has of its steps and evaluations."""

from pathlib import Path
from typing import Any

from tests.stores import opened


async def step_records(path: Path, step: int = 0, **changes: Any) -> dict[str, Any]:
    """Place -> record, as "train-0" is step 1 and "val-2" the evaluation after step 2.

    Args:
        path: Of the store, which has one run.
        step: Whose record is to be changed first.
        changes: Its values by name.
    """
    async with opened(path) as store:
        found = [one for one in await store.query_documents("step") if "rollouts" in one.body]
        places = {int(one.key.rpartition("/")[2]): one for one in found}
        if changes:
            one = places[2 * step - 1]
            changed = one.model_copy(update={"body": {**one.body, **changes}})
            await store.put_documents([changed])
            places[2 * step - 1] = changed
        return {f"{('val', 'train')[n % 2]}-{n // 2}": one.body for n, one in places.items()}
