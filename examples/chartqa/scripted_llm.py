"""A model server for tries without a model: it knows what the small charts show.

It does not see: it takes the data out of the PNG file that it is sent, where ``prepare_data.py``
has put them. Questions of the form "How many more" it gets wrong at first, finds that out when
asked to check, and gets right when asked to mend.
"""

import io
import json
import re
from typing import Any

from multimodal_utils import read_image
from prepare_data import DESCRIPTION


def chart_in(picture: bytes) -> dict[str, Any]:
    """What a small chart shows.

    Raises:
        ValueError: The picture is none of the small charts.
    """
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as image:
        described = image.info.get(DESCRIPTION)
    if described is None:
        raise ValueError("the scripted model knows the small charts alone; this is another picture")
    return json.loads(described)


def data_of(chart: dict[str, Any]) -> str:
    """As ``extract`` is to write them."""
    return "\n".join(f"{name} | {value}" for name, value in chart["values"].items())


def scripted_reply(request: dict[str, Any]) -> str:
    """What ``agl_testing.echo_llm.EchoLLM`` answers to the agent's prompts."""
    content = request["messages"][-1]["content"]
    if isinstance(content, list):  # the text, and the chart
        prompt, url = content[0]["text"], content[1]["image_url"]["url"]
        chart = chart_in(read_image(url))
        if prompt.startswith("You read"):
            return data_of(chart)
        names = ", ".join(chart["values"])
        return f"A {chart['kind']} chart of {chart['thing']} sold. It has values for {names}."
    prompt = content
    right = _right_answer(prompt)
    if prompt.startswith("You check"):
        is_right = f"<answer>{right}</answer>" in prompt
        return f"THE ANSWER IS {'RIGHT' if is_right else 'WRONG'}"
    if prompt.startswith("You answer") and "How many more" in prompt:
        right = f"-{right}"
    return f"<answer>{right}</answer>"


def _right_answer(prompt: str) -> str:
    values = {name: int(value) for name, value in re.findall(r"^(\w+) \| (\d+)$", prompt, re.M)}
    question = prompt.partition("Question: ")[2].partition("\n")[0]
    asked = [name for name in re.findall(r"\w+", question) if name in values]
    if question.startswith("Where"):
        return max(values, key=values.__getitem__)
    if question.startswith("How many more"):
        return str(values[asked[0]] - values[asked[1]])
    return str(values[asked[0]])
