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
from typing import Any, cast

from agl.errors import AlgorithmError, ConfigError
from agl_learning.model_process import HOST, has_vllm, serve_child, vllm_command
from agl_learning.start import MODEL_NAME
from agl_learning.versions import Served

CALL_SECONDS = 600.0
"""Until a request must be answered; weights are read in it, and answers end."""


MEMORY_SHARE = 0.9
"""The part of a card's memory that vLLM takes by itself; SGLang takes about as much."""


@dataclass(frozen=True)
class Engine:
    """How one kind of server is started and told."""

    is_here: Callable[[], bool]
    install: str
    command: Callable[[str, int], list[str]]
    """Of the model's folder and the port."""
    options: dict[str, str]
    """Of the algorithm -> of the command."""
    sleep: Sequence[tuple[str, dict[str, Any]]]
    """Path and body of the requests before an update."""
    wake: Sequence[tuple[str, dict[str, Any]]]
    """And after it; ``{model}`` is the folder."""
    memory_argument: str
    """Which part of a card's memory it takes."""
    environment: dict[str, str] = field(default_factory=dict[str, str])


def _vllm_command(model: str, port: int) -> list[str]:
    # Log-probabilities are those of the softmax that is drawn from, temperature included.
    more = ["--enable-sleep-mode", "--logprobs-mode", "processed_logprobs"]
    return [*vllm_command(model, port), *more]


def _sglang_command(model: str, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", model),
        *("--served-model-name", MODEL_NAME, "--host", HOST, "--port", str(port)),
        "--enable-memory-saver",
    ]


ENGINES = {
    "vllm": Engine(
        has_vllm,
        "vllm",
        _vllm_command,
        {
            "seed": "--seed",
            "dtype": "--dtype",
            "max_model_tokens": "--max-model-len",
            "max_batch_size": "--max-num-seqs",
        },
        sleep=[("/pause?mode=wait", {}), ("/sleep?level=2", {})],
        wake=[
            ("/wake_up?tags=weights", {}),
            ("/collective_rpc", {"method": "reload_weights"}),
            ("/wake_up?tags=kv_cache", {}),
            ("/resume", {}),
        ],
        memory_argument="--gpu-memory-utilization",
        environment={"VLLM_SERVER_DEV_MODE": "1"},
    ),
    "sglang": Engine(
        lambda: importlib.util.find_spec("sglang") is not None,
        "sglang",
        _sglang_command,
        {
            "seed": "--random-seed",
            "dtype": "--dtype",
            "max_model_tokens": "--context-length",
            "max_batch_size": "--max-running-requests",
        },
        sleep=[("/pause_generation", {"mode": "abort"}), ("/release_memory_occupation", {})],
        wake=[
            ("/resume_memory_occupation", {"tags": ["weights"]}),
            ("/update_weights_from_disk", {"model_path": "{model}"}),
            ("/resume_memory_occupation", {"tags": ["kv_cache"]}),
            ("/continue_generation", {}),
        ],
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
            f"server_arguments: {argument} is {said!r}; expected the part of a card's memory that "
            f"{name} may take, from 0 to 1, for example {MEMORY_SHARE}"
        ) from None


def check_server(owner: str, options: Any) -> None:
    """Refuse a server that is not there, or options that it cannot have.

    Raises:
        ConfigError: It says which.
    """
    name = options.server
    if name == "torch":
        for option in ("server_arguments", "server_timeout_seconds"):
            if getattr(options, option) != getattr(options.__class__, option):
                raise ConfigError(
                    f"{owner}: {option} is for a server of its own, vllm or sglang; server is "
                    "'torch', the one in this process"
                )
        return
    if not ENGINES[name].is_here():
        raise ConfigError(
            f"{owner}: server {name!r} is not installed here. Run: pip install "
            f"{ENGINES[name].install} (it wants a GPU), or leave server at 'torch'"
        )
    if options.deterministic:
        raise ConfigError(
            f"{owner}: deterministic=True needs server 'torch': answers of {name!r} depend on what "
            "else is in their batch"
        )
    if options.max_staleness:
        raise ConfigError(
            f"{owner}: max_staleness needs server 'torch': {name!r} does not say which weights "
            "made an answer, and may break off those in progress"
        )


class EngineServer:
    """A server of its own for the model in training.

    Args:
        name: ``vllm`` or ``sglang``.
        folder: Of the model, for the server alone.
        log: Gets what the server writes.
        write: Writes the present weights and the tokenizer into a folder.
        arguments: Further ones, for its command.
        timeout_seconds: Until it must be ready.
        options: Of the algorithm, by name; None is left to the server.
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
    ) -> None:
        self._name, self._engine = name, ENGINES[name]
        self._folder, self._log, self._write = folder, log, write
        given = [(self._engine.options[name], value) for name, value in options.items()]
        known = [part for name, value in given if value is not None for part in (name, str(value))]
        self._arguments, self._timeout_seconds = [*known, *arguments], timeout_seconds
        self._url: str | None = None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncGenerator[Served]:
        """A block in which it answers.

        Raises:
            AlgorithmError: It ended, or was not ready in time.
        """
        self._write(self._folder)
        model = str(self._folder)
        async with serve_child(
            self._name,
            lambda port: [*self._engine.command(model, port), *self._arguments],
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
        self._tell(self._engine.sleep)
        yield
        self._write(self._folder)
        self._tell(self._engine.wake)

    def _tell(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> None:
        for path, body in calls:
            filled = json.dumps(body).replace('"{model}"', json.dumps(str(self._folder)))
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
