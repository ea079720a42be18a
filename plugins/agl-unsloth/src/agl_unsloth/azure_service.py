"""One Azure OpenAI resource: its files, fine-tuning jobs and deployments, through Azure's SDKs.

Files and jobs are asked for through ``openai``, deployments through
``azure-mgmt-cognitiveservices`` (they belong to Azure's management address, another server with
other credentials). Nothing here decides; what a run does in which order is in ``azure``.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from agl.errors import ConfigError
from agl.serving import is_loopback
from agl_unsloth.azure_errors import (
    DeploymentFailedError as DeploymentFailedError,
    JobFailedError as JobFailedError,
    failed_job,
    is_passing,
    refusal,
)
from agl_unsloth.remote import RemoteRefusalError

logger = logging.getLogger("agl.unsloth.azure")

T = TypeVar("T")

API_VERSION = "2024-10-21"
MANAGEMENT_URL = "https://management.azure.com"
TOKEN_SCOPE = "https://cognitiveservices.azure.com/.default"
JOB_ENDS = ("failed", "cancelled", "canceled")
DEPLOYMENT_ENDS = ("Failed", "Canceled", "Disabled", "Deleting")
BILLED_REQUEST_LOOKS = 3
"""How often a job is looked for after an answer to its creation got lost."""


@dataclass(frozen=True)
class Place:
    """Where the resource is; nothing secret."""

    endpoint: str
    subscription_id: str
    resource_group: str
    account_name: str
    api_version: str = API_VERSION
    management_url: str = MANAGEMENT_URL


@dataclass(frozen=True)
class Patience:
    """How long things may take, and how often they are looked at; seconds."""

    poll: float = 30.0
    file: float = 1800.0
    job: float = 24 * 3600.0
    deployment: float = 3600.0
    max_retries: int = 5
    """Of one request, by the SDK, which keeps to ``Retry-After``."""


@dataclass(frozen=True)
class FinishedJob:
    """A job that made a model."""

    job_id: str
    model: str
    trained_tokens: int | None
    """As billed; None where the service did not say."""


class AzureService:
    """Asks one resource.

    Args:
        place: Where it is.
        api_key: Of the resource; None uses ``credential`` for it, too.
        credential: One of azure-identity (or with its ``get_token``), for deployments.
        patience: How long to wait for what.
    """

    def __init__(
        self, place: Place, api_key: str | None, credential: Any, patience: Patience
    ) -> None:
        import httpx
        from openai import AsyncAzureOpenAI

        self.place, self._patience = place, patience
        self._credential = _Remembered(credential)
        self._api_key = api_key
        auth: dict[str, Any] = {"api_key": api_key}
        if api_key is None:
            auth = {"azure_ad_token_provider": self._token}
        self._client = AsyncAzureOpenAI(
            azure_endpoint=place.endpoint,
            api_version=place.api_version,
            max_retries=patience.max_retries,
            timeout=120.0,
            **auth,
        )
        self._management: Any = None
        host = httpx.URL(place.management_url).host
        # A bearer token goes over plain HTTP to this machine alone; elsewhere the SDK refuses.
        self._plain = {"enforce_https": False} if is_loopback(host) else {}

    @property
    def secrets(self) -> list[str]:
        """What must be in no message."""
        return [one for one in (self._api_key, *self._credential.tokens) if one]

    async def key_or_token(self) -> str:
        """What opens the resource for model calls: its key, or a token of about an hour."""
        return self._api_key or await self._token()

    async def check(self) -> None:
        """Ask for something small.

        Raises:
            ConfigError: Key or address are wrong.
        """
        await self._ask(
            f"ask {self.place.endpoint} for its jobs",
            lambda: self._client.fine_tuning.jobs.list(limit=1),
        )

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.close()
        if self._management is not None:
            await asyncio.to_thread(self._management.close)

    # Files

    async def upload(self, name: str, content: bytes) -> str:
        """Send training data; the id of the file. One of that name and size is taken as it is."""
        known = await self.find_file(name, len(content))
        if known is not None:
            return known
        file = await self._ask(
            f"upload {name!r} to {self.place.endpoint}",
            lambda: self._client.files.create(file=(name, content), purpose="fine-tune"),
        )
        return file.id

    async def find_file(self, name: str, size: int) -> str | None:
        """The id of an uploaded file that can be used, or None."""
        files = await self._ask(
            f"list the files of {self.place.endpoint}", lambda: _all(self._client.files.list())
        )
        for file in files:
            # Azure gives no size before a file is read.
            if file.filename == name and file.bytes in (None, size) and file.status != "error":
                return file.id
        return None

    async def wait_for_file(self, file_id: str) -> None:
        """Return when the service has read the file.

        Raises:
            RemoteRefusalError: It could not, or took too long.
        """

        async def look() -> bool:
            file = await self._client.files.retrieve(file_id)
            if file.status == "error":
                details = getattr(file, "status_details", None) or "it gave no reason"
                raise RemoteRefusalError(
                    f"azure-sft: the service could not read training file {file_id!r}: {details}"
                )
            return file.status == "processed"

        await self._until(look, f"file {file_id!r} to be read", self._patience.file)

    async def delete_file(self, file_id: str) -> None:
        """Delete a file; one that is not there is no error."""
        with contextlib.suppress(_missing()):
            await self._ask(
                f"delete file {file_id!r}",
                lambda: self._client.files.delete(file_id),
                keep=(_missing(),),
            )

    # Jobs

    async def start_job(
        self, *, model: str, file_id: str, suffix: str, hyperparameters: dict[str, Any], seed: int
    ) -> str:
        """Start a job, once: if a job of this file runs or has succeeded, that one is taken.

        A job costs money, so its creation is never repeated blindly: after an answer that did not
        come, the job is looked for first.

        Returns:
            Its id.
        """
        doing = f"start a fine-tuning job of {model!r} at {self.place.endpoint}"
        once = self._client.with_options(max_retries=0)
        for look in range(1 + BILLED_REQUEST_LOOKS):
            known = await self.find_job(file_id)
            if known is not None:
                return known
            try:
                job = await once.fine_tuning.jobs.create(
                    model=model,
                    training_file=file_id,
                    suffix=suffix,
                    seed=seed,
                    hyperparameters=hyperparameters,  # pyright: ignore[reportArgumentType]
                )
                return job.id
            except _openai_error() as error:
                if not is_passing(error) or look == BILLED_REQUEST_LOOKS:
                    raise refusal(doing, error, self.secrets) from None
                logger.warning(
                    "%s; looking whether the job was started", refusal(doing, error, self.secrets)
                )
                await asyncio.sleep(_retry_after(error, self._patience.poll))
        raise AssertionError("unreachable")

    async def find_job(self, file_id: str) -> str | None:
        """The job that trains on this file and has not failed, or None."""
        jobs = await self._ask(
            f"list the fine-tuning jobs of {self.place.endpoint}",
            lambda: _all(self._client.fine_tuning.jobs.list()),
        )
        for job in jobs:
            if job.training_file == file_id and job.status not in JOB_ENDS:
                return job.id
        return None

    async def wait_for_job(self, job_id: str) -> FinishedJob:
        """Return when the job has made a model; hours, often.

        Raises:
            RemoteRefusalError: It failed, was cancelled, or took too long; the message has its
                error and last events.
        """
        found: list[FinishedJob] = []

        async def look() -> bool:
            job = await self._client.fine_tuning.jobs.retrieve(job_id)
            if job.status in JOB_ENDS:
                error = failed_job(job_id, job.status, job.error, await self._events(job_id))
                raise error
            if job.status != "succeeded" or not job.fine_tuned_model:
                return False
            found.append(FinishedJob(job_id, job.fine_tuned_model, job.trained_tokens))
            return True

        await self._until(look, f"fine-tuning job {job_id!r} to end", self._patience.job)
        return found[0]

    async def _events(self, job_id: str) -> list[str]:
        with contextlib.suppress(_openai_error()):
            page = await self._client.fine_tuning.jobs.list_events(job_id, limit=5)
            return [event.message for event in reversed(page.data)]
        return []

    # Deployments

    async def deploy(self, name: str, model: str, sku: str, capacity: int) -> None:
        """Ask for a deployment; asking again for the same one changes nothing."""
        from azure.mgmt.cognitiveservices import models

        wanted = models.Deployment(
            sku=models.Sku(name=sku, capacity=capacity),
            properties=models.DeploymentProperties(
                model=models.DeploymentModel(format="OpenAI", name=model, version="1")
            ),
        )
        await self._manage(
            f"deploy {model!r} as {name!r}",
            lambda deployments, *where: deployments.begin_create_or_update(
                *where, name, wanted, polling=False, **self._plain
            ),
        )

    async def wait_for_deployment(self, name: str) -> None:
        """Return when the deployment answers calls.

        Raises:
            RemoteRefusalError: It failed, or took too long.
        """
        last = ["not begun"]

        async def look() -> bool:
            deployment = await asyncio.to_thread(
                self._deployments().get,
                self.place.resource_group,
                self.place.account_name,
                name,
                **self._plain,
            )
            last[0] = str(deployment.properties.provisioning_state)
            if last[0] in DEPLOYMENT_ENDS:
                raise DeploymentFailedError(
                    f"azure-sft: deployment {name!r} ended as {last[0]}. Run again to deploy the "
                    "model once more (it is not trained again); where that does not help, its "
                    "kind (sku) may not be offered in the region of the resource"
                )
            return last[0] == "Succeeded"

        await self._until(
            look, f"deployment {name!r} to be ready", self._patience.deployment, lambda: last[0]
        )

    async def model_of(self, name: str) -> str | None:
        """Which model a deployment has; None where there is no such deployment."""
        found = await self._manage(
            f"list the deployments of {self.place.account_name!r}",
            lambda deployments, *where: list(deployments.list(*where, **self._plain)),
        )
        return next((one.properties.model.name for one in found if one.name == name), None)

    async def list_deployments(self) -> list[str]:
        """Names of all deployments of the resource."""
        found = await self._manage(
            f"list the deployments of {self.place.account_name!r}",
            lambda deployments, *where: list(deployments.list(*where, **self._plain)),
        )
        return [one.name for one in found]

    async def delete_deployment(self, name: str) -> None:
        """Delete a deployment and return when it is gone; one that is not there is no error."""
        await self._manage(
            f"delete deployment {name!r}",
            lambda deployments, *where: deployments.begin_delete(
                *where, name, polling=False, **self._plain
            ),
        )

        async def gone() -> bool:
            return name not in await self.list_deployments()

        await self._until(gone, f"deployment {name!r} to be gone", self._patience.deployment)

    # Asking

    async def _ask(
        self,
        doing: str,
        ask: Callable[[], Any],
        keep: tuple[type[BaseException], ...] = (),
    ) -> T:
        try:
            return await ask()
        except keep:
            raise
        except _openai_error() as error:
            raise refusal(doing, error, self.secrets) from None

    async def _manage(self, doing: str, ask: Callable[..., T]) -> T:
        from azure.core.exceptions import AzureError

        where = (self.place.resource_group, self.place.account_name)
        try:
            return await asyncio.to_thread(lambda: ask(self._deployments(), *where))
        except AzureError as error:
            raise refusal(doing, error, self.secrets) from None

    async def _until(
        self,
        look: Callable[[], Awaitable[bool]],
        what: str,
        seconds: float,
        state: Callable[[], str] | None = None,
    ) -> None:
        """Look again and again; a service that is away for a while ends nothing."""
        from azure.core.exceptions import AzureError

        deadline = time.monotonic() + seconds
        pause = min(1.0, self._patience.poll)
        while True:
            wait = pause
            try:
                if await look():
                    return
            except (_openai_error(), AzureError) as error:
                if not is_passing(error):
                    raise refusal(f"wait for {what}", error, self.secrets) from None
                wait = _retry_after(error, pause)
                logger.warning("%s", refusal(f"look at {what}", error, self.secrets))
            if time.monotonic() + wait > deadline:
                now = f"; it is {state()!r} now" if state else ""
                raise RemoteRefusalError(
                    f"azure-sft: waited {seconds:.0f} seconds for {what}{now}. It may still get "
                    "there: run again, and the run goes on from it"
                )
            await asyncio.sleep(wait)
            pause = min(pause * 1.5, self._patience.poll)

    def _deployments(self) -> Any:
        if self._management is None:
            from azure.mgmt.cognitiveservices import CognitiveServicesManagementClient

            self._management = CognitiveServicesManagementClient(
                self._credential,
                self.place.subscription_id,
                base_url=self.place.management_url,
                credential_scopes=[f"{self.place.management_url.rstrip('/')}/.default"],
                retry_total=self._patience.max_retries,
            )
        return self._management.deployments

    async def _token(self) -> str:
        return (await asyncio.to_thread(self._credential.get_token, TOKEN_SCOPE)).token


class _Remembered:
    """A credential that knows which tokens it gave, so that they can be kept out of messages."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        self.tokens: list[str] = []

    def get_token(self, *scopes: str, **options: Any) -> Any:
        if self._credential is None:
            self._credential = _default_credential()
        token = self._credential.get_token(*scopes, **options)
        if token.token not in self.tokens:
            self.tokens = [*self.tokens[-9:], token.token]
        return token


def _default_credential() -> Any:
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as error:
        raise needs_extra(error) from None
    return DefaultAzureCredential()


def needs_extra(error: ImportError) -> ConfigError:
    """The error for an SDK that is not installed."""
    return ConfigError(
        f"algorithm 'azure-sft' (plugin 'agl-unsloth') needs {error.name!r}, which is not "
        "installed. Run: pip install 'agl-unsloth[azure]'"
    )


def _openai_error() -> type[Exception]:
    from openai import OpenAIError

    return OpenAIError


def _missing() -> type[Exception]:
    from openai import NotFoundError

    return NotFoundError


def _retry_after(error: BaseException, least: float) -> float:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return max(float(headers.get("retry-after", "")), 0.0)
    except ValueError:
        return least


async def _all(pages: Any) -> list[Any]:
    """Every item of a list, which ends where one comes twice.

    Azure's list of files is one page that does not say that it is the last; the SDK would ask for
    it again and again.
    """
    items: dict[str, Any] = {}
    async for item in pages:
        if item.id in items:
            break
        items[item.id] = item
    return list(items.values())
