"""``Team``: several models in one run, each trained by an algorithm of its own.

An agent calls each of them by its resource, and its rollouts are collected once. The rows of a
model go to its algorithm, which weighs them, changes its weights and saves them; the loop, the
store, the accounts and the rewards are those of all. Metrics of a model's algorithm begin with the
model's name, as ``asker/loss/total``; of calls, prompts and tokens each has its own beside those of
all. Of which model a call is, and so what it is compared with, is for its algorithm alone.
"""

import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from agl.algorithm.adapter import TraceAdapter
from agl.algorithm.gateway import Gateway
from agl.errors import ConfigError
from agl.plugins.build import build_component
from agl.types import Attempt, Span
from agl_learning.advantages.estimator_option import Estimator
from agl_learning.advantages.overlong_penalty import Overlong
from agl_learning.advantages.weighing import IdleReason, Weighed, WeighingOptions
from agl_learning.collect.collector import Collector
from agl_learning.collect.results import Collected
from agl_learning.collect.step_metrics import collected_metrics
from agl_learning.reports.diagnostics import OF_MODELS
from agl_learning.run.start import Origin
from agl_learning.trainer.online import OnlineTraining
from agl_models.versions import MODEL_NAME, Served, ServedModel, Version
from agl_records.ledger.ledger import Ledger
from agl_records.row_builder import RowsAdapter, RowSet
from agl_records.training_data import TrainedModel
from agl_records.types import CallKey, Exclusion, ExclusionReason, ItemKind

OF_A_MODEL = ("temperature", *(one.name for one in fields(WeighingOptions)))
"""Options of the loop that each model has for itself."""
OF_THE_RUN = (
    *("steps", "group_size", "max_refills", "seed", "deterministic", "show_progress"),
    "evaluation",
)
"""Those that each algorithm gets from the run."""
VERSIONS = "versions.json"
AREAS = {
    *("agl", "actor", "groups", "judge", "loss", "reward", "rollouts", "time", "train", "val"),
    *(area.rstrip("/") for area in OF_MODELS),
}
"""What names of other metrics begin with."""


