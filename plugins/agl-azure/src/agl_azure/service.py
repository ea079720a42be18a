"""Files and fine-tuning jobs of one Azure OpenAI resource, through the ``openai`` package.

Nothing here decides; what a run does in which order is in ``azure_jobs``.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agl.errors import AglError
from agl_azure.errors import failed_job, is_passing, refusal
from agl_azure.keys import Keys
from agl_azure.waiting import Patience, retry_after, until
from agl_learning.remote import RemoteRefusalError

logger = logging.getLogger("agl.azure")

JOB_ENDS = ("failed", "cancelled", "canceled")
BILLED_REQUEST_LOOKS = 3
"""How often a job is looked for after an answer to its creation got lost."""


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
        endpoint: Its address.
        api_version: Of its interface.
        keys: What opens it.
        patience: How long to wait for what.
    """

    def __init__(self, endpoint: str, api_version: str, keys: Keys, patience: Patience) -> None:
        from openai import AsyncAzureOpenAI

        self._endpoint, self._keys, self._patience = endpoint, keys, patience
        auth: dict[str, Any] = {"api_key": keys.api_key}
        if keys.api_key is None:
            auth = {"azure_ad_token_provider": keys.token}
        self._client = AsyncAzureOpenAI(
            azure_endpoint=endpoint,
            api_version=api_version,
            max_retries=patience.max_retries,
            timeout=120.0,
            **auth,
        )

    async def check(self) -> None:
        """Ask for something small.

        Raises:
            ConfigError: Key or address are wrong.
        """
        await self._ask(
            f"ask {self._endpoint} for its jobs",
            lambda: self._client.fine_tuning.jobs.list(limit=1),
        )

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.close()

    # Files

    async def upload(self, name: str, content: bytes) -> str:
        """Send training data; the id of the file. One of that name and size is taken as it is."""
        known = await self.find_file(name, len(content))
        if known is not None:
            return known
        file = await self._ask(
            f"upload {name!r} to {self._endpoint}",
            lambda: self._client.files.create(file=(name, content), purpose="fine-tune"),
        )
        return file.id

    async def find_file(self, name: str, size: int) -> str | None:
        """The id of an uploaded file that can be used, or None."""
        files = await self._ask(
            f"list the files of {self._endpoint}", lambda: _all(self._client.files.list())
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
        doing = f"start a fine-tuning job of {model!r} at {self._endpoint}"
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
                    raise self._refuse(doing, error) from None
                logger.warning(
                    "%s; looking whether the job was started", self._refuse(doing, error)
                )
                await asyncio.sleep(retry_after(error, self._patience.poll))
        raise AssertionError("unreachable")

    async def find_job(self, file_id: str) -> str | None:
        """The job that trains on this file and has not failed, or None."""
        jobs = await self._ask(
            f"list the fine-tuning jobs of {self._endpoint}",
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

    # Asking

    async def _ask(
        self,
        doing: str,
        ask: Callable[[], Any],
        keep: tuple[type[BaseException], ...] = (),
    ) -> Any:
        try:
            return await ask()
        except keep:
            raise
        except _openai_error() as error:
            raise self._refuse(doing, error) from None

    async def _until(self, look: Callable[[], Awaitable[bool]], what: str, seconds: float) -> None:
        await until(look, what, seconds, self._patience.poll, self._refuse)

    def _refuse(self, doing: str, error: BaseException) -> AglError:
        return refusal(doing, error, self._keys.secrets)


def _openai_error() -> type[Exception]:
    from openai import OpenAIError

    return OpenAIError


def _missing() -> type[Exception]:
    from openai import NotFoundError

    return NotFoundError


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
