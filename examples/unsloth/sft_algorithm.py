"""The algorithm's process: serves the model, puts tasks into the store, trains.

export AGL_SERVER_TOKEN=a-long-random-text   # in each terminal
agl store                          # terminal 1
python sft_rollout_runners.py      # terminal 2
python sft_algorithm.py            # terminal 3; needs a GPU, or --tiny
"""

import argparse

from math_agent import math_agent
from sft_allinone import show_result
from sft_settings import add_options, sft

import agl


def main() -> None:
    """Run all iterations against a store that is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--url", default="http://127.0.0.1:4747", help="of the store")
    options = parser.parse_args()
    agl.setup_logging()
    with sft(options) as (settings, problems):
        trainer = agl.Trainer(
            algorithm=settings,
            store=agl.LightningStoreClient(options.url),
            # Runners are processes of their own, perhaps on other machines.
            strategy={"type": "cs", "role": "algorithm", "managed_store": False},
        )
        trainer.fit(math_agent, problems, val_dataset=problems if options.tiny else None)
    show_result(trainer.algorithm)


if __name__ == "__main__":
    main()
