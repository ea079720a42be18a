"""Instances: a file of JSON lines, or SWE-bench itself."""

import json
from pathlib import Path
from typing import Any, TypedDict

HIDDEN = ("patch", "test_patch", "test_files", "FAIL_TO_PASS", "PASS_TO_PASS", "hints_text")


class SwebenchTask(TypedDict):
    """What Claude Code is given, and what only the grader sees: the tests and the solution."""

    instance_id: str
    problem_statement: str
    instance: dict[str, Any]
    private: dict[str, Any]


def load_swebench_dataset(path: Path | str, limit: int | None = None) -> list[SwebenchTask]:
    """Tasks of a file, or of a data set of Hugging Face by its name.

    Args:
        path: JSON lines with SWE-bench's fields, or for example ``princeton-nlp/SWE-bench_Lite``.
        limit: So many, from the first.

    Raises:
        KeyError: An instance lacks ``instance_id`` or ``problem_statement``.
    """
    if Path(path).is_file():
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        instances = [json.loads(line) for line in lines]
    else:
        from datasets import load_dataset

        instances = [dict(one) for one in load_dataset(str(path), split="test")]
    return [task_of(instance) for instance in instances[:limit]]


def task_of(instance: dict[str, Any]) -> SwebenchTask:
    """An instance with its tests and its solution where the agent does not get them."""
    return {
        "instance_id": instance["instance_id"],
        "problem_statement": instance["problem_statement"],
        "instance": {name: value for name, value in instance.items() if name not in HIDDEN},
        "private": {name: instance[name] for name in HIDDEN if name in instance},
    }
