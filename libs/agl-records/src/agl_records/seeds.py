"""Seeds that follow from where something stands in a run, and from nothing else.

No random id of a run, no time and no order of arrival is in them: two runs with one seed draw the
same, and so does a second attempt.
"""

import hashlib

SEED = "seed"
"""In the metadata of a rollout: what the seeds of its model calls come from."""


def seed_of(*place: object) -> int:
    """A number from 0 to 2**31 - 1, which every server takes for a seed.

    Args:
        place: The seed of the run and what tells this from all else in it, as texts and numbers.
    """
    text = "/".join(map(str, place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1
