"""What a training server answers: to each user about their own data, jobs and checkpoints."""

import asyncio
import json
import logging
import os
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from fastapi import Body as Content, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from pydantic import Field
from starlette.background import BackgroundTask

from agl.errors import AglError, ConfigError, UnknownRecordError
from agl_http.layers import GRANT, App, Authenticated, ErrorGuard, WholeBody
from agl_http.tokens import Tokens, token_in
from agl_http.wire import Body, sentence_of, status_of
from agl_runs.folders import STORE, known_run
from agl_runs.records import RunId
from agl_service import data as files
from agl_service.forwarding import Forwarding
from agl_service.job_options import JobRequest, options_of
from agl_service.jobs import RESULT, RUN, Job, Jobs, metrics_of
from agl_service.settings import Settings
from agl_service.users import read_users

logger = logging.getLogger("agl.service")
ABSENT = "agl_runs.environments:AbsentAgent"
"""The agent of a job, which is at its client."""
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Piece = Annotated[bytes, Content(media_type="application/octet-stream")]


class _Data(Body):
    train: Digest
    test: Digest | None = None
    id: RunId | None = None


def _user(request: Request) -> str:
    return request.scope[GRANT]


User = Annotated[str, Depends(_user)]


def app_of(jobs: Jobs, settings: Settings) -> App:
    """The application."""
    slow = ThreadPoolExecutor(2, "agl-service")
    api = FastAPI(title="Training server of agl", exception_handlers=_ANSWERS)

    @api.put("/files/{digest}")
    def put_piece(user: User, digest: Digest, offset: int, piece: Piece = b"") -> int:
        return files.add_piece(jobs.folder / user, digest, offset, piece)

    @api.post("/data")
    def upload(user: User, data: _Data) -> str:
        return files.add_data(jobs.folder / user, data.train, data.test, data.id)

    @api.get("/data")
    def list_data(user: User) -> list[dict[str, Any]]:
        found = files.all_data(jobs.folder / user)
        return [{"id": name, **asdict(record)} for name, record in found.items()]

    @api.delete("/data/{data_id}")
    def delete(user: User, data_id: RunId) -> None:
        files.delete_data(jobs.folder / user, data_id)

    @api.post("/jobs")
    def begin(user: User, asked: JobRequest) -> dict[str, Any]:
        request = sha256(asked.model_dump_json().encode()).hexdigest()
        if (known := jobs.made_by(user, asked.id, request)) is not None:
            return job_view(known, has_workers=True)
        if exceeded := jobs.exceeded_quota(user):
            raise ConfigError(exceeded)
        data = files.data_of(jobs.folder / user, asked.data)
        if data.error:
            raise ConfigError(f"data {asked.data!r}: {data.error}")
        options, steps = options_of(asked, data, settings)
        source = asked.checkpoint and checkpoint_of(user, *asked.checkpoint.split("/", 1))
        about = asked.id, user, asked.kind, steps, time.time(), secrets.token_urlsafe(), request
        job = Job(*about, checkpoint=asked.checkpoint)
        config: dict[str, Any] = {"agent": ABSENT, "algorithm": options}
        config |= files.link_files(jobs.folder / user, data, jobs.folder_of(job))
        if source:
            options["model"] = str(jobs.folder_of(job) / "model")
            _link(source, Path(options["model"]))
        return job_view(jobs.add(job, config), has_workers=True)

    @api.get("/jobs")
    def list_jobs(user: User) -> list[dict[str, Any]]:
        return [job_view(job) for job in jobs.all(user)]

    @api.get("/jobs/{job_id}")
    def get(user: User, job_id: str, has_workers: bool = False) -> dict[str, Any]:
        if has_workers:
            jobs.note_seen(jobs.get(user, job_id))
        return job_view(jobs.get(user, job_id), has_workers=has_workers)

    @api.post("/jobs/{job_id}/stop")
    def stop(user: User, job_id: str) -> None:
        before = "queued", "running", "paused"
        jobs.change(jobs.get(user, job_id), "stopped", *before, error="its user did so")

    @api.post("/jobs/{job_id}/queue")
    def queue(user: User, job_id: str) -> None:
        if (job := jobs.get(user, job_id)).state in ("stopped", "failed"):
            if exceeded := jobs.exceeded_quota(user):
                raise ConfigError(exceeded)
            jobs.note_seen(job)
            jobs.change(job, "queued", "stopped", "failed")

    @api.post("/jobs/{job_id}/model-token")
    def model_token(user: User, job_id: str, rollout_id: str, attempt_id: str) -> str:
        return Tokens(jobs.get(user, job_id).token).issue("model", rollout_id, attempt_id)

    @api.get("/jobs/{job_id}/checkpoints/{name}/{file}")
    def download(user: User, job_id: str, name: str, file: str) -> Response:
        folder = checkpoint_of(user, job_id, name)
        if file not in _files(folder):
            raise UnknownRecordError(f"checkpoint {name!r} has no file {file!r}")
        return FileResponse(folder / file)

    @api.get("/jobs/{job_id}/trajectories")
    async def export(user: User, job_id: str) -> Response:
        return await in_turn(_trajectories, *stored(user, job_id, "trajectories"))

    @api.get("/jobs/{job_id}/run")
    async def pack(user: User, job_id: str) -> Response:
        return await in_turn(_run, *stored(user, job_id, "run"))

    async def in_turn(make: Callable[..., Path], *about: Any) -> Response:
        """What takes long and a process keeps no other request waiting."""
        made = await asyncio.get_running_loop().run_in_executor(slow, make, *about)
        return FileResponse(made, background=BackgroundTask(made.unlink))

    def stored(user: str, job_id: str, what: str) -> tuple[Path, Path, str, str]:
        """Folder, run, store and kind of a job whose run has begun."""
        job = jobs.get(user, job_id)
        run = jobs.run_of(job)
        if not run.is_dir() or not (job.store or (run / STORE).is_file()):
            raise ConfigError(f"job {job_id!r} has no {what} yet")
        return jobs.folder_of(job), run, job.store or str(run / STORE), job.kind

    def job_view(job: Job, *, has_workers: bool = False) -> dict[str, Any]:
        """What a user sees of a job; who works for it, its store and a token, too."""
        run, result = jobs.folder_of(job) / RUN, jobs.folder_of(job) / RESULT
        metrics, checkpoints = metrics_of(run), _checkpoints(run)
        of_step = {f"step-{step:06d}": reward for step, reward in metrics.val_rewards.items()}
        named = ((one.name, of_step.get(one.name)) for one in checkpoints)
        measured = {name: reward for name, reward in named if reward is not None}
        state, error, evaluation = job.state, job.error, None
        if state == "running" and not jobs.is_claimed(job):
            state = "queued"
        if (job.kind, state) == ("evaluate", "finished"):
            try:
                evaluation = json.loads(result.read_bytes())
            except (OSError, ValueError):
                state, error = "failed", f"{result} is damaged; evaluate again"
        path, token = f"/runs/{job.user}/{job.id}", Tokens(job.token).issue("runner")
        return {
            **{name: getattr(job, name) for name in ("id", "kind", "steps", "created")},
            "state": state,
            "error": error,
            "step": int(state == "finished") if job.kind == "evaluate" else metrics.step or 0,
            "train_rewards": [metrics.rewards.get(at + 1) for at in range(metrics.step or 0)],
            "test_rewards": list(metrics.val_rewards.values()),
            "checkpoints": {at.name: names for at in checkpoints if (names := _files(at))},
            "best": max(measured, key=measured.__getitem__, default=""),
            "seconds": metrics.total("time/step") or 0.0,
            "run": (known_run(run) or ("",))[0],
            "evaluation": evaluation,
            "checkpoint": job.checkpoint or "base",
            **({"path": path, "token": token} if has_workers else {}),
        }

    def checkpoint_of(user: str, job_id: str, name: str = "") -> Path:
        for folder in _checkpoints(jobs.folder_of(jobs.get(user, job_id)) / RUN):
            if folder.name == name:
                return folder
        raise UnknownRecordError(f"job {job_id!r} has no checkpoint {name!r}; see: client.jobs()")

    def address_of(user: str, job_id: str, which: str) -> str:
        if (own := jobs.own.get((user, job_id))) is not None:
            return f"http://127.0.0.1:{own.ports[which]}"
        with suppress(UnknownRecordError):
            job = jobs.get(user, job_id)
            if job.server != jobs.address and job.state == "running" and jobs.is_claimed(job):
                return f"{job.server}/runs/{user}/{job_id}/{which}"
        return ""

    def user_of(authorization: bytes) -> str | None:
        return read_users(jobs.folder).get(token_in(authorization))

    whole = WholeBody(api, 2 * files.PIECE_BYTES)
    own = Authenticated(whole, user_of, frozenset())
    return ErrorGuard(Forwarding(own, address_of), lambda *_: None)


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        return JSONResponse({"detail": sentence_of(error.errors())}, 422)
    if isinstance(error, AglError):
        answer = {"detail": str(error), "error_type": type(error).__name__}
        return JSONResponse(answer, status_of(error))
    logger.error("%s %r failed", request.method, request.url.path, exc_info=error)
    return JSONResponse({"detail": "internal error; see the server's log"}, 500)