@dataclass(kw_only=True, eq=False, repr=False)
class Team(OnlineTraining):
    """Train several models that work together, each by an algorithm and with options of its own.

    Args:
        models: Name of a model -> ``type`` and options of the algorithm that trains it, as
            ``{type: grpo, model: ..., learning_rate: 1e-6}``. The agent gets each as a resource of
            this name. What belongs to the run (``steps``, ``seed``, ``run_dir``, ...) is none of
            these options.
    """

    name = "team"

    models: dict[str, dict[str, Any]]
    temperature: float = field(default=1.0, init=False)
    max_tokens: int | None = field(default=None, init=False)
    resource_name: str = field(default=MODEL_NAME, init=False)
    max_staleness: int = field(default=0, init=False)
    estimator: Estimator = field(default=Estimator(), init=False)
    overlong: Overlong = field(default=Overlong(), init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.models) < 2:
            raise ConfigError(f"{self.title}: models must be two or more, got {[*self.models]}")
        self.parts = {name: self._build(name, given) for name, given in self.models.items()}
        """The algorithm of each model, which says what of its options a run may change."""
        self._servers: dict[str, Served] = {}

    def _build(self, name: str, given: Mapping[str, Any]) -> OnlineTraining:
        where = f"{self.title}: models.{name}"
        taken = {one.name for one in fields(OnlineTraining)} - {*OF_A_MODEL}
        if wrong := [option for option in given if option in taken]:
            raise ConfigError(
                f"{where}: {', '.join(wrong)} is of the run, not of a model. Give it beside models"
            )
        if "type" not in given:
            raise ConfigError(f"{where}: type is missing: the algorithm that trains it, as 'grpo'")
        if not name.isidentifier():
            raise ConfigError(f"{where}: a model's name is a parameter of the agent; got {name!r}")
        if name in AREAS:
            raise ConfigError(
                f"{where}: metrics of a model begin with its name, and others with {name!r} "
                "already. Take another name"
            )
        return build_component(
            {**given, **{option: getattr(self, option) for option in OF_THE_RUN}},
            group="agl.algorithms",
            expected_type=OnlineTraining,
            where=where,
        )

    # --- weights

    def check_start(self, origin: Origin) -> None:
        checkpoint = origin.checkpoint
        for name, part in self.parts.items():
            of_part = None if checkpoint is None else checkpoint / name
            part.check_start(Origin(origin.folder / name, of_part, origin.home / name))

    def load(self, checkpoint: Path | None, folder: Path) -> None:
        versions: dict[str, int] = {}
        if checkpoint is not None:
            versions = json.loads((checkpoint / VERSIONS).read_text())
        for name, part in self.parts.items():
            part.weights_version = versions.get(name, 0)
            part.load(None if checkpoint is None else checkpoint / name, folder / name)

    def save(self, folder: Path) -> None:
        for name, part in self.parts.items():
            (folder / name).mkdir()
            part.save(folder / name)
        versions = {name: part.weights_version for name, part in self.parts.items()}
        (folder / VERSIONS).write_text(json.dumps(versions))

    def fingerprint(self) -> str | None:
        found = [part.fingerprint() for part in self.parts.values()]
        return "/".join(map(str, found)) if all(found) else None

    # --- serving

    def gateway(self) -> Gateway:
        gateway = super().gateway()
        for name in self.parts:
            gateway.check_free(name)
        return gateway

    @contextlib.asynccontextmanager
    async def serve(self, version: Version) -> AsyncGenerator[Served]:
        """A block in which all answer; what it yields says of any of them why it is silent."""
        async with contextlib.AsyncExitStack() as stack:
            each = self._servers = {
                name: await stack.enter_async_context(part.serve(version))
                for name, part in self.parts.items()
            }

            async def why_silent() -> str | None:
                whys = [await one.why_silent() for one in each.values()]
                return next(filter(None, whys), None)

            yield replace(next(iter(each.values())), why_silent=why_silent)

    def models_served(self, served: Served) -> list[ServedModel]:
        """Each under its name, which is the parameter of the agent, too."""
        return [
            replace(one, name=name, resource=name)
            for name, part in self.parts.items()
            for one in part.models_served(self._servers[name])
        ]

    # --- a step

    def trained_model(self) -> None:
        """None: rows come by model, see ``collector``."""

    def _trained_models(self) -> list[TrainedModel]:
        found = {name: part.trained_model() for name, part in self.parts.items()}
        return [
            one.model_copy(update={"name": name}) if one else TrainedModel(name=name)
            for name, one in found.items()
        ]

    def collector(self) -> Collector:
        collector = super().collector()
        collector.reader.adapter = RowsByModel(self.get_adapter(), self._trained_models)
        return collector

    @property
    def depends_on_steps(self) -> bool:
        return any(part.depends_on_steps for part in self.parts.values())

    def estimator_of(self, model: str) -> str:
        return self.parts[model].estimator_of("") if model else ""

    def why_unused_of(self, model: str) -> tuple[ExclusionReason, str]:
        return self.parts[model].why_unused

    def weigh(self, collected: Collected) -> list[Weighed]:
        """Each algorithm weighs the rows of its model."""
        weighed: list[Weighed] = []
        for name, part in self.parts.items():
            own = collected.of_model(name)
            before = len(own.ledger.exclusions)
            weighed += part.weigh(own)
            collected.ledger.trained += own.ledger.trained
            collected.ledger.exclusions += own.ledger.exclusions[before:]
        # An algorithm counts the rows of its own model.
        number = {
            (row.rollout_id, row.attempt_id, call_id): place
            for one in collected.ended
            for place, row in enumerate(one.rows)
            for call_id in row.call_ids
        }
        trained = collected.ledger.trained
        trained[:] = [one.model_copy(update={"row": number[one.key]}) for one in trained]
        return weighed

    def learn_now(self, rows: list[Weighed]) -> tuple[dict[str, Any], list[Weighed]]:
        learned, used = self.update(rows)  # each has a lag of its own
        self.weights_version += bool(used)
        return learned, used

    def update(self, rows: list[Weighed]) -> tuple[dict[str, Any], list[Weighed]]:
        """Each algorithm learns from the rows of its model."""
        learned: dict[str, Any] = {}
        used: list[Weighed] = []
        for name, part in self.parts.items():
            if own := [one for one in rows if one.row.model == name]:
                of_part, used_by_part = part.learn_now(own)
                learned |= {f"{name}/{what}": value for what, value in of_part.items()}
                used += used_by_part
        return learned, used

    def check_gap(self, when: str, learned: Mapping[str, float]) -> None:
        """Of each model, at its temperature."""
        for name, part in self.parts.items():
            at = f"{name}/"
            own = {what.removeprefix(at): x for what, x in learned.items() if what.startswith(at)}
            part.check_gap(f"{when}, model {name!r}", own)

    def measured(self, collected: Collected, rows: list[Weighed]) -> dict[str, Any]:
        """With calls, prompts and tokens of each model."""
        of_models = {
            f"{name}/{what}": value
            for name, part in self.parts.items()
            for what, value in collected_metrics(
                collected.of_model(name), part.trained_model()
            ).items()
            if what.startswith(OF_MODELS)
        }
        return {**super().measured(collected, rows), **of_models}

    # --- when nothing was trained

    def idle_reason(self, collected: Collected) -> IdleReason:
        """Solved where each model that was asked is; a draw where one is, and the others solved."""
        asked = {*collected.ledger.models.values()}
        reasons = {
            part.idle_reason(collected.of_model(name))
            for name, part in self.parts.items()
            if name in asked
        }
        if not reasons or "" in reasons:
            return ""
        return "draw" if "draw" in reasons else "solved"


