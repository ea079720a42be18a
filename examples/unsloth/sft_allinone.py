"""Fine-tune the math agent: store, runners and algorithm, started by one trainer.

python sft_allinone.py            # needs a GPU: see README.md
python sft_allinone.py --tiny     # a tiny model, on a CPU
"""

import argparse

from math_agent import math_agent
from sft_settings import add_options, sft

import agl


def main() -> None:
    """Run all iterations."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--runners", type=int, default=4)
    options = parser.parse_args()
    agl.setup_logging()
    with sft(options) as (settings, problems):
        trainer = agl.Trainer(
            algorithm=settings,
            n_runners=options.runners,
            concurrency=16,
            strategy={"type": "cs", "server_port": 0},
        )
        trainer.fit(math_agent, problems, val_dataset=problems if options.tiny else None)
    show_result(trainer.algorithm)


def show_result(algorithm: agl.Algorithm | None) -> None:
    """What the run says of itself."""
    summary = getattr(algorithm, "summary", None)
    assert summary is not None
    for number, reward in enumerate(summary["rewards"], start=1):
        print(f"mean reward of iteration {number}: {reward:.3f}")
    for version, reward in summary["val_rewards"]:
        print(f"validation of version {version}: {reward:.3f}")
    print(f"the newest version: {summary['model']}")


if __name__ == "__main__":
    main()
