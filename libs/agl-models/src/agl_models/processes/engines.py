"""vLLM or SGLang as the server of the model that is trained, in the place of this process's own.

It is a child process on a folder of the run. For an update it ends the requests in progress and
gives its memory back; then the new weights are written to the folder, and it reads them. It is told
so over HTTP, as its documents say: of vLLM (0.16 or newer) "Sleep Mode" and "Async Reinforcement
Learning", of SGLang (of July 2026 or newer, for token ids) "SGLang for RL Systems".
"""

import contextlib
import importlib.util
import json
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

from agl.errors import AlgorithmError, ConfigError
from agl_models.processes.model_process import HOST, has_vllm, serve_child, vllm_command
from agl_models.versions import MODEL_NAME, Served

CALL_SECONDS = 600.0
"""Until a request must be answered; weights are read in it, and answers end."""
MEMORY_SHARE = 0.9
"""The part of a card's memory that vLLM takes by itself; SGLang takes about as much."""


class Call(NamedTuple):
    """A request to a server; ``{folder}`` in the body is the folder that was written."""

    path: str
    body: Mapping[str, Any] = {}
    is_of_memory: bool = False
    """Only for a server on a GPU that the trainer is on, too."""


class Update(NamedTuple):
    """How a server is told of new weights."""

    before: Sequence[Call]
    after: Sequence[Call]
    """With the weights in the folder."""


@dataclass(frozen=True)
class Engine:
    """How one kind of server is started and told."""

    is_here: Callable[[], bool]
    command: Callable[[str, int], list[str]]
    """Of the model's folder and the port."""
    options: dict[str, str]
    """Of the algorithm -> of the command."""
    model: Update
    """A whole model."""
    memory_flag: str
    """Lets it give its memory back."""
    memory_argument: str
    """Which part of a card's memory it takes."""
    adapter: Update | None = None
    """An adapter of a model that stays; None for a server that always gets the whole model."""
    environment: dict[str, str] = field(default_factory=dict[str, str])


def _sglang_command(model: str, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", model),
        *("--served-model-name", MODEL_NAME, "--host", HOST, "--port", str(port)),
        *("--sampling-defaults", "openai"),
    ]


LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM's ``--max-lora-rank`` takes."""

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
    said = dict(pairwise(parts)).get(argument := ENGINES[name].memory_argument, MEMORY_SHARE)
    try:
        return float(said)
    except ValueError:
        raise ConfigError(
            f"server.arguments: {argument} is {said!r}; expected the part of a card's memory that "
            f"{name} may take, from 0 to 1, for example {MEMORY_SHARE}"
        ) from None


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
        folder: Of the model, or of its adapter, for the server alone.
        log: Gets what the server writes.
        write: Writes the present weights and the tokenizer into a folder.
        arguments: Further ones, for its command.
        timeout_seconds: Until it must be ready.
        options: Of the algorithm, by name; None is left to the server.
        shares_gpu: Whether the trainer is on the GPU that the server is on: for an update the
            server then gives its memory back. vLLM refuses to start so without a GPU.
        base: What ``write`` writes is a LoRA adapter of this model, which stays; only for a server
            that can load one (``Engine.adapter``).
        lora_rank: Of the adapter.
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
    ) -> None:
        self._name, self._engine = name, ENGINES[name]
        self._folder, self._log, self._write = folder, log, write
        given = [(self._engine.options[name], value) for name, value in options.items()]
        known = [part for name, value in given if value is not None for part in (name, str(value))]
        self._shares_gpu, self._model = shares_gpu, str(base or folder)
        if shares_gpu:
            known.append(self._engine.memory_flag)
        self._update = self._engine.model
        if base is not None:
            assert self._engine.adapter is not None
            self._update = self._engine.adapter
            rank = next((one for one in LORA_RANKS if one >= lora_rank), lora_rank)
            # The adapter has the name that is asked for, so the model under it needs another.
            known += ["--served-model-name", f"{MODEL_NAME}-base", "--enable-lora"]
            known += ["--max-lora-rank", str(rank), "--lora-modules", f"{MODEL_NAME}={folder}"]
        self._arguments, self._timeout_seconds = [*known, *arguments], timeout_seconds
        self._url: str | None = None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncGenerator[Served]:
        """A block in which it answers.

        Raises:
            AlgorithmError: It ended, or was not ready in time.
        """
        self._write(self._folder)
        async with serve_child(
            self._name,
            lambda port: [*self._engine.command(self._model, port), *self._arguments],
            self._log,
            timeout_seconds=self._timeout_seconds,
            environment=self._engine.environment,
        ) as served:
            self._url = served.litellm_params["api_base"].removesuffix("/v1")
            try:
                yield served
            finally:
                self._url = None

    @contextlib.contextmanager
    def updating(self) -> Generator[None]:
        """A block in which nothing is sampled; then the server has the weights as they are.

        After an error in the block the server sleeps on, until ``serving`` ends it.

        Raises:
            AlgorithmError: The server does not do what it is told.
        """
        if self._url is None:  # a step is replayed
            yield
            return
        self._tell(self._update.before)
        yield
        self._write(self._folder)
        self._tell(self._update.after)

    def _tell(self, calls: Sequence[Call]) -> None:
        for path, body, is_of_memory in calls:
            if is_of_memory and not self._shares_gpu:
                continue
            filled = json.dumps(body).replace('"{folder}"', json.dumps(str(self._folder)))
            request = urllib.request.Request(
                f"{self._url}{path}", filled.encode(), {"content-type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:
                    said = answer.read()
            except urllib.error.HTTPError as error:
                said = f"{error.code} {error.read()[:500].decode(errors='replace')}"
                raise AlgorithmError(f"{self._refused(path)}: {said}") from None
            except OSError as error:
                raise AlgorithmError(f"{self._refused(path)}: {error}") from error
            # SGLang says with 200 that it could not read the weights.
            with contextlib.suppress(ValueError):
                if isinstance(found := json.loads(said), dict):
                    found = cast("dict[str, Any]", found)
                    if found.get("success") is False:
                        raise AlgorithmError(f"{self._refused(path)}: {found.get('message')}")

    def _refused(self, path: str) -> str:
        return f"server {self._name!r} failed at POST {path} (its log is {self._log})"
