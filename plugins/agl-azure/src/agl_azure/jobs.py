"""The files and fine-tuning jobs of a run: each job is paid for once, and no file stays behind."""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from openai import AsyncAzureOpenAI, NotFoundError, OpenAIError
from openai.types.fine_tuning import FineTuningJob

from agl.errors import AglError
from agl_azure.client import MAX_RETRIES, AzureClient, Keys, NotYetError, pause_after
from agl_azure.errors import SDK_ERRORS, JobFailedError, failed_job, is_passing, refusal
from agl_azure.options import AzureOptions

if TYPE_CHECKING:
    from agl_learning.run.notes import Note, Notes
    from agl_learning.run.records import Records
    from agl_models.versions import Version

logger = logging.getLogger("agl.azure")

JOB_ENDS = ("failed", "cancelled", "canceled")
BILLED_REQUEST_LOOKS = 3
"""How often a job is looked for after an answer to its creation got lost."""
REQUEST_SECONDS = 120.0
FILE_SECONDS = 1800.0
"""How long the service may take to read a file."""


class Jobs(AzureClient):
    """Those of one run, through the ``openai`` package.

    Args:
        records: Of the run; they say whether rollouts were given up.
        run_id: Of the run; in the names of its files.
    """

    def __init__(
        self,
        options: AzureOptions,
        keys: Keys,
        notes: "Notes",
        records: "Records",
        run_id: str,
        seed: int,
    ) -> None:
        super().__init__(options, keys)
        self._notes, self._records = notes, records
        self._run_id, self._seed = run_id, seed
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

    # --- what a run asks for

    def started(self, number: int) -> "Note | None":
        """The entry of a version's job; not of one that failed."""
        return self._notes.last("job", version=number, round=self._round(number))

    async def finish(self, content: bytes, version: "Version", number: int) -> FineTuningJob:
        """The job that made version ``number`` out of ``version``, started where it was not.

        Raises:
            ConfigError: Azure does not take the key, the model or the file.
            AlgorithmError: The job failed, or Azure did; run again to go on.
        """
        entry = self.started(number)
        if entry is None:
            entry = await self._start(content, version, number)
        try:
            job = await self._wait_for(entry["job_id"])
        except JobFailedError:
            await self._give_up(number, entry["file_id"])
            raise
        except asyncio.CancelledError:
            logger.warning(
                "AzureSFT: job %s goes on at Azure, and is paid for. Run again with the run_dir "
                "%s to take it up, or cancel it there",
                entry["job_id"],
                self._notes.path.parent,
            )
            raise
        await self._delete_file(entry["file_id"])
        return job

    async def _start(self, content: bytes, version: "Version", number: int) -> "Note":
        notes, round_ = self._notes, self._round(number)
        uploaded = notes.last("uploaded", version=number, round=round_)
        if uploaded is None:
            name = f"agl-{self._run_id}-v{number:02d}-{round_}.jsonl"
            file_id = await self._upload(name, content)
            uploaded = notes.append("uploaded", version=number, round=round_, file_id=file_id)
        file_id = uploaded["file_id"]
        try:
            await self._wait_for_file(file_id)
        except JobFailedError:
            await self._give_up(number, file_id)
            raise
        # Always with epochs: left to Azure, nobody could say before what a job costs.
        given = {
            "n_epochs": self.options.epochs,
            "batch_size": self.options.batch_size,
            "learning_rate_multiplier": self.options.learning_rate_multiplier,
        }
        job_id = await self._create(
            model=version.ref,
            training_file=file_id,
            suffix=f"{self.options.suffix}-v{number:02d}",
            hyperparameters={name: value for name, value in given.items() if value is not None},
            seed=self._seed,
        )
        logger.info("iteration %d: fine-tuning job %s trains %s", number, job_id, version.ref)
        return notes.append("job", version=number, round=round_, job_id=job_id, file_id=file_id)

    async def _give_up(self, number: int, file_id: str) -> None:
        """The next start begins with another file."""
        self._notes.append("job failed", version=number, file_id=file_id)
        try:
            await self._delete_file(file_id)
        except AglError as error:  # why the job failed is what has to be told
            logger.warning("%s; delete the file by hand", error)

    def _round(self, number: int) -> int:
        """How many jobs of a version have failed, or were of rollouts that were given up."""
        failed = len(self._notes.all("job failed", version=number))
        return failed + self._records.round("train", number - 1)

    # --- files

    async def _upload(self, name: str, content: bytes) -> str:
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

    async def _wait_for_file(self, file_id: str) -> None:
        """Return when the service has read the file.

        Raises:
            JobFailedError: It could not.
            RemoteRefusalError: It took too long.
        """

        async def look() -> None:
            file = await self._files.retrieve(file_id)
            if file.status == "error":
                details = getattr(file, "status_details", None) or "it gave no reason"
                raise JobFailedError(
                    f"AzureSFT: the service could not read training file {file_id!r}: {details}"
                )
            if file.status != "processed":
                raise NotYetError(file.status)

        await self.until(look, f"file {file_id!r} to be read", FILE_SECONDS)

    async def _delete_file(self, file_id: str) -> None:
        """One that is not there is no error."""
        if self.options.keep_files or self._notes.last("file deleted", file_id=file_id):
            return

        async def delete() -> None:
            with contextlib.suppress(NotFoundError):
                await self._files.delete(file_id)

        await self.ask(f"delete file {file_id!r}", delete())
        self._notes.append("file deleted", file_id=file_id)

    # --- jobs

    async def _create(self, **job: Any) -> str:
        """Start a job, once: if a job of this file runs or has succeeded, that one is taken.

        A job costs money, so its creation is never repeated blindly: after an answer that did not
        come, the job is looked for first. Returns its id.
        """
        doing = f"start a fine-tuning job of {job['model']!r} at {self.options.endpoint}"
        once = self._client.with_options(max_retries=0)
        for look in range(1 + BILLED_REQUEST_LOOKS):
            known = await self._find(job["training_file"])
            if known is not None:
                return known
            try:
                return (await once.fine_tuning.jobs.create(**job)).id
            except SDK_ERRORS as error:
                refused = refusal(doing, error)
                if not is_passing(error) or look == BILLED_REQUEST_LOOKS:
                    raise refused from None
                logger.warning("%s; looking whether the job was started", refused)
                await asyncio.sleep(pause_after(error, self.options.poll_seconds))
        raise AssertionError("unreachable")

    async def _find(self, file_id: str) -> str | None:
        """The job that trains on this file and has not failed, or None."""
        doing = f"list the fine-tuning jobs of {self.options.endpoint}"
        for job in await self.ask(doing, _all(self._jobs.list())):
            if job.training_file == file_id and job.status not in JOB_ENDS:
                return job.id
        return None

    async def _wait_for(self, job_id: str) -> FineTuningJob:
        """Return when the job has made a model; hours, often.

        Raises:
            RemoteRefusalError: It failed, was cancelled, or took too long; the message has its
                error and last events.
        """

        async def look() -> FineTuningJob:
            job = await self._jobs.retrieve(job_id)
            if job.status in JOB_ENDS:
                raise failed_job(job_id, job.status, job.error, await self._events(job_id))
            if job.status != "succeeded" or not job.fine_tuned_model:
                raise NotYetError(job.status)
            return job

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
