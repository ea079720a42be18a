"""Whether a patch solves an instance: its hidden tests pass, and those that passed still do."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .workspace import FolderWorkspace, write_files

TEST_SECONDS = 120.0


def evaluate(instance: Mapping[str, Any], private: Mapping[str, Any], patch: str) -> dict[str, Any]:
    """A report: ``resolved``, and why not where it is False.

    Args:
        instance: As the agent was given it.
        private: Its tests.
        patch: In git's form; an empty one solves nothing.
    """
    if not patch.strip():
        return {"resolved": False, "reason": "no patch"}
    if "files" in instance:
        return _evaluate_folder(instance, private, patch)
    return _evaluate_container({**instance, **private}, patch)


def _evaluate_folder(
    instance: Mapping[str, Any], private: Mapping[str, Any], patch: str
) -> dict[str, Any]:
    workspace = FolderWorkspace(instance["files"])
    try:
        applied = subprocess.run(
            ["git", "apply", "-"], cwd=workspace.path, input=patch, capture_output=True, text=True
        )
        if applied.returncode != 0:
            return {"resolved": False, "reason": f"the patch does not apply: {applied.stderr}"}
        # After the patch, so that it cannot change them.
        write_files(Path(workspace.path), private["test_files"])
        tests = [*private["FAIL_TO_PASS"], *private["PASS_TO_PASS"]]
        failed: list[str] = []
        for test in tests:
            command = [sys.executable, "-B", "-m", "unittest", test]
            try:
                failed += [test] if workspace.run(command, {}, TEST_SECONDS).returncode else []
            except subprocess.TimeoutExpired:
                failed.append(test)
        if failed:
            return {"resolved": False, "reason": "tests fail", "failed": failed}
        return {"resolved": True}
    finally:
        workspace.close()


def _evaluate_container(instance: Mapping[str, Any], patch: str) -> dict[str, Any]:
    """With SWE-bench's own harness, in the instance's container."""
    run_id = "agl"
    with tempfile.TemporaryDirectory() as folder:
        data, predictions = Path(folder, "instance.jsonl"), Path(folder, "predictions.jsonl")
        data.write_text(json.dumps(dict(instance)) + "\n", encoding="utf-8")
        prediction = {
            "instance_id": instance["instance_id"],
            "model_name_or_path": run_id,
            "model_patch": patch,
        }
        predictions.write_text(json.dumps(prediction) + "\n", encoding="utf-8")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "swebench.harness.run_evaluation"),
                *("--dataset_name", str(data), "--predictions_path", str(predictions)),
                *("--run_id", run_id, "--max_workers", "1"),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        reports = list(Path(folder).glob(f"{run_id}.{run_id}.json"))
        if done.returncode != 0 or not reports:
            raise RuntimeError(f"SWE-bench's harness failed: {done.stderr[-2000:]}")
        resolved = json.loads(reports[0].read_text(encoding="utf-8"))["resolved_ids"]
        return {"resolved": instance["instance_id"] in resolved}
