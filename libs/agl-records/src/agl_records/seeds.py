"""Seeds that follow from where something stands in a run, and from nothing else.

No random id of a run, no time and no order of arrival is in them: two runs with one seed draw the
same, and so does a second attempt.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

SEED = "seed"
"""In the metadata of a rollout: what the seeds of its model calls come from."""


def seed_of(*place: object) -> int:
    """A number from 0 to 2**31 - 1, which every server takes for a seed.

    Args:
        place: The seed of the run and what tells this from all else in it, as texts and numbers.
    """
    text = "/".join(map(str, place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


def placed(
    metadata: Mapping[str, Any], group: int, copy: int, mode: str, seed: int | None
) -> dict[str, Any]:
    """The metadata of one rollout: those of its request, its ``group``, and its seed.

    Args:
        metadata: Of the request: ``step``, and ``round`` where a step is drawn anew.
        group: Position of the task in the request.
        copy: Which of the task's rollouts it is.
        mode: Of the rollout.
        seed: Of the run; None leaves its rollouts without.
    """
    of_rollout = {**metadata, "group": group}
    if seed is not None:
        place = (metadata.get("step"), metadata.get("round", 0), group, copy)
        of_rollout[SEED] = seed_of(seed, mode, *place)
    return of_rollout