_ANSWERS: Any = dict.fromkeys((RequestValidationError, AglError, Exception), _answer)


def _trajectories(folder: Path, run: Path, store: str, kind: str) -> Path:
    """A file for ``read_trajectories``."""
    out = folder / f"export-{secrets.token_hex(8)}.jsonl"
    words = ["export", "--as", "sft", "--credit", "per_call", "-o", str(out)]
    words += ["--url" if "://" in store else "--path", store]
    _agl([*words, *(["--mode", "train"] if kind == "train" else [])])
    return out


def _run(folder: Path, run: Path, store: str, kind: str) -> Path:
    """An archive of a run as it is now, without checkpoints."""
    out = folder / f"run-{secrets.token_hex(8)}.tar"
    with TemporaryDirectory(dir=folder) as name:
        copy, packed = Path(name, STORE), Path(name, out.name)
        if "://" in store:
            _agl(["store", "copy", store, str(copy)])
        else:
            store = f"{Path(store).as_uri()}?mode=ro"  # else SQLite would make one that is missing
            of, to = sqlite3.connect(store, uri=True), sqlite3.connect(copy)
            with closing(of), closing(to):
                of.backup(to)
        with tarfile.open(packed, "w") as tar:
            for file in (copy, *run.iterdir()):
                if file.is_file() and (file == copy or not file.name.startswith(STORE)):
                    tar.add(file, file.name)
        return packed.rename(out)


def _agl(words: list[str]) -> None:
    """Run a command whose words nobody else of this machine sees, as they may have a password."""
    told = "import sys; from agl.cli import main; main(sys.stdin.read().splitlines())"
    about: dict[str, Any] = {"input": "\n".join(words), "capture_output": True, "text": True}
    ended = subprocess.run([sys.executable, "-c", told], **about)
    if ended.returncode:
        raise ConfigError(f"agl {words[0]}: {ended.stderr.strip()}")


def _checkpoints(run: Path) -> list[Path]:
    return sorted(run.glob("checkpoints/step-*"))


def _files(checkpoint: Path) -> list[str]:
    """Without what serves only to go on with the training; none if its job has just removed it."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return [one.name for one in checkpoint.iterdir() if one.is_file() and one.suffix != ".pt"]
    return []


def _link(checkpoint: Path, folder: Path) -> None:
    """Link its files, as the training that goes on may remove it."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(checkpoint, partial, copy_function=os.link)
    except (FileNotFoundError, shutil.Error):
        raise UnknownRecordError(f"checkpoint {checkpoint.name!r} was just removed") from None
    if not folder.exists():  # the server was killed, and is asked again
        partial.rename(folder)
