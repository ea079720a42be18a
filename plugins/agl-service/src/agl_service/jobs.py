"""Jobs: records in the folder of training servers, each run in a process of its own."""

import asyncio
import json
import logging
import os
import re
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any, Literal

import psutil
from pydantic import TypeAdapter

from agl.errors import ConflictError, StoreUnavailableError, UnknownRecordError
from agl.plugins.parts import plan_part
from agl_http.server import address_of, bind
from agl_learning.reports.run_metrics import RunMetrics
from agl_processes.tree import kill_descendants
from agl_runs.config.file import as_yaml
from agl_runs.files import make_private_folder, write_whole
from agl_runs.folders import RUNS
from agl_runs.options import AboveZero, Count
from agl_sqlite.lockfile import HeldError, LockFile, is_taken, lock_of

logger = logging.getLogger("agl.service")

Kind = Literal["train", "evaluate"]
State = Literal["queued", "running", "paused", "stopped", "finished", "failed", "damaged"]
RECORD, CONFIG, RUN, RESULT, LOG = "job.json", "job.yaml", "run", "result.json", "log.txt"
"""In the folder of a job; RESULT is what an evaluation printed."""
COMMANDS: dict[Kind, list[str]] = {
    "train": ["run", CONFIG, f"run_dir={RUN}", "--resume"],
    "evaluate": ["eval", CONFIG, "--copies", "1", "--json"],
}
HOST, PORTS = "127.0.0.1", {"store": "strategy.server_port", "model": "gateway.port"}
CLAIM, LOCK, SEEN = "claim.lock", "process.lock", "seen"
"""In its folder, too: the lock of the server that runs it, that of its process, and a file that is
touched when its client asks."""
POLL_SECONDS, IDLE_SECONDS = 0.2, 0.5
END_SECONDS = 30.0
"""For the process of a job that is told to end: it saves a checkpoint."""
PAUSE_SECONDS = 60.0
"""A job whose client has been away for so long makes room for the next one."""
AWAY = "its client is away; it goes on when the client is back"


@dataclass(frozen=True)
class Job:
    """A training or an evaluation of a user, as its record was when it was read."""

    id: str
    user: str
    kind: Kind
    steps: int
    created: float
    token: str
    """Of an admin of the store of its run."""
    request: str
    """Digest of what was asked; the same request may come twice."""
    ports: dict[str, int] = field(default_factory=dict[str, int])
    """Where the ``store`` of its run and its ``model``, the gateway, listen at this start."""
    server: str = ""
    """The address of the server that runs it, for other servers."""
    starts: int = 0
    """How often a server has begun to run it."""
    store: str = ""
    """The address of the store of its run; "" for the file in the folder of the run."""
    state: State = "queued"
    error: str = ""
    checkpoint: str | None = None
    """That it evaluates."""


@dataclass(frozen=True)
class Quotas:
    """What all jobs of a user may use together; None is without limit."""

    rollouts: Count | None = None
    tokens: Count | None = None
    """That the model read and wrote."""
    seconds: AboveZero | None = None
    """Of updates."""


