"""The same algorithm, run by the trainer: ``python apo_custom_algorithm_trainer.py``."""

from apo_custom_algorithm import apo_algorithm, apo_rollout

import agl


@agl.algo
async def try_prompts(store: agl.LightningStore) -> None:
    """What the trainer runs: the algorithm as it stands."""
    await apo_algorithm(store)


def main() -> None:
    """Store, algorithm and one runner, started together."""
    agl.setup_logging()
    agl.Trainer(algorithm=try_prompts, n_runners=1).fit(apo_rollout)


if __name__ == "__main__":
    main()
