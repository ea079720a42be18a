"""A model server for dry runs without a model: it knows the small world's questions by their form.

It searches whom the question names, then the place that it read of, then answers.
"""

import re
from typing import Any


def scripted_reply(request: dict[str, Any]) -> str:
    """What ``agl_testing.echo_llm.EchoLLM`` answers to the agent of this folder."""
    first, *rest = [m["content"] for m in request["messages"] if m["role"] == "user"]
    question = first.rpartition("Question: ")[2]
    person = _first(r"([A-Z]\w+ (?:Lind|Moss|Reed))", question)
    if not rest:
        return f"<think>Who is that?</think> <search>{person}</search>"
    told = rf"{person} moved to (\w+)\." if "move" in question else rf"{person} was born in (\w+) "
    place = _first(told, rest[0])
    if question.startswith(("In which", "To which")):
        return f"<answer>{place}</answer>"
    if len(rest) == 1:
        return f"<think>And {place}?</think> <search>{place}</search>"
    fact = rf"{place} is [\w ]+\. It lies on (the \w+)\."
    if "country" in question:
        fact = rf"{place} is the capital of (\w+)\."
    return f"<answer>{_first(fact, rest[1])}</answer>"


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"expected {pattern!r} in {text!r}")
    return found[1]
