"""The loop on one's own hardware: server and training as child processes, versions as folders."""

import asyncio
import hashlib
import json
import logging
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt

from agl.errors import AlgorithmError, ConfigError
from agl_learning.run.checkpoint import damage, making, read_note
from agl_learning.trainer.options import Lora
from agl_learning.trainer.version import FineTuning
from agl_models.processes.child_process import child, tail
from agl_models.versions import MODEL_NAME, Served, Version
from agl_records.training_data import TrainedModel
from agl_runs.files import write_whole
from agl_runs.options import Count, NotNegative, check_place, pick_options
from agl_unsloth.engines import choose_engine
from agl_unsloth.models import check_folder, check_memory, find_machine, size_of
from agl_unsloth.options import STATE, Engine, Method, Order, TrainingOptions
from agl_unsloth.servers import Server, check_port, choose_server, serve
from agl_unsloth.training import RESULT

logger = logging.getLogger("agl.unsloth")

MADE = "made.json"
"""In ``STATE``: which model it goes with, and the options of its adapter."""


@dataclass(kw_only=True, eq=False, repr=False)
class LocalFineTuning(FineTuning):
    """What ``SFT`` and ``DPO`` share.

    Folder of a run, beside checkpoints and metrics: ``versions/NNNN`` (a whole model each, from
    1, and in ``state`` what the next training goes on with; ``NNNN-R`` where rollouts were given up
    R times before it), ``iterations/NNNN/examples.jsonl``, ``logs``.

    Args:
        model: A folder, or a name on the Hugging Face Hub.
        engine: ``unsloth``, ``trl``, or ``auto``: Unsloth where it can be imported, else TRL.
        python: The interpreter of another environment that has agl-unsloth and the engine, for
            training; None takes this one.
        server: The server of each version.
        lora: The adapter that is trained and then merged; None trains all weights.
        load_in_4bit: Train the adapter on weights of 4 bits, in a quarter of the memory.
        learning_rate: For AdamW, falling linearly over all iterations to 0; its moments go on from
            version to version. None takes 2e-4 in ``sft`` and 5e-5 in ``dpo``, and a tenth of that
            where all weights are trained.
        epochs: Passes over the examples.
        batch_size: Examples per pass of the model.
        gradient_accumulation: Passes per step of the optimiser.
        max_length: Examples with more tokens are left out, not cut; None for no limit.
        weights: Type in which versions are saved: bfloat16 or float16.
        torch_threads: Threads of a torch operation in training; None leaves it to torch, and takes
            1 with ``deterministic``.
        check_memory: Refuse a training that, by an estimate, does not fit.
    """

    safe_options = frozenset({"check_memory"})

    method: ClassVar[Method]
    adapter_learning_rate: ClassVar[float] = 2e-4

    model: str = field(kw_only=False)
    engine: Literal["auto", "unsloth", "trl"] = "auto"
    python: str | None = None
    server: Server = Server()
    lora: Lora | None = Lora()
    load_in_4bit: bool = False
    learning_rate: NotNegative | None = None
    epochs: Annotated[float, Gt(0)] = 1.0
    batch_size: Count = 4
    gradient_accumulation: Count = 2
    max_length: Annotated[int, Ge(2)] | None = 4096
    weights: Literal["bfloat16", "float16"] = "bfloat16"
    torch_threads: Count | None = None
    check_memory: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.load_in_4bit and self.lora is None:
            raise ConfigError(
                f"{self.title}: load_in_4bit needs an adapter: weights of 4 bits cannot be "
                "trained. Leave lora at its default"
            )
        check_place(self.title, model=self.model)
        folder = Path(self.model)
        if folder.is_dir():
            # A run may be continued from elsewhere.
            self.model = str(folder.resolve())

    def training_options(self, number: int) -> TrainingOptions:
        """Of the training that makes a version."""
        lora, rate = self.lora, self.learning_rate
        if rate is None:
            rate = self.adapter_learning_rate / (1 if lora else 10)
        return pick_options(
            TrainingOptions,
            self,
            lora_rank=lora.rank if lora else 0,
            lora_alpha=lora.effective_alpha if lora else 1,
            lora_targets=lora.modules if lora else None,
            learning_rate=rate,
            seed=self.seed + number,
        )

    def is_whole(self, version: Version) -> bool:
        """Whether every file of its folder is there, and as long as it was."""
        return not damage(Path(version.ref))

    def fingerprint(self, version: Version) -> str | None:
        """Of the files of its weights, by their names; None where it is not whole any more."""
        folder = Path(version.ref)
        if damage(folder):
            return None
        found = hashlib.sha256()
        for path in sorted(folder.glob("*.safetensors")):
            found.update(path.name.encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
        return found.hexdigest()[:32]

    async def prepare(self) -> Version:
        self._check_model()
        given = replace(self.server, type=choose_server(self.server.type))
        if given.is_address and not given.reload_command and self.iterations > 1:
            raise ConfigError(
                f"{self.title}: the server {given.type!r} will not know of new versions. Give "
                "a server.reload_command that makes it load {model}, or iterations=1"
            )
        if given.reload_command and not given.is_address:
            raise ConfigError(
                f"{self.title}: server.reload_command is for a server that is an address; server "
                f"{given.type!r} is started anew for every version"
            )
        if self.deterministic and given.type != "torch":
            raise ConfigError(
                f"{self.title}: deterministic=True needs server 'torch': answers of "
                f"{given.type!r} depend on what else is in their batch. Set server to 'torch', "
                "or leave deterministic out"
            )
        check_port(given)
        self._server = given
        self._engine: Engine = await choose_engine(
            self.engine, self.python, lora=self.lora is not None, four_bit=self.load_in_4bit
        )
        return Version(0, self.model)

    def trained_model(self) -> TrainedModel:
        """The model that is served, with its vocabulary where its folder is here."""
        size = size_of(Path(self.model)) if Path(self.model).is_dir() else None
        return TrainedModel(name=MODEL_NAME, vocabulary_size=size and size.vocabulary)

    def _check_model(self) -> None:
        folder = Path(self.model)
        # A path that is not there must not be taken for a name on a hub.
        if folder.exists() or self.model.startswith(("/", ".")) or self.model.count("/") > 1:
            check_folder(folder)
        size = size_of(folder) if self.check_memory and folder.is_dir() else None
        if size is not None:
            check_memory(size, self.training_options(1), find_machine(), pairs=self.method == "dpo")

    def serve(self, version: Version) -> AbstractAsyncContextManager[Served]:
        log = self.session.folder / "logs" / f"server-{version.number:04d}.log"
        given = {"seed": self.seed, "deterministic": self.deterministic}
        return serve(version, self._server, log, **given)

    async def train(self, examples: Path, version: Version, number: int) -> Version:
        # Another folder where rollouts were given up: the version of those may lie in that one.
        again = f"-{round_}" if (round_ := self.session.records.round("train", number - 1)) else ""
        folder = self.session.folder / "versions" / f"{number:04d}{again}"
        if not await asyncio.to_thread(damage, folder):
            # The kill came between its name and the checkpoint.
            return Version(number, str(folder), read_note(folder))
        metrics: dict[str, Any] = {}
        with making(folder, metrics) as partial:
            metrics.update(await self._train_into(partial, examples, version, number))
        return Version(number, str(folder), metrics)

    async def _train_into(
        self, partial: Path, examples: Path, version: Version, number: int
    ) -> dict[str, Any]:
        """Train a version into a folder; metrics of the training."""
        options = self.training_options(number)
        model, state = begin_from(version, options)
        iterations = max(self.iterations, number)
        order = Order(
            method=self.method,
            engine=self._engine,
            model=model,
            examples=str(examples),
            out=str(partial),
            options=options,
            state=state,
            schedule=(1 - (number - 1) / iterations, 1 - number / iterations),
        )
        metrics = await self._run_training(order, number)
        write_whole(partial / STATE / MADE, json.dumps({"model": model, **adapter_of(options)}))
        session = self.session
        lines = await asyncio.to_thread(examples.read_bytes)
        data = {
            "examples": lines.count(b"\n"),
            "file": str(examples),
            "sha256": hashlib.sha256(lines).hexdigest(),
            **self.about_examples,
        }
        tables = {
            "Run": {"algorithm": self.name, "id": session.run_id, "folder": str(session.folder)},
            "Data": data,
            "Training": metrics,
            "Options": {"engine": self._engine, **asdict(order.options)},
        }
        write_card(partial, self.name, version, number, tables)
        return metrics

    async def _run_training(self, order: Order, number: int) -> dict[str, Any]:
        folder = self.session.folder
        file = folder / "iterations" / f"{number:04d}" / "order.json"
        write_whole(file, json.dumps(asdict(order), indent=2) + "\n")
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
        return json.loads((Path(order.out) / RESULT).read_text())


def begin_from(version: Version, options: TrainingOptions) -> tuple[str, str | None]:
    """Model and state that a training begins from; no state where the adapter's options changed."""
    made = Path(version.ref, STATE, MADE)
    if not version.number or not made.is_file():
        return version.ref, None
    before: dict[str, Any] = json.loads(made.read_text())
    if before.items() >= adapter_of(options).items():
        return before["model"], str(made.parent)
    logger.warning(
        "version %d was trained with other options of the adapter (%s): its weights of 16 bits "
        "are trained with a new adapter and a new optimiser",
        version.number,
        before,
    )
    return version.ref, None


def adapter_of(options: TrainingOptions) -> dict[str, Any]:
    """What a state fits to."""
    names = ("lora_rank", "lora_alpha", "lora_targets", "load_in_4bit")
    return {name: getattr(options, name) for name in names}


def write_card(
    folder: Path, algorithm: str, base: Version, number: int, tables: dict[str, dict[str, Any]]
) -> None:
    """Write ``README.md`` as hubs read it; ``base`` is what version ``number`` was trained from."""
    sections = "\n\n".join(f"## {title}\n\n{_table(values)}" for title, values in tables.items())
    text = f"""---
base_model: {json.dumps(base.ref)}
library_name: transformers
pipeline_tag: text-generation
tags: [agl, {algorithm}]
---

# {algorithm} version {number}

Made by agl from version {base.number} ({base.ref}), on rollouts of the agent itself.

{sections}
"""
    (folder / "README.md").write_text(text, encoding="utf-8")


def _table(values: dict[str, Any]) -> str:
    rows = [f"| {name} | {_cell(value)} |" for name, value in values.items() if value is not None]
    return "\n".join(["| | |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return shown.replace("|", "\\|").replace("\n", " ")
