"""``AzureSFT``: fine-tuning on an agent's best conversations, by Azure OpenAI.

The loop is that of ``loop``; here is what an iteration asks of Azure:

1. serve: deploy the newest model under a versioned name, once it is not there; before that, delete
   the oldest deployments of this run that would be more than ``max_deployments``
2. choose conversations by reward; say what training on them costs
3. upload them, start one job, wait for it, delete the uploaded file

Every step that costs money stands in the run's journal, under these events: ``stated`` (the cost,
before anything is sent), ``uploaded``, ``job``, ``job failed``, ``file deleted``, ``deployed``,
``deployment deleted``. A run that was killed finds its job there, or, when it
died before it could write the entry, at Azure by the file that the job trains on; so no job is
started, and paid for, twice.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agl.errors import AlgorithmError, ConfigError
from agl_azure.data import MAX_BYTES, MIN_EXAMPLES, bill, example_of_chat
from agl_learning.loop import Served
from agl_learning.paid import Bill, PaidTraining
from agl_learning.selection import nothing_selected, select_best
from agl_learning.versions import Version

if TYPE_CHECKING:
    from agl_azure.deployments import Deployments
    from agl_azure.jobs import Jobs
    from agl_azure.keys import Keys
    from agl_azure.management import Management
    from agl_azure.service import AzureService
    from agl_learning.collect import Collected

logger = logging.getLogger("agl.azure")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
_SUFFIX = re.compile(r"[A-Za-z0-9_-]{1,18}")


@dataclass(kw_only=True, eq=False, repr=False)
class AzureSFT(PaidTraining):
    """Supervised fine-tuning of a model at Azure OpenAI, on the agent's best conversations.

    Jobs and deployments cost money. The training is billed by tokens times epochs, and each
    deployment of a fine-tuned model by the hour, used or not. ``dry_run`` says what a job would
    cost and sends nothing.

    Keys are taken from ``AZURE_OPENAI_API_KEY`` or ``api_key``; deployments need a login
    (``az login``, a managed identity or a service principal, as azure-identity finds it), which
    also serves in the place of a key.

    Args:
        endpoint: Of the resource, for example ``https://NAME.openai.azure.com``.
        base_deployment: The deployment that the first rollouts use; it is never touched.
        base_model: What it deploys, with its version, for example ``gpt-4.1-mini-2025-04-14``.
        subscription_id: Where the resource is.
        resource_group: Where the resource is.
        account_name: Name of the resource; None takes it from ``endpoint``.
        api_key: Of the resource; None takes ``AZURE_OPENAI_API_KEY``, else the login.
        credential: An object of azure-identity; None finds a login.
        deployment_name: Deployments are called ``NAME_v01`` and so on; None takes
            ``<base_deployment>-ft``.
        max_deployments: So many deployments of this run exist at once.
        keep_deployment: Leave the newest one at the end; it costs by the hour until it is deleted.
        keep_files: Leave training files at Azure.
        data_filter_ratio: This part of the conversations is trained, the best; above 0, up to 1.
            Where the answers of a conversation have rewards of their own, those of one reward count
            as one, and the other answers have the weight 0.
        min_reward: Answers below are not trained; None for no threshold.
        epochs: Passes over the examples.
        learning_rate_multiplier: Of Azure's own; None leaves it to Azure.
        batch_size: None leaves it to Azure.
        suffix: In the names of the models.
        sku: Kind of the deployments: ``Standard``, ``GlobalStandard`` or ``DeveloperTier``.
        capacity: Of a deployment, in thousands of tokens per minute.
        poll_seconds: Between looks at a job or a deployment.
        job_timeout_seconds: How long one job may take; a run started again goes on waiting.
        deployment_timeout_seconds: How long one deployment may take to be ready.
        api_version: Of files and jobs.
        management_url: Of deployments; other clouds have others.
        seed: Of tasks' order, of the choice among equals, and of the jobs.
    """

    default_adapter = "chats"
    name = "azure-sft"

    endpoint: str = field(kw_only=False)
    base_deployment: str = field(kw_only=False)
    base_model: str = field(kw_only=False)
    subscription_id: str = field(kw_only=False)
    resource_group: str = field(kw_only=False)
    account_name: str | None = None
    api_key: str | None = None
    credential: Any = None
    deployment_name: str | None = None
    max_deployments: int = 2
    keep_deployment: bool = True
    keep_files: bool = False
    data_filter_ratio: float = 0.5
    min_reward: float | None = None
    epochs: int = 1
    learning_rate_multiplier: float | None = None
    batch_size: int | None = None
    suffix: str = "agl"
    sku: str = "Standard"
    capacity: int = 50
    poll_seconds: float = 30.0
    job_timeout_seconds: float = 24 * 3600.0
    deployment_timeout_seconds: float = 3600.0
    api_version: str = "2024-10-21"
    management_url: str = "https://management.azure.com"
    rollouts_per_task: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_least(
            max_deployments=1,
            epochs=1,
            batch_size=1,
            capacity=1,
            poll_seconds=0.01,
            job_timeout_seconds=0,
            deployment_timeout_seconds=0,
        )
        self.check_part("data_filter_ratio")
        address = urlsplit(self.endpoint)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(
                f"azure-sft: endpoint is {self.endpoint!r}; expected the address of an Azure "
                "OpenAI resource, for example 'https://NAME.openai.azure.com'"
            )
        self.endpoint = f"{address.scheme}://{address.netloc}"
        self._account = self.account_name or str(address.hostname).split(".")[0]
        self._prefix = self.deployment_name or f"{self.base_deployment}-ft"
        if not _NAME.fullmatch(self._prefix):
            raise ConfigError(
                f"azure-sft: deployment_name is {self._prefix!r}; expected letters, "
                "digits, '-', '_' and '.', at most 61"
            )
        if not _SUFFIX.fullmatch(self.suffix):
            raise ConfigError(
                f"azure-sft: suffix is {self.suffix!r}; expected 1 to 18 letters, digits, '-' and "
                "'_'"
            )
        self._opened: _Azure | None = None

    # --- the loop's questions

    def identity(self) -> dict[str, Any]:
        """What must not change when a run is continued."""
        return {
            **super().identity(),
            "endpoint": self.endpoint,
            "base_deployment": self.base_deployment,
            "base_model": self.base_model,
            "deployment_name": self._prefix,
        }

    async def prepare(self) -> Version:
        """Open the resource, and look whether key, login and names are right."""
        from agl_azure.deployments import Deployments
        from agl_azure.jobs import JobOptions, Jobs
        from agl_azure.keys import Keys, needs_extra
        from agl_azure.management import Account, Management
        from agl_azure.service import AzureService
        from agl_azure.waiting import Patience

        account = Account(
            self.subscription_id, self.resource_group, self._account, self.management_url
        )
        patience = Patience(
            poll=self.poll_seconds,
            job=self.job_timeout_seconds,
            deployment=self.deployment_timeout_seconds,
        )
        key = self.api_key or os.environ.get("AZURE_OPENAI_API_KEY") or None
        keys = Keys(key, self.credential)
        try:
            management = Management(account, keys, patience)
            service = AzureService(self.endpoint, self.api_version, keys, patience)
        except ImportError as error:
            raise needs_extra(error) from None
        journal = self.session.journal
        job_options = JobOptions(self.suffix, self._hyperparameters(), self.seed, self.keep_files)
        self._opened = _Azure(
            keys,
            service,
            management,
            Jobs(service, journal, self.session.run_id, job_options),
            Deployments(
                management,
                journal,
                self._prefix,
                self.max_deployments,
                self.sku,
                self.capacity,
            ),
        )
        await service.check()
        names = await management.models()
        if self.base_deployment not in names:
            raise ConfigError(
                f"azure-sft: there is no deployment {self.base_deployment!r} in "
                f"{self._account!r}; there are: {', '.join(sorted(names)) or 'none'}"
            )
        return Version(0, self.base_model)

    @contextlib.asynccontextmanager
    async def _serving(self, version: Version) -> AsyncGenerator[Served]:
        name = self.base_deployment
        if version.number > 0:
            name = await self._azure.deployments.ensure(version)
        yield Served(
            {
                "model": f"openai/{name}",
                "api_base": f"{self.endpoint}/openai/v1",
                "api_key": await self._azure.keys.key_or_token(),
            }
        )

    def serve(self, version: Version) -> AbstractAsyncContextManager[Served]:
        """The deployment of a version; made where it is missing."""
        return self._serving(version)

    def select(self, collected: "Collected", iteration: int) -> list[dict[str, Any]]:
        """The best conversations, as lines of a training file."""
        from agl_azure.errors import is_filtered

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
            keep_fraction=self.data_filter_ratio,
            min_reward=self.min_reward,
            max_length=None,
            seed=f"{self.seed}/{iteration}",
            make=example_of_chat,
        )
        if not examples:
            raise nothing_selected(collected, iteration, self.min_reward)
        if len(examples) < MIN_EXAMPLES and not self.dry_run:
            raise AlgorithmError(
                f"azure-sft: iteration {iteration} has {len(examples)} examples, and Azure trains "
                f"on {MIN_EXAMPLES} or more. Run more tasks (tasks_per_iteration, "
                "rollouts_per_task), or raise data_filter_ratio"
            )
        return examples

    async def train(self, examples: Path, version: Version, number: int) -> Version:
        """State the cost, upload, and have one job make version ``number``."""
        content = await asyncio.to_thread(examples.read_bytes)
        cost = self._bill(content, number)
        job = await self._azure.jobs.finish(content, version, number)
        metrics = {**self.cost_metrics(cost, job.trained_tokens), "job_id": job.job_id}
        return Version(number, job.model, metrics)

    async def clean_up(self) -> None:
        """Delete deployments that shall not stay, and say which ones do."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        try:
            gone = self._is_finished() and not self.keep_deployment
            await opened.deployments.prune(0 if gone else self.max_deployments)
            left = opened.deployments.names()
            if left:
                logger.warning(
                    "azure-sft: these deployments stay at Azure, and each costs by the hour until "
                    "it is deleted: %s",
                    ", ".join(left),
                )
        finally:
            await opened.service.close()
            await opened.management.close()

    def _bill(self, content: bytes, number: int) -> Bill:
        lines = [json.loads(line) for line in content.splitlines()]
        cost = bill(lines, self.epochs, self.price_per_million_tokens)
        self.state(cost, number, begun=self._azure.jobs.started(number) is not None)
        if len(content) > MAX_BYTES:
            raise AlgorithmError(
                f"azure-sft: iteration {number} has {len(content):,} bytes of examples, and Azure "
                f"takes {MAX_BYTES:,}. Lower data_filter_ratio or tasks_per_iteration"
            )
        return cost

    def _hyperparameters(self) -> dict[str, Any]:
        # Always with epochs: left to Azure, nobody could say before what a job costs.
        given = {
            "n_epochs": self.epochs,
            "batch_size": self.batch_size,
            "learning_rate_multiplier": self.learning_rate_multiplier,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _is_finished(self) -> bool:
        trained = self.session.journal.last("trained")
        done = trained is not None and trained["version"] >= self.iterations
        return done or self.is_budget_spent()

    @property
    def _azure(self) -> "_Azure":
        return self._need("service", self._opened)


@dataclass
class _Azure:
    """What is open while a run runs."""

    keys: "Keys"
    service: "AzureService"
    management: "Management"
    jobs: "Jobs"
    deployments: "Deployments"
