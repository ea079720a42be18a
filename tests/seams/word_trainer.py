"""The trainer that ``docs/howto/write-a-trainer.md`` writes, and an agent."""

import re
import sys
from pathlib import Path
from typing import Any

from tests.models import answer_of

import agl

PAGE = Path(__file__).parents[2] / "docs/howto/write-a-trainer.md"
WORDS = ["hello", "bye", "what"]


def write_trainer(folder: Path) -> type[Any]:
    """Write the page's files into a folder, and import the class from there."""
    text = PAGE.read_text("utf-8")
    for name, source in re.findall(r'```python [^\n]*file="(\w+\.py)"\n(.*?)```', text, re.S):
        (folder / name).write_text(source)
    sys.path.insert(0, str(folder))
    from reinforce import Reinforce

    return Reinforce


async def ask(llm: agl.LLM, text: str, endpoint: str = "") -> float:
    """Whether the model greets."""
    return float(await answer_of(llm, text, endpoint, **llm.sampling_parameters) == "hello")
