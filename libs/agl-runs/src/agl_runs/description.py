"""What is written down of a run: its options, its code, and digests of its data."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from agl import __version__
from agl.algorithm.base import Algorithm
from agl.plugins.registry import components
from agl.plugins.schema import schema_of
from agl.types import Dataset
from agl.utils.json_values import to_json_text
from agl.utils.text import full_name_of
from agl_runs.records import DatasetDigest, RunCode
from agl_runs.secrets import redact
from agl_runs.user_code import digest_of, digests_of, source_file, written

if TYPE_CHECKING:
    from agl.agent.base import LitAgent

_MOST_TASKS: Final = 10_000
"""Of a dataset that is no list, so many tasks are looked at: each may be read from a disk."""
_MODELS_RUN_ON: Final = ("torch", "transformers", "trl", "vllm", "litellm", "verl", "unsloth")
"""With another version of one of these, the same run may come to other numbers."""


def describe_run(
    agent: "LitAgent[Any]",
    algorithm: Algorithm,
    datasets: Mapping[str, Dataset[Any]],
    config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The fields of ``RunStart`` that say what is run."""
    seed = getattr(algorithm, "seed", None)
    options = {"algorithm": options_of(algorithm)} if config is None else dict(config)
    return {
        "algorithm": name_of(algorithm),
        "seed": seed if isinstance(seed, int) else None,
        "config": options,
        "code": code_of(agent, algorithm, options),
        "datasets": {name: _digest_of(dataset) for name, dataset in datasets.items()},
    }


def name_of(algorithm: Algorithm) -> str:
    """What a run calls its algorithm: by its own ``name``, or by that of its entry point."""
    name = getattr(algorithm, "name", None) or getattr(algorithm, "__name__", None)
    kind = type(algorithm)
    if isinstance(name, str):
        return name
    for each in components("agl.algorithms"):
        module, _, attribute = each.target.partition(":")
        if attribute == kind.__qualname__ and f"{kind.__module__}.".startswith(f"{module}."):
            return each.name
    return kind.__name__.lower()


def options_of(algorithm: Algorithm) -> dict[str, Any]:
    """The options that an algorithm has, without secrets, as JSON; functions by their names."""
    options = schema_of(type(algorithm)).options
    given = {option.name: getattr(algorithm, option.name, None) for option in options}
    redacted = redact({"type": name_of(algorithm), **given})
    return json.loads(json.dumps(redacted, default=lambda value: full_name_of(written(value))))


def code_of(agent: "LitAgent[Any]", algorithm: Algorithm, config: Mapping[str, Any]) -> RunCode:
    """Versions of what is installed, and what tells the user's source files from others."""
    objects = {"agent": agent, "algorithm": algorithm}
    if (grade := agent.grade_method()) is not None:
        objects["reward"] = cast(Any, grade)
    digests, commit = digests_of(objects, config), None
    if (file := source_file(written(agent))) is not None:
        # Of an agent that is installed, too: nobody records the version of its package.
        digests.setdefault("agent", digest_of(file))
        commit = commit_of(file.parent)
    return RunCode(versions=installed_versions(), sources=digests, commit=commit)


def installed_versions() -> dict[str, str]:
    """Of Python, agl-core, every plugin, and what models are run and trained with."""
    versions = {"python": platform.python_version()}
    versions |= {found.distribution: found.version for found in components()}
    return {**versions, "agl-core": __version__, **versions_of(_MODELS_RUN_ON)}


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Of those distributions that are installed."""
    found: dict[str, str] = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def commit_of(folder: Path, timeout: float = 5.0) -> str | None:
    """The commit that the repository of a folder is at; None where there is none, or no git."""
    # A hook of git, say, names its own repository in GIT_DIR.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), "rev-parse", "--quiet", "--verify", "HEAD"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=env, timeout=timeout
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _digest_of(dataset: Dataset[Any]) -> DatasetDigest:
    size = len(dataset)
    most = size if isinstance(dataset, Sequence) else min(size, _MOST_TASKS)
    digest = hashlib.sha256()
    for index in range(most):
        # The order of keys within a task tells nothing.
        text = json.dumps(json.loads(to_json_text(dataset[index * size // most])), sort_keys=True)
        digest.update(text.encode("utf-8", "surrogatepass") + b"\n")
    return DatasetDigest(num_tasks=size, digest=digest.hexdigest()[:16])
