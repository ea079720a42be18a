"""The client of a training server."""

import os
import re
import secrets
import tarfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import requests
from pydantic_core import PydanticSerializationError, to_json
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from agl.cli.shared import note
from agl.errors import AglError, DatasetError, UnknownRecordError
from agl_http.tokens import without_token
from agl_http.wire import error_of
from agl_learning.reports.progress_bar import Bar
from agl_runs.config.datasets import load_dataset
from agl_runs.folders import new_run_id
from agl_service.data import PIECE_BYTES, check_tasks
from agl_service.errors import (
    AuthenticationError,
    DataUploadError,
    InvalidConfigError,
    ServerConnectionError,
    TrainingError,
)
from agl_service.onnx import export_onnx, onnx_exporter
from agl_service.results import EvalResult, TrainingResult, evaluation_of, training_of
from agl_service.runtime import air, runtime_config
from agl_service.trajectories import Trajectory, read_trajectories
from agl_service.workers import Agent, Workers

POLL_SECONDS = 0.5


class Client:
    """Trains the model of a training server, with agents that run here.

    Every method raises ``ServerConnectionError`` if the server gives no answer or does not know the
    user, and ``InvalidConfigError`` if it refuses an option.

    Args:
        server_url: As ``agl server start`` prints it; None reads ``AGENT_LIGHTNING_SERVER_URL``.
            The token of the user stands in it, or in ``AGENT_LIGHTNING_API_KEY``.
        timeout: Seconds that a request may take, and the server be away while a job runs.
        max_retries: How often a request that gets no answer is repeated.
        verify_ssl: Whether the certificate of an ``https`` address is checked.

    Raises:
        InvalidConfigError: It is no address.
    """

    def __init__(
        self,
        server_url: str | None = None,
        timeout: int = 300,
        max_retries: int = 3,
        verify_ssl: bool = True,
    ) -> None:
        url = server_url or os.environ.get("AGENT_LIGHTNING_SERVER_URL", "")
        if not url.startswith(("http://", "https://")):
            raise InvalidConfigError(
                f"server_url={url!r}: expected http://HOST:PORT, as agl server start prints it; it "
                "may stand in AGENT_LIGHTNING_SERVER_URL"
            )
        self._url, token = without_token(url.rstrip("/"))
        token = token or os.environ.get("AGENT_LIGHTNING_API_KEY", "")
        self.timeout, self._session, self._data = timeout, requests.Session(), ""
        # As the agents' client and store take it; requests has a variable of its own.
        self._verify, self._token = verify_ssl and (os.environ.get("SSL_CERT_FILE") or True), token
        self._session.auth = self._sign  # or that of .netrc would take the place
        retry = Retry(max_retries, backoff_factor=0.2, allowed_methods=None)
        self._session.mount("http", HTTPAdapter(max_retries=retry))

    def upload_data(
        self, train_file: str, test_file: str | None = None, data_id: str | None = None
    ) -> str:
        """Upload tasks: JSONL, JSON, CSV or Parquet; each has a field ``question``.

        JSONL is read and sent in pieces. An upload that broke off goes on where it was.

        Returns:
            Their id, by default one of the content.

        Raises:
            DataUploadError: A file was refused; the message names the line.
        """
        self._data = self._upload(train_file, test_file, data_id)
        return self._data

    def data(self) -> list[dict[str, Any]]:
        """Your data: ``id``, ``train_tasks``, ``test_tasks``, ``created``, ``error``."""
        return self._ask("GET", "/data")

    def delete_data(self, data_id: str) -> None:
        """Delete data; jobs keep the tasks with which they began."""
        self._ask("DELETE", f"/data/{data_id}")

    def train(
        self,
        agent_func: Agent,
        nworkers: int = -1,
        epochs: int = 1,
        batch_size: int = 32,
        data_id: str | None = None,
        checkpoint_dir: str | None = None,
        eval_interval: int = 50,
    ) -> TrainingResult:
        """Train; Ctrl+C leaves the job at the server, see ``attach``.

        Args:
            agent_func: Of ``(resource, task)``, plain or coroutine; returns the reward.
            nworkers: Processes that run it; -1 for four per core.
            epochs: Passes over the training tasks.
            batch_size: Tasks per update; each runs ``group_size`` times, as the server says.
            data_id: None for what was uploaded last.
            checkpoint_dir: Where checkpoints are downloaded to at the end.
            eval_interval: Updates from one evaluation on the test tasks to the next.

        Raises:
            TrainingError: The training failed or was stopped.
        """
        workers = self._workers(agent_func, nworkers)
        options: dict[str, Any] = {
            "epochs": epochs,
            "batch_size": batch_size,
            "eval_interval": eval_interval,
            "air": runtime_config().air_enabled and bool(air.rules),
        }
        result = training_of(self._follow(self._begin("train", data_id, **options), workers))
        if checkpoint_dir is None:
            return result
        folders = {name: str(Path(checkpoint_dir, Path(name).name)) for name in result.checkpoints}
        for name, folder in folders.items():
            self.download_model(folder, name)
        return replace(result, checkpoints=list(folders.values()))

    def attach(
        self, job: str, agent_func: Agent | None = None, nworkers: int = -1
    ) -> TrainingResult | EvalResult:
        """Take up a job that was left, failed or was stopped; without an agent, look on.

        See ``train``, ``evaluate``.
        """
        workers = None if agent_func is None else self._workers(agent_func, nworkers)
        if workers:
            self._ask("POST", f"/jobs/{job}/queue")
        found = self._follow(job, workers)
        return training_of(found) if found["kind"] == "train" else evaluation_of(found)

    def evaluate(
        self,
        agent_func: Agent,
        test_file: str | None = None,
        checkpoint: str | None = None,
        nworkers: int = 4,
    ) -> EvalResult:
        """Run an agent on each test task once; for ``agent_func``, ``nworkers`` see ``train``.

        Args:
            test_file: None for the test tasks uploaded last, also by another client of the user,
                or training tasks if it had none.
            checkpoint: See ``download_model``, or ``base``, the model before any training. None for
                ``latest``, or ``base`` if nothing was trained.

        Raises:
            TrainingError: The evaluation failed or was stopped, or there is no such checkpoint.
        """
        workers = self._workers(agent_func, nworkers)
        if test_file is not None:
            data = self._upload(test_file)
        elif not (data := self._data) and (known := self.data()):
            data = max(known, key=lambda one: one["created"])["id"]
        if checkpoint is None:
            checkpoint = "latest" if any(job["checkpoints"] for job in self.jobs()) else "base"
        name = None if checkpoint == "base" else "/".join(self._checkpoint(checkpoint)[:2])
        job = self._begin("evaluate", data, checkpoint=name)
        return evaluation_of(self._follow(job, workers))

    def download_model(
        self, output_dir: str, checkpoint: str = "latest", format: str = "huggingface"
    ) -> None:
        """Write a checkpoint into a folder, as ``transformers`` and vLLM load it.

        Args:
            output_dir: Made if it is not there.
            checkpoint: Of a result; or ``latest``, or ``best`` by evaluations, of the newest job.
            format: ``huggingface`` or ``safetensors``, which are the same here; or ``onnx``, which
                optimum's ``optimum-cli`` writes here: with the tokenizer, for generation.

        Raises:
            InvalidConfigError: Another format, or there is no ``optimum-cli``.
            TrainingError: There is no such checkpoint, or it could not be converted.
        """
        if format not in ("huggingface", "safetensors", "onnx"):
            raise InvalidConfigError(
                f"format={format!r}: expected huggingface, safetensors or onnx"
            )
        if format == "onnx":
            exporter = onnx_exporter()
            with TemporaryDirectory() as folder:
                self.download_model(folder, checkpoint)
                export_onnx(exporter, folder, output_dir)
            return
        job, name, files = self._checkpoint(checkpoint)
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        for file in files:
            answer = self._request("GET", f"/jobs/{job}/checkpoints/{name}/{file}")
            partial = Path(output_dir, f".{file}.partial")
            with _connection_errors(self._url), partial.open("wb") as out:
                out.writelines(answer.iter_content(2**20))
            partial.replace(Path(output_dir, file))

    def jobs(self) -> list[dict[str, Any]]:
        """Your jobs, the oldest first: ``id``, ``kind``, ``state``, ``step``, rewards."""
        return self._ask("GET", "/jobs")

    def trajectories(self, job: str) -> Iterator[Trajectory]:
        """What the agents of a training did, rollout by rollout."""
        answer = self._request("GET", f"/jobs/{job}/trajectories")
        with _connection_errors(self._url):
            yield from read_trajectories(answer.iter_lines())

    def download_run(self, job: str, output_dir: str) -> None:
        """Write a job's run, as it is now, into a folder: for ``agl ui``, ``agl ledger``.

        It has store, metrics and configuration, and no checkpoints; see ``download_model``.
        """
        answer = self._request("GET", f"/jobs/{job}/run")
        with _connection_errors(self._url), tarfile.open(fileobj=answer.raw, mode="r|") as tar:
            tar.extractall(output_dir, filter="data")

    def stop(self, job: str) -> None:
        """Stop a job; its checkpoints stay."""
        self._ask("POST", f"/jobs/{job}/stop")

    def _upload(self, train: str, test: str | None = None, name: str | None = None) -> str:
        sent = self._send(test) if test else None
        return self._ask("POST", "/data", {"train": self._send(train), "test": sent, "id": name})

    def _send(self, given: str) -> str:
        """The digest of a file of tasks, which is at the server then."""
        with TemporaryDirectory() as folder:
            try:
                file = Path(given)
                if file.suffix not in (".jsonl", ".ndjson") or not file.is_file():
                    tasks, file = load_dataset(file), Path(folder, "tasks.jsonl")
                    with file.open("wb") as out:  # a date, as Parquet has, is a text then
                        out.writelines(b"%s\n" % to_json(task) for task in tasks)
                unit = "line" if file == Path(given) else "task"
                digest, _ = check_tasks(file, given, unit)
            except DatasetError as error:
                raise DataUploadError(str(error)) from None
            except PydanticSerializationError as error:
                raise DataUploadError(f"{given}: a task is no JSON: {error}") from None
            where = f"/files/{digest}"
            with file.open("rb") as content:
                received = self._ask("PUT", f"{where}?offset=0", b"")
                while received < file.stat().st_size:
                    content.seek(received)
                    piece = content.read(PIECE_BYTES)
                    received = self._ask("PUT", f"{where}?offset={received}", piece)
        return digest

    def _begin(self, kind: str, data: str | None, **options: Any) -> str:
        if not (data := data or self._data):
            raise InvalidConfigError("which data? Call upload_data first, or give data_id")
        # The server takes two requests with one id for the same one.
        body = {"id": new_run_id() + secrets.token_hex(4), "kind": kind, "data": data, **options}
        limits = runtime_config()
        body |= {"max_retries": limits.max_retries, "timeout": limits.timeout}
        return self._ask("POST", "/jobs", body)["id"]

    def _workers(self, agent: Agent, number: int) -> Workers:
        """Made before a job begins, so that a wrong option leaves no job behind."""
        if not callable(agent):
            raise InvalidConfigError(f"expected a function of (resource, task), got {agent!r}")
        try:
            with suppress(ValueError):  # a function in C says nothing of itself
                signature(agent).bind(None, None)
        except TypeError as error:
            raise InvalidConfigError(f"{agent!r}: expected (resource, task): {error}") from None
        if number < 1 and number != -1:
            raise InvalidConfigError(f"nworkers={number}: expected 1 or more, or -1, four per core")
        return Workers(agent, number, self._url)

    def _follow(self, job_id: str, workers: Workers | None) -> dict[str, Any]:
        """The job at its end; the workers run its agent meanwhile."""
        where = f"/jobs/{job_id}{'?has_workers=1' if workers else ''}"
        job, said, answered = self._ask("GET", where), "", time.monotonic()
        try:
            with Bar(job["kind"], job["steps"], reward="") as bar:
                while (state := job["state"]) in ("queued", "running", "paused", "away"):
                    if said != state:
                        note(f"job {job_id}: {(said := state)}")
                    if workers and state == "running":
                        workers.keep(job["path"], job["token"])
                    bar.update(job["step"], reward=f"reward {[None, *job['train_rewards']][-1]}")
                    time.sleep(POLL_SECONDS)
                    try:
                        job, answered = self._ask("GET", where), time.monotonic()
                    except AuthenticationError:
                        raise
                    except ServerConnectionError:  # it may be starting again
                        if time.monotonic() - answered > self.timeout:
                            raise
                        job["state"] = "away"
        except BaseException as ended:
            note(f"job {job_id} stays; to go on: client.attach({job_id!r}, agent)")
            if isinstance(ended, KeyboardInterrupt):
                raise KeyboardInterrupt from None  # without all that was asked in this moment
            raise
        finally:
            if workers:
                workers.end(at_once=job["state"] in ("finished", "failed", "stopped"))
        if job["state"] != "finished":
            raise TrainingError(f"job {job_id} {job['state']}: {job['error']}")
        return job

    def _checkpoint(self, given: str) -> tuple[str, str, list[str]]:
        """Job, name and files of a checkpoint."""
        job_id, _, name = given.removeprefix("checkpoints/").rpartition("/")
        trained = [one for one in self.jobs() if one["checkpoints"]]
        for job in [one for one in trained if job_id in ("", one["id"])][-1:]:
            there = job["checkpoints"]
            name = {"latest": list(there)[-1], "best": job["best"]}.get(name, name)
            name = re.sub(r"\d+$", lambda digits: digits[0].zfill(6), name)
            if name in there:
                return job["id"], name, there[name]
        known = ", ".join(f"{one['id']}/{name}" for one in trained for name in one["checkpoints"])
        if given.endswith("best") and known:
            known += " (the best one is known where evaluations on test tasks have measured some)"
        raise TrainingError(f"no checkpoint {given!r}; there are: {known or 'none, train first'}")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        with _connection_errors(self._url):
            return self._request(method, path, body).json()

    def _sign(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    def _request(self, method: str, path: str, body: Any = None) -> requests.Response:
        about: dict[str, Any] = {"timeout": self.timeout, "stream": True, "verify": self._verify}
        if isinstance(body, bytes):
            about |= {"data": body, "headers": {"Content-Type": "application/octet-stream"}}
        else:
            about["json"] = body
        with _connection_errors(self._url):
            answer = self._session.request(method, self._url + path, **about)
            if answer.ok:
                return answer
            said = answer.json() if "json" in answer.headers.get("Content-Type", "") else None
        error = error_of(answer.status_code, said, self._url)
        if answer.status_code == 401:
            raise AuthenticationError(
                f"{self._url}: the token is missing or was refused. That of a user stands in the "
                "address that agl server prints, or in AGENT_LIGHTNING_API_KEY"
            )
        if answer.status_code >= 500:
            raise ServerConnectionError(str(error))
        kinds: dict[type[AglError], type[AglError]]
        kinds = {DatasetError: DataUploadError, UnknownRecordError: TrainingError}
        raise kinds.get(type(error), InvalidConfigError)(str(error))


@contextmanager
def _connection_errors(url: str) -> Generator[None]:
    """A block in which a server has to answer, to the end."""
    try:
        yield
    except requests.RequestException as failure:
        raise ServerConnectionError(
            f"{url}: no answer, or no whole one ({failure}). If no server runs: agl server start"
        ) from None