COUNTED = {
    "rollouts": ("rollouts/succeeded", "rollouts/failed"),
    "tokens": ("tokens/sampled", "tokens/given"),
    "seconds": ("time/step",),
}
"""Quota -> metrics that are counted; their run writes them after each update and evaluation."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_check = TypeAdapter(Job).validate_json


def read_job(record: Path) -> Job:
    """The job of a record, which may be damaged."""
    return _parse(record, record.read_bytes())


@lru_cache(10_000)
def _parse(record: Path, written: bytes) -> Job:
    user, _, job_id = record.parts[-4:-1]
    try:
        return _check(written)
    except ValueError:
        damaged = f"{record} is damaged; restore that file, or delete its folder"
        logger.error("job %s of %s: %s", job_id, user, damaged)
        token = secrets.token_urlsafe()
        return Job(job_id, user, "train", 0, 0.0, token, "", state="damaged", error=damaged)


def metrics_of(run: Path) -> RunMetrics:
    """The metrics in the folder of a run, which are read again only when they have changed."""
    file = run / RunMetrics.FILE
    about = file.stat() if file.exists() else None
    return _metrics_of(run, about and (about.st_mtime_ns, about.st_size))


@lru_cache(1000)
def _metrics_of(run: Path, stamp: tuple[int, int] | None) -> RunMetrics:
    return RunMetrics.read(run)


class Jobs:
    """The jobs in the folder of servers; stores and gateways of their runs listen on 127.0.0.1.

    Args:
        folder: Made if it is not there. Several servers may use it, also on several machines.
        at_once: How many of them run in processes of this server.
        quotas: Of each user.
        store: The database in which each run gets a schema of its own; "" for files.
        address: Of this server, for the others.
    """

    def __init__(
        self,
        folder: Path,
        at_once: int = 1,
        quotas: Quotas | None = None,
        store: str = "",
        address: str = "",
    ) -> None:
        make_private_folder(folder)
        self.folder, self.address, self._store = folder, address, store
        self._lock = lock_of(folder)
        self._at_once, self._quotas = at_once, asdict(quotas or Quotas())
        self._begun = time.time()
        self.own: dict[tuple[str, str], Job] = {}
        """Those that this server runs, by user and id."""

    def folder_of(self, job: Job) -> Path:
        """Where its record, log and run are."""
        return self.folder / job.user / "jobs" / job.id

    def run_of(self, job: Job) -> Path:
        """The folder of its run, of an evaluation the newest; it may not be there yet."""
        folder = self.folder_of(job)
        return max(folder.glob(f"{RUNS}/*"), default=folder / RUN)

    def all(self, user: str) -> list[Job]:
        """The jobs of a user, the oldest first."""
        return sorted(self._read(user), key=lambda job: job.created)

    def _read(self, users: str) -> Iterator[Job]:
        for record in self.folder.glob(f"{users}/jobs/*/{RECORD}"):
            with suppress(OSError):  # it vanished, or cannot be read: who asks for it is told
                yield read_job(record)

    def get(self, user: str, job_id: str) -> Job:
        """A job of a user, else an ``UnknownRecordError``."""
        if all(map(NAME.fullmatch, (user, job_id))):
            with suppress(FileNotFoundError):
                return read_job(self.folder / user / "jobs" / job_id / RECORD)
        raise UnknownRecordError(f"you have no job {job_id!r}; see: client.jobs()")

    def made_by(self, user: str, job_id: str, request: str) -> Job | None:
        """The job that an equal request has made; a ``ConflictError`` if another one has."""
        try:
            known = self.get(user, job_id)
        except UnknownRecordError:
            return None
        if known.request != request:
            raise ConflictError(f"job {job_id!r} was asked for with other options; use a new id")
        return known

    def add(self, job: Job, config: dict[str, Any]) -> Job:
        """Put a job behind the others; ``config`` is that of its run, without addresses.

        Returns:
            The job, or the one that this request made before.
        """
        with self._lock:
            if (known := self.made_by(job.user, job.id, job.request)) is not None:
                return known
            config["strategy"] = {"type": "cs", "role": "algorithm"}
            # The same at each start, so that clients may keep what they know of the model.
            config["gateway"] = {"type": "proxy", "api_key": secrets.token_urlsafe()}
            if self._store:
                schema = "job_" + sha256(f"{job.user}/{job.id}".encode()).hexdigest()[:24]
                option = f"{'&' if '?' in self._store else '?'}options=-csearch_path%3D{schema}"
                config["store"] = self._store + option
                job = replace(job, store=config["store"])
            write_whole(self.folder_of(job) / CONFIG, as_yaml(config))
            (self.folder_of(job) / SEEN).touch()
            write_whole(self.folder_of(job) / RECORD, json.dumps(asdict(job)))
        return job

    def change(
        self, job: Job, state: State, *before: State, error: str = "", **more: Any
    ) -> Job | None:
        """Note a new state, and more, unless the job has got another one than those before.

        Returns:
            The job; None if nothing was changed.
        """
        with self._lock:
            now = self.get(job.user, job.id)
            if before and now.state not in before:
                return None
            now = replace(now, state=state, error=error, **more)
            write_whole(self.folder_of(job) / RECORD, json.dumps(asdict(now)))
            return now

    def is_claimed(self, job: Job) -> bool:
        """Whether a server runs it: the record says "running" of what a killed one ran, too."""
        return is_taken(self.folder_of(job) / CLAIM)

    def note_seen(self, job: Job) -> None:
        """A client works for the job; if it was paused, it waits for its turn again."""
        (self.folder_of(job) / SEEN).touch()
        if job.state == "paused":
            self.change(job, "queued", "paused")

    def exceeded_quota(self, user: str) -> str:
        """Which quota a user has reached; "" for none."""
        for name, limit in self._quotas.items():
            if limit is None:
                continue
            folders = [self.folder_of(job) for job in self.all(user)]
            runs = [run for one in folders for run in (one / RUN, *one.glob(f"{RUNS}/*"))]
            used = sum(metrics_of(run).total(*COUNTED[name]) or 0 for run in runs)
            if used >= limit:
                return f"user {user!r} has reached the quota of {name}: {used:g} of {limit:g}"
        return ""

    def run_all(self, stop: Event) -> None:
        """Run jobs until told to stop; what runs then goes on at the next start."""
        with ThreadPoolExecutor(self._at_once) as pool:
            turns = [pool.submit(self._run_in_turn, stop) for _ in range(self._at_once)]
            while wait(turns, 1.0).not_done:  # so that a signal which another thread got is seen
                pass

    def _run_in_turn(self, stop: Event) -> None:
        while not stop.wait(IDLE_SECONDS):
            try:
                self._run_next(stop)
            except Exception:  # as if the disk is full
                logger.exception("no job could be begun in %s", self.folder)
                stop.wait(10 * IDLE_SECONDS)

    def _run_next(self, stop: Event) -> None:
        """Run what a killed server ran, else a job of a user with the fewest that run."""
        waits: list[Job] = []
        runs: Counter[str] = Counter()
        for job in self._read("*"):
            if job.state != "finished" and self.is_claimed(job):
                runs[job.user] += 1
            elif job.state in ("running", "queued"):
                waits.append(job)
        if not waits:
            return
        job = min(waits, key=lambda job: (job.state != "running", runs[job.user], job.created))
        # What another server or turn was faster to claim counts at the next look.
        with suppress(HeldError), ExitStack() as claimed:
            claimed.callback(LockFile(self.folder_of(job) / CLAIM).release)
            if self.get(job.user, job.id).state in ("running", "queued"):
                try:
                    self._run(job, stop)
                except Exception as error:
                    logger.exception("job %s of %s failed", job.id, job.user)
                    with suppress(UnknownRecordError):  # its folder was deleted
                        self.change(job, "failed", "queued", "running", error=str(error))

    def _run(self, job: Job, stop: Event) -> None:
        folder = self.folder_of(job)
        while is_taken(folder / LOCK):
            if stop.wait(POLL_SECONDS):  # the process of a server that was killed ends soon
                return
        # While no server ran, a client could not be seen.
        if time.time() - max(self._begun, (folder / SEEN).stat().st_mtime) > PAUSE_SECONDS:
            self.change(job, "paused", "queued", "running", error=AWAY)
            return
        # Kept until the process has ended, that nobody else gets these ports.
        with bind(HOST, 0, listen=False) as store, bind(HOST, 0, listen=False) as model:
            ports = {"store": address_of(store)[1], "model": address_of(model)[1]}
            more: Any = {"ports": ports, "server": self.address, "starts": job.starts + 1}
            if (begun := self.change(job, "running", "queued", "running", **more)) is not None:
                state, error = self._process(begun, stop)
                with self._lock:
                    # Another server has begun it where the file system gave it our locks.
                    if state and self.get(job.user, job.id).starts == begun.starts:
                        self.change(job, state, "running", error=error)
                if state == "queued":
                    stop.wait(END_SECONDS)

    def _process(self, job: Job, stop: Event) -> tuple[State | None, str]:
        """Run the process of a job; its state then and why, None for as it was."""
        folder = self.folder_of(job)
        child = [sys.executable, "-m", "agl_service.job_process", str(os.getpid()), LOCK]
        ports = [f"{PORTS[name]}={port}" for name, port in job.ports.items()]
        about: dict[str, Any] = {"env": {**os.environ, "AGL_SERVER_TOKEN": job.token}}
        with (folder / LOG).open("ab") as log, (folder / RESULT).open("wb") as out:
            begin = log.tell()
            words = [*child, *COMMANDS[job.kind], *ports]
            process = subprocess.Popen(words, cwd=folder, stdout=out, stderr=log, **about)
        seen, since = None, time.monotonic()
        self.own[job.user, job.id] = job
        try:
            while process.poll() is None:
                now = self.get(job.user, job.id)
                if stop.wait(POLL_SECONDS) or (now.state, now.starts) != ("running", job.starts):
                    return None, ""
                if exceeded := self.exceeded_quota(job.user):
                    return "stopped", exceeded
                # The clocks of machines differ, so what counts is that the time has changed.
                if (last := (folder / SEEN).stat().st_mtime_ns) != seen:
                    seen, since = last, time.monotonic()
                if time.monotonic() - since > PAUSE_SECONDS:
                    return "paused", AWAY
        finally:
            _end(process)
            del self.own[job.user, job.id]
        if process.returncode == 0:
            return "finished", ""
        written = (folder / LOG).read_bytes()[begin:].decode("utf-8", "replace")
        said = re.findall(r"^agl: (.*)", written, re.M)
        why = [f"its process ended with code {process.returncode}", *said][-1]
        try:
            if job.store:
                asyncio.run(plan_part("store", job.store).build().close())
        except StoreUnavailableError as error:  # so this was the reason
            return "queued", str(error)
        return "failed", why


def _end(process: "subprocess.Popen[Any]") -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:  # it waits for rollouts; what was stored stays
        kill_descendants(psutil.Process(process.pid), itself=True)
        process.wait()
