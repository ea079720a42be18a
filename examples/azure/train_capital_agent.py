"""Fine-tune the capital agent at Azure OpenAI, in three iterations.

    python train_capital_agent.py --dry-run          # runs the agent, says what a job would cost
    python train_capital_agent.py                    # pays for jobs and deployments
    python train_capital_agent.py --dev --scripted   # no Azure, no model: the line runs once

The resource is named by variables of the environment: see ``.env.example``. A run that was
interrupted goes on with the same ``--out``.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from aoai_finetune import azure_sft
from capital_agent import capital_agent, load_tasks
from scripted_llm import scripted_reply

import agl


def train(out: Path, *, runners: int = 2, **options: Any) -> dict[str, Any]:
    """Train, and return what came of it: the algorithm's summary.

    Args:
        out: Folder of the run, its store among it.
        runners: Rollouts at once.
        **options: Of ``AzureSFT``, over those that are set here and in the environment.
    """
    out.mkdir(parents=True, exist_ok=True)
    defaults = {
        "iterations": 3,
        "tasks_per_iteration": 24,
        "keep_fraction": 0.6,
        "min_reward": 1.0,  # wrong answers are not imitated
        "max_deployments": 2,
        "run_dir": str(out),
    }
    algorithm = azure_sft(**{**defaults, **options})
    trainer = agl.Trainer(
        algorithm=algorithm,
        n_runners=runners,
        strategy={"type": "cs", "server_port": 0},
        store=agl.SqliteLightningStore(out / "store.db"),
    )
    train_tasks, val_tasks = load_tasks()
    trainer.fit(capital_agent, train_tasks, val_dataset=val_tasks)
    return algorithm.summary


def dry_run_scripted(num_tasks: int) -> int:
    """Run some tasks against a scripted model; returns how many got a reward of 1."""
    from agl_testing.echo_llm import EchoLLM

    algorithm = agl.Baseline()
    with EchoLLM(scripted_reply) as server:
        llm = agl.LLM(endpoint=server.url, model="scripted")
        trainer = agl.Trainer(
            algorithm=algorithm,
            strategy={"type": "shm", "main_thread": "algorithm"},
            initial_resources={"main_llm": llm},
        )
        trainer.dev(capital_agent, load_tasks()[1][:num_tasks])
    return sum(reward == 1 for reward in algorithm.rewards.values())


def main() -> int:
    """Read the command line, and train or try."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="end before the first job")
    parser.add_argument("--price", type=float, help="of a million trained tokens, to state costs")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("agl-runs/capitals"))
    parser.add_argument("--dev", action="store_true", help="run a few tasks, train nothing")
    parser.add_argument("--scripted", action="store_true", help="of --dev: without any model")
    options = parser.parse_args()
    agl.setup_logging("INFO" if not options.dev else "WARNING")
    if options.dev != options.scripted:
        parser.error("--dev and --scripted belong together; with a model: python capital_agent.py")
    if options.dev:
        print(f"{dry_run_scripted(5)} of 5 questions were answered right")
        return 0
    try:
        summary = train(
            options.out,
            runners=options.runners,
            iterations=options.iterations,
            dry_run=options.dry_run,
            price_per_million_tokens=options.price,
        )
    except KeyError as error:
        parser.error(str(error.args[0]))
    if options.dry_run:
        print(f"a job would train on {summary['bill']}; see {summary['file']}")
        return 0
    for version, reward in summary["val_rewards"]:
        print(f"version {version}: {reward:.2f} of the validation questions are right")
    print(f"the newest model is {summary['model']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
