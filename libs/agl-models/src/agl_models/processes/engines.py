"""vLLM or SGLang as the server of the model that is trained, in the place of this process's own.

It is a child process, or several, on a folder of the run. For an update it ends the requests in
progress and gives its memory back; then the new weights are written, and it reads them. It is told
so over HTTP, as its documents say: of vLLM (0.16 or newer) "Sleep Mode" and "Async Reinforcement
Learning", of SGLang (of July 2026 or newer, for token ids) "SGLang for RL Systems".
"""

import contextlib
import importlib.util
import json
import logging
import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

from agl.errors import AlgorithmError, ConfigError
from agl_models.processes.model_process import HOST, ask, has_vllm, serve_child, vllm_command
from agl_models.processes.replicas import MAX_RESTARTS, Replica, running_replicas
from agl_models.versions import MODEL_NAME, Served

logger = logging.getLogger("agl.models")

CALL_SECONDS = 600.0
"""How long a request may take, in which answers end or weights are read."""
MEMORY_SHARE = 0.9
"""The part of a card's memory that vLLM takes by itself; SGLang takes about as much."""


class Call(NamedTuple):
    """A request to a server; ``{folder}`` in the body is the folder that was written."""

    path: str
    body: Mapping[str, Any] = {}
    is_of_memory: bool = False
    """Whether it is only for a server that shares its GPU with the trainer."""


class Update(NamedTuple):
    """How a server is told of new weights."""

    before: Sequence[Call]
    after: Sequence[Call]
    """Called when the folder has the weights."""


@dataclass(frozen=True)
class Engine:
    """How one kind of server is started and told."""

    is_here: Callable[[], bool]
    command: Callable[[str, int], list[str]]
    """From the model's folder and the port to the command."""
    options: dict[str, str]
    """Option of the algorithm -> of the command."""
    model: Update
    """How it reads a whole model."""
    memory_flag: str
    """The option that lets it give its memory back."""
    memory_argument: str
    """The option that says which part of a card's memory it takes."""
    adapter: Update | None = None
    """How it reads an adapter of a model that stays; None if it always gets the whole model."""
    environment: dict[str, str] = field(default_factory=dict[str, str])


def _sglang_command(model: str, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", model),
        *("--served-model-name", MODEL_NAME, "--host", HOST, "--port", str(port)),
        *("--sampling-defaults", "openai"),
    ]


LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM's ``--max-lora-rank`` takes."""

ENGINES = {
    "vllm": Engine(
        has_vllm,
        vllm_command,
        {
            "seed": "--seed",
            "dtype": "--dtype",
            "max_model_tokens": "--max-model-len",
            "max_batch_size": "--max-num-seqs",
        },
        # A pause forgets what was computed of earlier prompts, which needs the old weights.
        model=Update(
            [Call("/pause?mode=wait"), Call("/sleep?level=2", is_of_memory=True)],
            [
                Call("/wake_up?tags=weights", is_of_memory=True),
                Call("/collective_rpc", {"method": "reload_weights"}),
                Call("/wake_up?tags=kv_cache", is_of_memory=True),
                Call("/resume"),
            ],
        ),
        adapter=Update(
            [Call("/pause?mode=wait"), Call("/sleep?level=1", is_of_memory=True)],
            [
                Call("/wake_up", is_of_memory=True),
                Call(
                    "/v1/load_lora_adapter",
                    {"lora_name": MODEL_NAME, "lora_path": "{folder}", "load_inplace": True},
                ),
                Call("/resume"),
            ],
        ),
        memory_flag="--enable-sleep-mode",
        memory_argument="--gpu-memory-utilization",
        environment={"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"},
    ),
    "sglang": Engine(
        lambda: importlib.util.find_spec("sglang") is not None,
        _sglang_command,
        {
            "seed": "--random-seed",
            "dtype": "--dtype",
            "max_model_tokens": "--context-length",
            "max_batch_size": "--max-running-requests",
        },
        model=Update(
            [
                Call("/pause_generation", {"mode": "abort"}),
                Call("/release_memory_occupation", is_of_memory=True),
            ],
            [
                Call("/resume_memory_occupation", {"tags": ["weights"]}, is_of_memory=True),
                Call("/update_weights_from_disk", {"model_path": "{folder}"}),
                Call("/resume_memory_occupation", {"tags": ["kv_cache"]}, is_of_memory=True),
                Call("/continue_generation"),
            ],
        ),
        memory_flag="--enable-memory-saver",
        memory_argument="--mem-fraction-static",
    ),
}


