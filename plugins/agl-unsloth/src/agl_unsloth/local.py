"""The loop on one's own hardware: server and training as child processes, versions as folders."""

import asyncio
import hashlib
import json
import logging
import os
import shutil
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from agl.errors import AlgorithmError, ConfigError
from agl_unsloth.card import write_card
from agl_unsloth.children import child, tail
from agl_unsloth.engines import choose_engine
from agl_unsloth.loop import FineTuning, Served
from agl_unsloth.memory import check_memory, find_machine
from agl_unsloth.models import check_folder, size_of
from agl_unsloth.options import Engine, Method, Order, TrainingOptions
from agl_unsloth.servers import ServerOptions, check_port, choose_server, serve
from agl_unsloth.training import RESULT
from agl_unsloth.versions import Version, publish, read_record, write_file, write_record

logger = logging.getLogger("agl.unsloth")


class LocalFineTuning(FineTuning):
    """What ``SFT`` and ``DPO`` share; see there for the options.

    Folder of a run, beside the journal and the metrics: ``versions/NNNN`` (a whole model each, from
    1), ``iterations/NNNN/examples.jsonl``, ``logs``.
    """

    method: ClassVar[Method]

    def __init__(
        self,
        model: str,
        *,
        engine: str,
        python: str | None,
        server: str,
        server_arguments: list[str] | None,
        server_timeout_seconds: float,
        port: int,
        reload_command: list[str] | None,
        training: TrainingOptions,
        check_memory: bool,
        **loop: Any,
    ) -> None:
        super().__init__(**loop)
        if engine not in ("auto", "unsloth", "trl"):
            raise ConfigError(f"{self.name}: engine {engine!r}: expected auto, unsloth or trl")
        if training.weights not in ("bfloat16", "float16"):
            raise ConfigError(
                f"{self.name}: weights {training.weights!r}: expected bfloat16 or float16"
            )
        if training.load_in_4bit and not training.lora_rank:
            raise ConfigError(
                f"{self.name}: load_in_4bit needs an adapter: weights of 4 bits cannot be trained. "
                "Give a lora_rank above 0"
            )
        self.check_least(
            port=(port, 0),
            learning_rate=(training.learning_rate, 0),
            epochs=(training.epochs, 0),
            batch_size=(training.batch_size, 1),
            gradient_accumulation=(training.gradient_accumulation, 1),
            lora_rank=(training.lora_rank, 0),
            lora_alpha=(training.lora_alpha, 1),
            max_length=(training.max_length, 2),
            torch_threads=(training.threads, 1),
        )
        folder = Path(model)
        # Absolute where it is a folder: a run may be continued from elsewhere.
        self.model = str(folder.resolve() if folder.is_dir() else model)
        self.engine, self.python, self.server = engine, python, server
        self.training, self.check_memory = training, check_memory
        self._server_options = ServerOptions(
            kind=server,
            port=port,
            arguments=tuple(server_arguments or ()),
            ready_seconds=server_timeout_seconds,
            reload_command=tuple(reload_command or ()),
            seed=self.seed,
        )
        self._engine: Engine = "trl"

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "model": self.model}

    async def prepare(self) -> Version:
        self._check_model()
        options = ServerOptions(
            **{**asdict(self._server_options), "kind": choose_server(self.server)}
        )
        if options.is_address and not options.reload_command and self.iterations > 1:
            raise ConfigError(
                f"{self.name}: the server {options.kind!r} will not know of new versions. Give a "
                "reload_command that makes it load {model}, or iterations=1"
            )
        if options.reload_command and not options.is_address:
            raise ConfigError(
                f"{self.name}: reload_command is for a server that is an address; server "
                f"{options.kind!r} is started anew for every version"
            )
        check_port(options)
        self._server_options = options
        await self._choose_engine()
        return Version(0, self.model)

    def _check_model(self) -> None:
        folder = Path(self.model)
        # A path that is not there must not be taken for a name on a hub.
        if folder.exists() or self.model.startswith(("/", ".")) or self.model.count("/") > 1:
            check_folder(folder)
        size = size_of(folder) if self.check_memory and folder.is_dir() else None
        if size is not None:
            check_memory(size, self.training, find_machine(), pairs=self.method == "dpo")

    async def _choose_engine(self) -> None:
        journal = self.session.journal
        chosen = await choose_engine(
            self.engine,
            self.python,
            lora=self.training.lora_rank > 0,
            four_bit=self.training.load_in_4bit,
        )
        self._engine = chosen.engine
        journal.append("engine", engine=chosen.engine, because=chosen.because)
        logger.info("training with %s (%s)", chosen.engine, chosen.because)

    def serve(self, version: Version) -> AbstractAsyncContextManager[Served]:
        return serve(version, self._server_options, self.session.folder / "logs")

    async def train(self, examples: Path, version: Version, number: int) -> Version:
        folder = self.session.folder / "versions" / f"{number:04d}"
        made = read_record(folder)
        if made is not None:
            return made  # whole: the kill came between its name and the journal
        for left in folder.parent.glob(f".{folder.name}.partial-*"):
            shutil.rmtree(left)
        partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
        partial.mkdir(parents=True)
        options = asdict(self.training)
        order = Order(
            method=self.method,
            engine=self._engine,
            model=version.ref,
            examples=str(examples),
            out=str(partial),
            options=TrainingOptions(**{**options, "seed": self.seed + number}),
        )
        metrics = await self._run_training(order, number)
        following = Version(number, str(folder), metrics)
        write_record(partial, following)
        session = self.session
        collected = session.journal.last("collected", iteration=number) or {}
        lines = await asyncio.to_thread(examples.read_bytes)
        write_card(
            partial,
            base=version,
            number=number,
            run={"algorithm": self.name, "id": session.run_id, "folder": str(session.folder)},
            data={
                "examples": lines.count(b"\n"),
                "file": str(examples),
                "sha256": hashlib.sha256(lines).hexdigest(),
                **collected.get("metrics", {}),
            },
            training=metrics,
            options={"engine": self._engine, **asdict(order.options)},
        )
        publish(partial, folder)
        return following

    async def _run_training(self, order: Order, number: int) -> dict[str, Any]:
        folder = self.session.folder
        file = folder / "iterations" / f"{number:04d}" / "order.json"
        write_file(file, json.dumps(asdict(order), indent=2) + "\n")
        log = folder / "logs" / f"train-{number:04d}.log"
        interpreter = self.python or sys.executable
        command = [interpreter, "-m", "agl_unsloth.training", str(file)]
        async with child(command, log) as process:
            code = await process.wait()
        if code != 0:
            # 137: the guard's way to say SIGKILL, which is what the system does without memory.
            hint = " (killed: out of memory?)" if code == 137 else ""
            raise AlgorithmError(
                f"training of version {number} ended with exit code {code}{hint}; version "
                f"{number - 1} is whole. The end of {log}:\n{tail(log)}"
            )
        result = Path(order.out) / RESULT
        metrics: dict[str, Any] = json.loads(result.read_text())
        return metrics