class RowsByModel(RowsAdapter):
    """Asks an adapter with ``model=``, as ``rows``, for the rows of each model, and marks them."""

    def __init__(
        self, adapter: TraceAdapter[Any], models: Callable[[], Sequence[TrainedModel]]
    ) -> None:
        self._adapter, self._models = adapter, models

    def adapt(
        self,
        source: Sequence[Span],
        /,
        attempts: Sequence[Attempt] | None = None,
        model: TrainedModel | None = None,
    ) -> RowSet:
        """Rows of all the models; of a call that none of them made, why it is in no row."""
        adapt = cast("Callable[..., RowSet]", self._adapter.adapt)
        found = {one.name: adapt(source, attempts=attempts, model=one) for one in self._models()}
        rows = [
            row.model_copy(update={"model": name})
            for name, of_model in found.items()
            for row in of_model.rows
        ]
        # A call is open where one of the ledgers has it open, and a reward used where one of them
        # uses it. What all exclude is excluded for the first reason that is not ``other_model``.
        ledgers = [one.ledger for one in found.values()]
        whole = Ledger()
        excluded: dict[tuple[ItemKind, CallKey], list[Exclusion]] = {}
        for ledger in ledgers:
            whole.items |= ledger.items
            for one in ledger.exclusions:
                excluded.setdefault((one.kind, one.key), []).append(one)
        used = {item.key: item for ledger in ledgers for item in ledger.used_rewards}
        whole.used_rewards = [*used.values()]
        for reasons in excluded.values():
            if len(reasons) == len(ledgers):
                own = [one for one in reasons if one.reason != "other_model"]
                whole.exclude((own or reasons)[0])
        others = {
            name: {one.key for one in of.ledger.exclusions if one.reason == "other_model"}
            for name, of in found.items()
        }
        # Which model made a call is known if all the others say that it is another's.
        may = {key: [name for name in found if key not in others[name]] for key in whole.calls}
        whole.models = {key: names[0] for key, names in may.items() if len(names) == 1}
        return RowSet(rows, whole)