def memory_share(name: str, arguments: Sequence[str]) -> float:
    """Which part of a card's memory a server takes: as its arguments say, else 0.9.

    Raises:
        ConfigError: They say no number.
    """
    parts = [part for one in arguments for part in one.split("=")]
    share = dict(pairwise(parts)).get(argument := ENGINES[name].memory_argument, MEMORY_SHARE)
    try:
        return float(share)
    except ValueError:
        raise ConfigError(
            f"server.arguments: {argument} is {share!r}; expected the part of a card's memory that "
            f"{name} may take, from 0 to 1, for example {MEMORY_SHARE}"
        ) from None


def find_cards(replicas: int) -> list[str] | list[None]:
    """Which GPU each replica gets, as ``CUDA_VISIBLE_DEVICES`` names it; None where there is none.

    Raises:
        ConfigError: There are fewer.
    """
    if replicas == 1 or importlib.util.find_spec("torch") is None:
        return [None] * replicas
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(replicas)))
    cards = named.split(",")[: torch.cuda.device_count()]
    if 0 < len(cards) < replicas:
        raise ConfigError(
            f"server.replicas is {replicas}, and there are {len(cards)} GPUs, of which each gets "
            "one; choose as many, or fewer"
        )
    return cards[:replicas] or [None] * replicas


def check_server(owner: str, name: str, deterministic: bool, max_staleness: int) -> None:
    """Refuse a server that is not there, or options of its trainer that it cannot have.

    Raises:
        ConfigError: It says which.
    """
    if name == "torch":
        return
    if not ENGINES[name].is_here():
        raise ConfigError(
            f"{owner}: server {name!r} is not installed here. Run: pip install {name} (it wants a "
            "GPU), or leave server at 'torch'"
        )
    if deterministic:
        raise ConfigError(
            f"{owner}: deterministic=True needs server 'torch': answers of {name!r} depend on what "
            "else is in their batch"
        )
    if max_staleness:
        raise ConfigError(
            f"{owner}: max_staleness needs server 'torch': {name!r} does not say which weights "
            "made an answer, and may break off those in progress"
        )


