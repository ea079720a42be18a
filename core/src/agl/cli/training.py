"""What ``agl run`` and ``agl dev`` do: check everything, then build, run and sum up."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.cli.shared import each_rollout, note, read_and_close
from agl.errors import RunError

if TYPE_CHECKING:
    from agl.cli.ledger_tables import Accounts
    from agl.config.file import CheckedConfig, RunConfig
    from agl.store.base import LightningStore

LAST_STEPS = 10
"""So many steps of the ledger stand at the end of a run; ``agl ledger`` has all."""


@dataclass
class Summary:
    """What a store holds at the end of a run."""

    statuses: Counter[str] = field(default_factory=Counter[str])
    """Rollout status -> how many."""
    rewards: list[float] = field(default_factory=list[float])
    """The final reward of each succeeded rollout that has one."""
    failures: Counter[str] = field(default_factory=Counter[str])
    """Boundary and type of an attempt's error -> how many."""
    examples: dict[str, str] = field(default_factory=dict[str, str])
    """The first message of each; messages differ by ids and values."""
    accounts: "Accounts | None" = None
    """The ledger; None where no algorithm kept one."""

    def print(self, store_path: object) -> None:
        """Write it on standard output."""
        counts = ", ".join(f"{number} {status}" for status, number in self.statuses.most_common())
        print(f"rollouts     {counts or 'none'}")
        if self.rewards:
            mean = sum(self.rewards) / len(self.rewards)
            print(f"mean reward  {mean:.4g} over {len(self.rewards)} succeeded rollouts")
        elif self.statuses:
            print("mean reward  none: no succeeded rollout has a reward")
        for failure in self.most_frequent_failures(3):
            print(f"failed       {failure}")
        if self.accounts is not None:
            from agl.cli.ledger_tables import print_steps, remarks

            number = len(self.accounts.steps)
            cut = f"the last {LAST_STEPS} of {number} steps" if number > LAST_STEPS else ""
            print(f"ledger       {cut}".rstrip())
            print_steps(self.accounts, last=LAST_STEPS)
            for remark in (*remarks(self.accounts), *self.accounts.problems):
                note(remark)
        if store_path is not None:
            print(f"store        {store_path}")

    def most_frequent_failures(self, most: int) -> list[str]:
        """The reasons that most failed attempts give."""
        return [
            f"{number} x {failure}, as in: {self.examples[failure]}"
            for failure, number in self.failures.most_common(most)
        ]


def train(path: Path, overrides: Sequence[str], *, dry: bool) -> None:
    """Run a configuration to the end and print what came of it.

    Args:
        path: The configuration file.
        overrides: ``key=value`` each.
        dry: Run Baseline in the algorithm's place.

    Raises:
        ConfigError: Something is wrong with the request; nothing was started or written.
        PluginError: A component is unknown or does not load; nothing was started or written.
        RunError: The run failed, or no rollout succeeded.
    """
    from agl.config.file import check_config, load_config
    from agl.utils.files import make_private_folder
    from agl.utils.logs import setup_logging

    setup_logging()
    file = load_config(path, overrides)
    run_dir = new_run_dir(file.config)
    checked = check_config(file, run_dir=run_dir, dry=dry)
    components = {
        name: plan.build() for name, plan in checked.components.items() if name != "store"
    }
    components["llm_proxy"] = components.pop("gateway", None)
    strategy = components["strategy"]
    strategy.prepare()
    plan = checked.components["store"]
    if getattr(strategy, "role", None) == "runner":
        # The run's folder is on the algorithm's machine, and so is the store, unless all share one.
        shared = getattr(strategy, "managed_store", None) is False
        _fit(checked, components, plan.build() if shared else None, dry=dry)
        return
    make_private_folder(run_dir)
    (run_dir / "config.yaml").write_text(checked.as_yaml(), encoding="utf-8")
    note(f"run folder: {run_dir}")
    store = plan.build()
    try:
        _fit(checked, components, store, run_dir=run_dir, dry=dry)
    finally:
        summary = read_and_close(store, _sum_up)
        summary.print(plan.options.get("path"))
    if summary.statuses and not summary.statuses["succeeded"]:
        [most] = summary.most_frequent_failures(1) or ["no reason was stored"]
        raise RunError(f"no rollout succeeded; most often: {most}")


def new_run_dir(config: "RunConfig") -> Path:
    """The configured folder, or a new one named after the time (UTC)."""
    if config.run_dir is not None:
        return Path(config.run_dir)
    name = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder, number = Path("agl-runs") / name, 2
    while folder.exists():
        folder, number = Path("agl-runs") / f"{name}-{number}", number + 1
    return folder


def _fit(
    checked: "CheckedConfig",
    components: dict[str, Any],
    store: "LightningStore | None",
    *,
    run_dir: Path | None = None,
    dry: bool,
) -> None:
    from agl.trainer import Trainer

    config = checked.file.config
    trainer = Trainer(
        **components,
        store=store,
        initial_resources=checked.resources,
        max_rollouts=config.max_rollouts,
        concurrency=config.concurrency,
        runner=config.runner,
        hooks=checked.hooks,
        run_dir=run_dir,
    )
    run = trainer.dev if dry else trainer.fit
    run(checked.agent, checked.train, val_dataset=checked.val)


async def _sum_up(store: "LightningStore") -> Summary:
    from agl.cli.ledger_tables import read_accounts
    from agl.emitter import find_final_reward

    summary = Summary()
    accounts = await read_accounts(store)
    if accounts.steps or accounts.problems:
        summary.accounts = accounts
    async for rollout in each_rollout(store):
        summary.statuses[rollout.status] += 1
        if rollout.status == "succeeded":
            reward = find_final_reward(await store.query_spans(rollout.rollout_id, "latest"))
            if reward is not None:
                summary.rewards.append(reward)
        for attempt in await store.query_attempts(rollout.rollout_id):
            if attempt.error is not None:
                failure = f"{attempt.error.boundary}: {attempt.error.type}"
                summary.failures[failure] += 1
                summary.examples.setdefault(failure, attempt.error.message)
    return summary
