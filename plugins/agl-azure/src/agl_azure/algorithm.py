"""``AzureSFT``: fine-tuning on an agent's best conversations, by Azure OpenAI.

The loop is agl-learning's; here is what an iteration asks of Azure:

1. serve: deploy the newest model under a versioned name, once it is not there; before that, delete
   the oldest deployments of this run that would be more than ``max_deployments``
2. choose conversations by reward; say what training on them costs
3. upload them, start one job, wait for it, delete the uploaded file

Every step that costs money stands in ``notes.jsonl`` of the run, under these events: ``uploaded``,
``job``, ``job failed``, ``file deleted``, ``deployed``, ``deployment deleted``. A run that was
killed finds its job there, or, when it died before it could write the note, at Azure by the file
that the job trains on; so no job is started, and paid for, twice.
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.errors import AlgorithmError, ConfigError
from agl_azure.data import MAX_BYTES, MIN_EXAMPLES, bill, example_of_chat, is_filtered
from agl_azure.options import AzureOptions
from agl_learning.selection import select_best
from agl_learning.trainer.billing import PaidTraining
from agl_models.provider_errors import not_installed
from agl_models.versions import Served, Version
from agl_runs.options import Count, Share

if TYPE_CHECKING:
    from agl_azure.client import Keys
    from agl_azure.deployments import Deployments
    from agl_azure.jobs import Jobs
    from agl_learning.collect.results import Collected

logger = logging.getLogger("agl.azure")


@dataclass(kw_only=True, eq=False, repr=False)
class AzureSFT(AzureOptions, PaidTraining):
    """Supervised fine-tuning of a model at Azure OpenAI, on the agent's best conversations.

    Jobs and deployments cost money. The training is billed by tokens times epochs, and each
    deployment of a fine-tuned model by the hour, used or not. ``dry_run`` says what a job would
    cost and sends nothing.

    Keys are taken from ``AZURE_OPENAI_API_KEY`` or ``api_key``; deployments need a login
    (``az login``, a managed identity or a service principal, as azure-identity finds it), which
    also serves in the place of a key.

    Args:
        keep_deployment: Leave the newest one at the end; it costs by the hour until it is deleted.
        keep_fraction: This part of the conversations is trained, the best; above 0, up to 1.
            Where the answers of a conversation have rewards of their own, those of one reward count
            as one, and the other answers have the weight 0.
        min_reward: Answers below are not trained; None for no threshold.
        seed: Seed for the order of tasks, the choice among equals, and the jobs.
    """

    default_adapter = "chats"
    name = "azure-sft"

    keep_deployment: bool = True
    keep_fraction: Share = 0.5
    min_reward: float | None = None
    rollouts_per_task: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_names()
        self._keys: Keys
        self._jobs: Jobs
        self._deployments: Deployments

    # --- the loop's questions

    async def prepare(self) -> Version:
        """Open the resource, and look whether key, login and names are right."""
        try:
            from agl_azure.client import Keys
            from agl_azure.deployments import Deployments
            from agl_azure.jobs import Jobs
        except ImportError as error:
            raise not_installed(self.name, "agl-azure", error) from None
        session, key = self.session, self.api_key or os.environ.get("AZURE_OPENAI_API_KEY") or None
        self._keys = Keys(key, self.credential)
        of_run = (self.notes, session.records, session.run_id, self.seed)
        self._jobs = Jobs(self, self._keys, *of_run)
        self._deployments = Deployments(self, self._keys, self.notes)
        for close in (self._deployments.close, self._jobs.close, self._prune):
            self.opened.push_async_callback(close)
        await self._jobs.check()
        names = await self._deployments.models()
        if self.base_deployment not in names:
            raise ConfigError(
                f"AzureSFT: there is no deployment {self.base_deployment!r} in "
                f"{self.account!r}; there are: {', '.join(sorted(names)) or 'none'}"
            )
        return Version(0, self.base_model)

    @contextlib.asynccontextmanager
    async def serve(self, version: Version) -> AsyncGenerator[Served]:
        """The deployment of a version; made where it is missing."""
        name = self.base_deployment
        if version.number > 0:
            name = await self._deployments.ensure(version)
        yield Served(
            {
                "model": f"openai/{name}",
                "api_base": f"{self.endpoint}/openai/v1",
                "api_key": self._keys.api_key or await self._keys.token(),
            }
        )

    def select(self, collected: "Collected", iteration: int) -> list[dict[str, Any]]:
        """The best conversations, as lines of a training file."""
        filtered = [
            exclusion
            for exclusion in collected.ledger.exclusions
            if exclusion.kind == "call" and is_filtered(exclusion.detail)
        ]
        if filtered:
            logger.warning(
                "iteration %d: the content filter refused or cut off %d model calls, of rollouts "
                "%s; they are not trained",
                iteration,
                len(filtered),
                ", ".join(sorted({one.rollout_id for one in filtered})[:5]),
            )
        examples = select_best(
            collected,
            iteration,
            keep_fraction=self.keep_fraction,
            min_reward=self.min_reward,
            max_length=None,
            seed=self.seed,
            make=example_of_chat,
        )
        if len(examples) < MIN_EXAMPLES and not self.dry_run:
            raise AlgorithmError(
                f"AzureSFT: iteration {iteration} has {len(examples)} examples, and Azure trains "
                f"on {MIN_EXAMPLES} or more. Run more tasks (tasks_per_iteration, "
                "rollouts_per_task), or raise keep_fraction"
            )
        return examples

    async def train(self, examples: Path, version: Version, number: int) -> Version:
        """State the cost, upload, and have one job make version ``number``."""
        content = await asyncio.to_thread(examples.read_bytes)
        lines = [json.loads(line) for line in content.splitlines()]
        cost = bill(lines, self.epochs, self.price_per_million_tokens)
        self.state(cost, number, begun=self._jobs.started(number) is not None)
        if len(content) > MAX_BYTES:
            raise AlgorithmError(
                f"AzureSFT: iteration {number} has {len(content):,} bytes of examples, and Azure "
                f"takes {MAX_BYTES:,}. Lower keep_fraction or tasks_per_iteration"
            )
        job = await self._jobs.finish(content, version, number)
        metrics = {**self.cost_metrics(cost, job.trained_tokens), "job_id": job.id}
        return Version(number, str(job.fine_tuned_model), metrics)

    async def _prune(self) -> None:
        """Delete deployments that shall not stay, and say which ones do."""
        gone = self.is_over() and not self.keep_deployment
        await self._deployments.prune(0 if gone else self.max_deployments)
        left = self._deployments.names()
        if left:
            logger.warning(
                "AzureSFT: these deployments stay at Azure, and each costs by the hour until it "
                "is deleted: %s",
                ", ".join(left),
            )
