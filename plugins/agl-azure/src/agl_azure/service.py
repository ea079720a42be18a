"""Files and fine-tuning jobs of one Azure OpenAI resource, through the ``openai`` package.

Nothing here decides; what a run does in which order is in ``jobs``.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any

from openai import AsyncAzureOpenAI, NotFoundError, OpenAIError

from agl_azure.client import MAX_RETRIES, AzureClient, Keys, NotYetError, pause_after
from agl_azure.errors import SDK_ERRORS, failed_job, is_passing, refusal
from agl_azure.options import AzureOptions
from agl_models.provider_errors import RemoteRefusalError

logger = logging.getLogger("agl.azure")

JOB_ENDS = ("failed", "cancelled", "canceled")
BILLED_REQUEST_LOOKS = 3
"""How often a job is looked for after an answer to its creation got lost."""
REQUEST_SECONDS = 120.0
FILE_SECONDS = 1800.0
"""How long the service may take to read a file."""


@dataclass(frozen=True)
class FinishedJob:
    """A job that made a model."""

    job_id: str
    model: str
    trained_tokens: int | None
    """As billed; None where the service did not say."""


class AzureService(AzureClient):
    """Asks for files and jobs."""

    def __init__(self, options: AzureOptions, keys: Keys) -> None:
        super().__init__(options, keys)
        auth: dict[str, Any] = {"api_key": keys.api_key}
        if keys.api_key is None:
            auth = {"azure_ad_token_provider": keys.token}
        self._client = AsyncAzureOpenAI(
            azure_endpoint=options.endpoint,
            api_version=options.api_version,
            max_retries=MAX_RETRIES,
            timeout=REQUEST_SECONDS,
            **auth,
        )
        self._files, self._jobs = self._client.files, self._client.fine_tuning.jobs

    async def check(self) -> None:
        """Ask for something small.

        Raises:
            ConfigError: Key or address are wrong.
        """
        await self.ask(f"ask {self.options.endpoint} for its jobs", self._jobs.list(limit=1))

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.close()

    # Files

    async def upload(self, name: str, content: bytes) -> str:
        """Send training data; the id of the file. One of that name and size is taken as it is."""
        where = self.options.endpoint
        for file in await self.ask(f"list the files of {where}", _all(self._files.list())):
            # Azure gives no size before a file is read.
            fits = file.filename == name and file.bytes in (None, len(content))
            if fits and file.status != "error":
                return file.id
        file = await self.ask(
            f"upload {name!r} to {where}",
            self._files.create(file=(name, content), purpose="fine-tune"),
        )
        return file.id

    async def wait_for_file(self, file_id: str) -> None:
        """Return when the service has read the file.

        Raises:
            RemoteRefusalError: It could not, or took too long.
        """

        async def look() -> None:
            file = await self._files.retrieve(file_id)
            if file.status == "error":
                details = getattr(file, "status_details", None) or "it gave no reason"
                raise RemoteRefusalError(
                    f"AzureSFT: the service could not read training file {file_id!r}: {details}"
                )
            if file.status != "processed":
                raise NotYetError(file.status)

        await self.until(look, f"file {file_id!r} to be read", FILE_SECONDS)

    async def delete_file(self, file_id: str) -> None:
        """Delete a file; one that is not there is no error."""

        async def delete() -> None:
            with contextlib.suppress(NotFoundError):
                await self._files.delete(file_id)

        await self.ask(f"delete file {file_id!r}", delete())

    # Jobs

    async def start_job(self, **job: Any) -> str:
        """Start a job, once: if a job of this file runs or has succeeded, that one is taken.

        A job costs money, so its creation is never repeated blindly: after an answer that did not
        come, the job is looked for first.

        Args:
            job: What the SDK takes: ``model``, ``training_file`` and so on.

        Returns:
            Its id.
        """
        doing = f"start a fine-tuning job of {job['model']!r} at {self.options.endpoint}"
        once = self._client.with_options(max_retries=0)
        for look in range(1 + BILLED_REQUEST_LOOKS):
            known = await self.find_job(job["training_file"])
            if known is not None:
                return known
            try:
                return (await once.fine_tuning.jobs.create(**job)).id
            except SDK_ERRORS as error:
                refused = refusal(doing, error, self.keys.secrets)
                if not is_passing(error) or look == BILLED_REQUEST_LOOKS:
                    raise refused from None
                logger.warning("%s; looking whether the job was started", refused)
                await asyncio.sleep(pause_after(error, self.options.poll_seconds))
        raise AssertionError("unreachable")

    async def find_job(self, file_id: str) -> str | None:
        """The job that trains on this file and has not failed, or None."""
        doing = f"list the fine-tuning jobs of {self.options.endpoint}"
        for job in await self.ask(doing, _all(self._jobs.list())):
            if job.training_file == file_id and job.status not in JOB_ENDS:
                return job.id
        return None

    async def wait_for_job(self, job_id: str) -> FinishedJob:
        """Return when the job has made a model; hours, often.

        Raises:
            RemoteRefusalError: It failed, was cancelled, or took too long; the message has its
                error and last events.
        """

        async def look() -> FinishedJob:
            job = await self._jobs.retrieve(job_id)
            if job.status in JOB_ENDS:
                raise failed_job(job_id, job.status, job.error, await self._events(job_id))
            if job.status != "succeeded" or not job.fine_tuned_model:
                raise NotYetError(job.status)
            return FinishedJob(job_id, job.fine_tuned_model, job.trained_tokens)

        seconds = self.options.job_timeout_seconds
        return await self.until(look, f"fine-tuning job {job_id!r} to end", seconds)

    async def _events(self, job_id: str) -> list[str]:
        with contextlib.suppress(OpenAIError):
            page = await self._jobs.list_events(job_id, limit=5)
            return [event.message for event in reversed(page.data)]
        return []


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
