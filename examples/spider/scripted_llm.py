"""A model server for dry runs without a model: it knows the reference queries by heart.

For every second question it writes a query that cannot run at first, says so when asked to check
it, and writes the right one when asked to rewrite it.
"""

import re
from collections.abc import Callable
from typing import Any

from sql_tasks import SqlTask

Reply = Callable[[dict[str, Any]], str]


def scripted_reply(tasks: list[SqlTask]) -> Reply:
    """What ``agl_testing.echo_llm.EchoLLM`` answers to the agent's prompts about these tasks."""
    queries = {task["question"]: task["private"]["query"] for task in tasks}
    numbers = {task["question"]: number for number, task in enumerate(tasks)}

    def reply(request: dict[str, Any]) -> str:
        prompt = request["messages"][-1]["content"]
        if prompt.startswith("You check"):
            failed = "\nIt returned:\nError:" in prompt
            return f"THE QUERY IS {'INCORRECT' if failed else 'CORRECT'}"
        question = _between(prompt, "Question: ", "\n")
        query = queries[question]
        if prompt.startswith("You write") and numbers[question] % 2:
            query = query.replace("FROM ", "FROM the_", 1)
        return f"```sql\n{query}\n```"

    return reply


def _between(text: str, start: str, end: str) -> str:
    found = re.search(f"{re.escape(start)}(.*?){re.escape(end)}", text)
    if found is None:
        raise ValueError(f"expected {start!r} in the prompt; got {text[:200]!r}")
    return found.group(1)
