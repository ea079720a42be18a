"""The fine-tuning jobs of a run: each is paid for once, and its file does not stay behind."""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from agl_azure.errors import JobFailedError
from agl_azure.service import AzureService, FinishedJob

if TYPE_CHECKING:
    from agl_learning.run.notes import Note, Notes
    from agl_learning.run.records import Records
    from agl_models.versions import Version
logger = logging.getLogger("agl.azure")


class Jobs:
    """Those of one run.

    Args:
        service: The resource.
        notes: Of the run.
        records: Of the run; they say whether rollouts were given up.
        run_id: Of the run; in the names of its files.
        seed: Of every job.
    """

    def __init__(
        self, service: AzureService, notes: "Notes", records: "Records", run_id: str, seed: int
    ) -> None:
        self._service, self._notes, self._records = service, notes, records
        self._options = service.options
        self._run_id, self._seed = run_id, seed

    def started(self, number: int) -> "Note | None":
        """The entry of a version's job; not of one that failed."""
        return self._notes.last("job", version=number, round=self._round(number))

    async def finish(self, content: bytes, version: "Version", number: int) -> FinishedJob:
        """The job that makes version ``number`` out of ``version``, started where it was not.

        Raises:
            ConfigError: Azure does not take the key, the model or the file.
            AlgorithmError: The job failed, or Azure did; run again to go on.
        """
        entry = self.started(number)
        if entry is None:
            entry = await self._start(content, version, number)
        try:
            job = await self._service.wait_for_job(entry["job_id"])
        except JobFailedError:
            self._notes.append("job failed", version=number, job_id=entry["job_id"])
            await self._delete_file(entry["file_id"])
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
            file_id = await self._service.upload(name, content)
            uploaded = notes.append("uploaded", version=number, round=round_, file_id=file_id)
        file_id = uploaded["file_id"]
        await self._service.wait_for_file(file_id)
        job_id = await self._service.start_job(
            model=version.ref,
            training_file=file_id,
            suffix=f"{self._options.suffix}-v{number:02d}",
            hyperparameters=self._hyperparameters(),
            seed=self._seed,
        )
        logger.info("iteration %d: fine-tuning job %s trains %s", number, job_id, version.ref)
        return notes.append("job", version=number, round=round_, job_id=job_id, file_id=file_id)

    def _hyperparameters(self) -> dict[str, Any]:
        # Always with epochs: left to Azure, nobody could say before what a job costs.
        given = {
            "n_epochs": self._options.epochs,
            "batch_size": self._options.batch_size,
            "learning_rate_multiplier": self._options.learning_rate_multiplier,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _round(self, number: int) -> int:
        """How many jobs of a version have failed, or were of rollouts that were given up."""
        failed = len(self._notes.all("job failed", version=number))
        return failed + self._records.round("train", number - 1)

    async def _delete_file(self, file_id: str) -> None:
        deleted = self._notes.last("file deleted", file_id=file_id)
        if not self._options.keep_files and deleted is None:
            await self._service.delete_file(file_id)
            self._notes.append("file deleted", file_id=file_id)
