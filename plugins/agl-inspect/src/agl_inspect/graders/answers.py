"""The answers of models that know nothing, and the server that gives them to agents."""

import contextlib
import json
import random
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from pydantic import ConfigDict

from agl.algorithm.base import Algorithm
from agl.algorithm.gateway import ModelConfig
from agl.types import LLM, private_of, without_private
from agl_http.layers import Receive, Scope, Send, send_whole
from agl_http.server import ServerThread
from agl_models.completions import AnswerWriter, ChatRequest, Piece
from agl_models.model_app import ModelApp
from agl_models.versions import model_served

MODEL = "agl-probe"
FORMS = (
    "<think></think>\n<answer></answer>\n\\boxed{}\n#### \nFinal answer: \n"
    '```json\n{"answer": ""}\n```\n```python\npass\n```\nDone. All tests pass.'
)
"""What graders look for around an answer, with nothing in it."""
COMMON = ("yes", "no", "true", "false", "A", "B", "C", "D", *map(str, range(101)))
WRONG = {
    "empty": "says nothing",
    "question": "repeats the last message",
    "random": "gives the solution of another task",
    "format": "has the form of an answer and nothing in it",
    "everything": "lists the solutions of all tasks, and common answers",
}
"""Answers that no grader should pay, and what each does."""


def solution_of(task: Any, key: str | None = None) -> str | None:
    """The known solution of a task, as text: its ``key``, or else ``solution`` or ``answer``.

    It is looked for in the private part of the task first.
    """
    for part in (private_of(task), without_private(task)):
        for name in (key,) if key else ("solution", "answer"):
            if isinstance(part, dict) and part.get(name) is not None:
                value = part[name]
                return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return None


class _ProbeRequest(ChatRequest):
    """Takes whatever agents send: nothing of it changes these answers."""

    model_config = ConfigDict(extra="ignore", strict=False)

    temperature: Any = None
    tool_choice: Any = None
    top_logprobs: Any = None


class AnswerServer(ModelApp[_ProbeRequest]):
    """Gives the answers of ``WRONG``, and solutions, at an address for each.

    ``solutions`` are of the tasks, in their order, with None where a task has none; they may grow.
    """

    request_type = _ProbeRequest
    owner = "agl"
    title = "the server of answers that audit a grader"

    def __init__(self, solutions: Sequence[str | None]) -> None:
        super().__init__(MODEL)
        self._solutions = solutions

    @contextlib.asynccontextmanager
    async def served(
        self, algorithm: Algorithm, name: str, answers: Sequence[tuple[str, int]]
    ) -> AsyncGenerator[list[LLM]]:
        """The model of each answer (its kind, and the number of its task), while this lasts.

        Agents call it through the algorithm's gateway, if it has one, by ``name`` and a number.
        """
        server = ServerThread(self)
        server.start()
        gateway = algorithm.get_llm_proxy()
        try:
            async with contextlib.AsyncExitStack() as stack:
                models: list[LLM] = []
                for number, (kind, task) in enumerate(answers):
                    endpoint = f"{server.url}/{kind}/{task}/v1"
                    if gateway is None:
                        models.append(LLM(endpoint=endpoint, model=MODEL))
                        continue
                    entry: ModelConfig = {
                        "model_name": f"{name}-{number}",
                        "litellm_params": {"model": f"hosted_vllm/{MODEL}", "api_base": endpoint},
                    }
                    store = algorithm.get_store()
                    await stack.enter_async_context(model_served(gateway, entry, store))
                    models.append(gateway.as_resource(model=f"{name}-{number}"))
                yield models
        finally:
            server.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take the kind of answer and the number of the task out of the address."""
        if scope["type"] == "http":
            _, kind, task, *rest = [*scope["path"].split("/"), "", ""]
            place = {"path": "/" + "/".join(rest).rstrip("/"), "kind": kind, "task": task}
            scope = {**scope, **place}
        await super().__call__(scope, receive, send)

    async def answer(self, request: _ProbeRequest, scope: Scope, send: Send) -> None:
        """Say the same for every choice."""
        text = self._text(scope["kind"], int(scope["task"]), request.messages)
        num_tokens = len(text.split())
        pieces = [
            Piece(index, text, finish_reason="stop", num_tokens=num_tokens)
            for index in range(request.n)
        ]
        writer = AnswerWriter(request, "chatcmpl-probe", [])
        await send_whole(send, 200, *writer.answer(pieces))

    def _text(self, kind: str, task: int, messages: list[dict[str, Any]]) -> str:
        solution = self._solutions[task]
        known = list(dict.fromkeys(one for one in self._solutions if one is not None))
        said = _text_of(messages[-1].get("content"))
        others = [one for one in known if one != solution] or said.split() or [""]
        answers = {
            "solution": solution or "",
            "question": said,
            "format": FORMS,
            "everything": "\n".join([*known, *COMMON]),
            "random": random.Random(task).choice(others),
        }
        return answers.get(kind, "")


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(_text_of(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
