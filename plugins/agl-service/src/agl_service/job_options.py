"""The options of a job, by what its client asks and its server allows."""

from typing import Any

from pydantic import Field

from agl.errors import ConfigError
from agl.plugins import registry
from agl_http.wire import Body
from agl_learning.trainer.options import Evaluation, Rollouts
from agl_runs.failures import Failures
from agl_runs.options import AboveZero, Count
from agl_runs.records import RunId
from agl_service.data import DataRecord
from agl_service.jobs import Kind
from agl_service.settings import Settings


class JobRequest(Body):
    """What a client asks for."""

    id: RunId
    data: RunId
    kind: Kind
    epochs: Count = 1
    batch_size: Count = 32
    eval_interval: Count = 50
    checkpoint: str | None = None
    air: bool = False
    """Whether its agents give rewards to tools."""
    max_retries: int | None = Field(default=None, ge=0)
    timeout: AboveZero | None = Field(default=None, allow_inf_nan=False)


def options_of(
    asked: JobRequest, data: DataRecord, settings: Settings
) -> tuple[dict[str, Any], int]:
    """Type and options of the algorithm, and how many steps it takes."""
    groups = min(asked.batch_size, data.train_tasks)
    if settings.batch_size is not None:
        most = settings.batch_size // settings.algorithm["group_size"]
        groups = max(1, min(groups, most))
    steps = -(-asked.epochs * data.train_tasks // groups)
    options: dict[str, Any] = settings.algorithm | {"steps": steps, "groups_per_step": groups}
    if data.test:
        every = {"every": asked.eval_interval} if asked.kind == "train" else {}
        options["evaluation"] = Evaluation.given(options.get("evaluation")) | every
    if asked.air:
        credit = options["credit"] = options.get("credit") or "discounted"
        name = credit if isinstance(credit, str) else credit["type"]
        if not registry.load(registry.GROUPS["credit"], name).uses_intermediate:
            raise ConfigError(f"air: the server's credit rule {name!r} uses final rewards only")
    if asked.max_retries is not None:
        policy = "retry" if asked.max_retries else "exclude"
        retries = {"agent": policy, "timeout": policy}
        retries |= {"retries": asked.max_retries} if asked.max_retries else {}
        options["failures"] = Failures.given(options.get("failures")) | retries
    if asked.timeout is not None:
        limit = {"timeout_seconds": asked.timeout}
        options["rollouts"] = Rollouts.given(options.get("rollouts")) | limit
    return options, 1 if asked.kind == "evaluate" else steps