class EngineServer:
    """A server of its own for the model in training.

    Args:
        name: ``vllm`` or ``sglang``.
        folder: Folder of the model, or of its adapter, for the server alone.
        log: Gets what the server writes.
        write: Writes the present weights and the tokenizer into a folder.
        arguments: Further arguments of its command.
        timeout_seconds: How long it may take to be ready.
        options: Options of the algorithm, by name; None is left to the server.
        shares_gpu: Whether the trainer is on the GPU that the server is on: for an update the
            server then gives its memory back. vLLM refuses to start so without a GPU.
        base: What ``write`` writes is a LoRA adapter of this model, which stays; only for a server
            that can load one (``Engine.adapter``).
        lora_rank: Rank of the adapter.
        replicas: How many processes serve, each with a log, and a GPU if there are any, of its own.
            While one that ended is started anew, with the newest weights, the others serve. The
            only one is not started anew: its end ends the run.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        log: Path,
        write: Callable[[Path], None],
        arguments: Sequence[str],
        timeout_seconds: float,
        options: Mapping[str, Any],
        *,
        shares_gpu: bool,
        base: str | Path | None = None,
        lora_rank: int = 0,
        replicas: int = 1,
    ) -> None:
        self._name, self._engine = name, ENGINES[name]
        self._folder, self._write = folder, write
        self._logs = [log.with_stem(f"{log.stem}-{number}") for number in range(replicas)]
        if replicas == 1:
            self._logs = [log]
        self._shares_gpu, self._model = shares_gpu, str(base or folder)
        self._options = {name: value for name, value in options.items() if value is not None}
        known = [self._engine.memory_flag] if shares_gpu else []
        self._update = self._engine.model
        if base is not None:
            assert self._engine.adapter is not None
            self._update = self._engine.adapter
            rank = next((one for one in LORA_RANKS if one >= lora_rank), lora_rank)
            # The adapter has the name that is asked for, so the model under it needs another.
            known += ["--served-model-name", f"{MODEL_NAME}-base", "--enable-lora"]
            known += ["--max-lora-rank", str(rank), "--lora-modules", f"{MODEL_NAME}={folder}"]
        self._arguments, self._timeout_seconds = [*known, *arguments], timeout_seconds
        self._cards = find_cards(replicas)
        self._replicas: list[Replica] = []
        self._weights_change = threading.Lock()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncGenerator[Served]:
        """A block in which it answers.

        Raises:
            AlgorithmError: It ended, or was not ready in time.
        """
        self._write(self._folder)
        count = len(self._cards)
        restarting = (MAX_RESTARTS if count > 1 else 0, self._weights_change)
        self._replicas = [Replica(partial(self._start, n), *restarting) for n in range(count)]
        try:
            async with running_replicas(self._replicas):
                urls = [f"{one.url}/v1" for one in self._replicas]
                api_base = urls if count > 1 else urls[0]
                entry = {"model": f"hosted_vllm/{MODEL_NAME}", "api_base": api_base}
                yield Served(entry, self._why_silent)
        finally:
            self._replicas = []

    def _start(self, number: int, port: int) -> AbstractAsyncContextManager[Served]:
        options, environment = dict(self._options), self._engine.environment
        if "seed" in options:  # equal seeds would give every replica the same luck
            options["seed"] = (options["seed"] + number * 1_000_003) % 2**32
        if (card := self._cards[number]) is not None:
            environment = {**environment, "CUDA_VISIBLE_DEVICES": card}
        flags = [(self._engine.options[name], str(value)) for name, value in options.items()]
        arguments = [part for option in flags for part in option]
        return serve_child(
            self._name,
            lambda port: [*self._engine.command(self._model, port), *arguments, *self._arguments],
            self._logs[number],
            port=port,
            timeout_seconds=self._timeout_seconds,
            environment=environment,
        )

    async def _why_silent(self) -> str | None:
        whys = [await one.why_down() for one in self._replicas]
        return whys[0] if all(whys) else None

    @contextlib.contextmanager
    def updating(self) -> Generator[None]:
        """A block in which nothing is sampled; then every replica has the weights as they are.

        One of several that does not do what it is told is ended, and starts anew with them, as one
        does that ends meanwhile. One that is starting is waited for, so with several replicas the
        block must not hold the thread of ``serving``. After an error in the block the server
        sleeps on, until ``serving`` ends it.

        Raises:
            AlgorithmError: No replica does what it is told.
        """
        if not self._replicas:  # a step is replayed
            yield
            return
        with self._weights_change:
            self._tell(self._update.before)
            yield
            self._write(self._folder)
            self._tell(self._update.after)
            for replica in (one for one in self._replicas if one.served):
                replica.restarts = 0

    def _tell(self, calls: Sequence[Call]) -> None:
        with ThreadPoolExecutor(len(self._replicas)) as pool:
            failures = list(pool.map(partial(self._failure, calls), range(len(self._replicas))))
        if all(failures):
            raise AlgorithmError(failures[0])
        for replica, why in zip(self._replicas, failures, strict=True):
            if why and replica.served:
                logger.warning("%s. This replica is ended, and started anew", why)
                replica.end()

    def _failure(self, calls: Sequence[Call], number: int) -> str:
        """Why a replica does not do what it is told; empty if it does."""
        replica = self._replicas[number]
        if replica.served is None:
            return f"server {self._name!r} does not run (its log is {self._logs[number]})"
        for path, body, is_of_memory in calls:
            if is_of_memory and not self._shares_gpu:
                continue
            filled = json.dumps(body).replace('"{folder}"', json.dumps(str(self._folder)))
            request = urllib.request.Request(
                f"{replica.url}{path}", filled.encode(), {"content-type": "application/json"}
            )
            why = f"server {self._name!r} failed at POST {path} (its log is {self._logs[number]})"
            try:
                text = ask(request, CALL_SECONDS)
            except urllib.error.HTTPError as error:
                return f"{why}: {error.code} {error.read()[:500].decode(errors='replace')}"
            except OSError as error:
                return f"{why}: {error}"
            # SGLang says with 200 that it could not read the weights.
            with contextlib.suppress(ValueError):
                if isinstance(result := json.loads(text), dict):
                    result = cast("dict[str, Any]", result)
                    if result.get("success") is False:
                        return f"{why}: {result.get('message')}"
        return ""
