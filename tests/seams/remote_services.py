"""What is outside of a run that trains no weights here: ``remote_services.py ALGORITHM``.

For apo and gepa the models that criticise, edit and reflect, and the worker that has the prompt;
for azure-sft a local Azure, for tinker a local Tinker. It writes its address, as a line of JSON,
and serves until its input ends; then it writes what it was asked for, and what came of it.
"""

import contextlib
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "benchmarks"))

Service = tuple[str, Callable[[], dict[str, Any]]]
"""Its address, and what says in the end what was asked of it."""


def models(stack: contextlib.ExitStack) -> Service:
    """Critic, editor, reflector and worker; ``asked`` says how often each was."""
    from apo_world import Proposer, reward

    from agl_testing.echo_llm import EchoLLM

    proposer, asked = Proposer(0, repeatable=True), Counter[str]()

    def reply(body: dict[str, Any]) -> str:
        asked[body["model"]] += 1
        if body["model"] != "worker":
            return proposer(body)
        prompt, task = (message["content"] for message in body["messages"])
        return "done" if reward(prompt, json.loads(task), body["seed"]) else "not done"

    return stack.enter_context(EchoLLM(reply)).url, lambda: {"asked": asked}


def azure(stack: contextlib.ExitStack) -> Service:
    """A local Azure; ``data`` is a digest of what each job trained which model on."""
    from answers import WORDS
    from tests.plugins.azure.azure_server import Azure

    service = Azure(guesses=WORDS)
    service.server.start()
    stack.callback(service.server.stop)

    def said() -> dict[str, Any]:
        jobs = list(service.jobs.values())
        data = [(one["model"], service.contents[one["training_file"]]) for one in jobs]
        kept = {"files": len(service.files), "deployments": sorted(service.deployments)}
        counts = {"jobs": len(jobs), "uploads": service.uploads}
        return {**counts, **kept, "data": _digest(json.dumps(data))}

    return service.server.url, said


def tinker(stack: contextlib.ExitStack) -> Service:
    """A local Tinker; ``weights`` is a digest of the newest ones, with Adam's state."""
    from tests.plugins.tinker.tinker_server import Tinker
    from tests.plugins.tinker.words import END, WORDS

    service = Tinker(len(WORDS), WORDS.index(END))
    service.server.start()
    stack.callback(service.server.stop)

    def said() -> dict[str, Any]:
        saved = [path.rsplit("-", 1)[-1] for path in service.written]
        table = service.saved[service.written[-1]]
        parts = (table.weights, table.first, table.second)
        digest = _digest(b"".join(part.tobytes() for part in parts))
        counts = {"steps": service.steps, "saved": Counter(saved), "kept": len(service.saved)}
        return {**counts, "weights": digest}

    return service.server.url, said


def _digest(data: str | bytes) -> str:
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()[:16]


SERVICES = {"apo": models, "gepa": models, "azure-sft": azure, "tinker": tinker}

if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        url, said = SERVICES[sys.argv[1]](stack)
        print(json.dumps(url), flush=True)
        sys.stdin.read()
        print(json.dumps(said()))
