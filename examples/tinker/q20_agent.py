"""Twenty questions: a player asks, an answerer answers, and a tool pretends to search.

    python q20_agent.py     # one game, all three played by the model at OPENAI_BASE_URL

Plain OpenAI calls, and nothing of agl or Tinker: the same game is trained (``q20_train.py``) and
measured (``q20_evaluate.py``). The player writes ``question: ...``, ``search: ...`` or
``guess: ...``; words and not calls of tools, as Tinker's models are asked for text.
"""

import asyncio
import csv
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

FOLDER = Path(__file__).parent
MAX_TURNS = 20
MAX_SEARCHES = 3
PLAYER = """We play twenty questions. I think of something; its category is: {category}. In each
turn write one line and nothing else:
question: a question that can be answered with yes or no
{search}guess: the thing
You have {turns} turns. Guess when you are fairly sure: a right guess wins."""
SEARCH_LINE = "search: what you want to look up; it costs no turn, and works {searches} times\n"
ANSWERER = """You answer in a game of twenty questions. The secret is: {answer} (its category:
{category}). Answer the question with one word: yes, no or unclear.

Question: {question}"""
SEARCHER = """You are a search engine. Give two short sentences on what is asked for, as an
encyclopedia would. Query: {query}"""


class Noun(TypedDict):
    """What is to be guessed."""

    category: str
    answer: str
    search_enabled: bool


@dataclass
class Model:
    """A model at an OpenAI-compatible address."""

    client: Any
    name: str
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])

    async def ask(self, messages: list[Any]) -> str:
        """Its answer."""
        completion = await self.client.chat.completions.create(
            model=self.name, messages=messages, **self.parameters
        )
        return completion.choices[0].message.content or ""


@dataclass
class Game:
    """How a game went."""

    solved: bool = False
    turns: int = 0
    searches: int = 0
    lines: list[str] = field(default_factory=list[str])

    @property
    def reward(self) -> float:
        """1 for a win at once, less by a fortieth for each turn; 0 for a loss."""
        return 1 - (self.turns - 1) / (2 * MAX_TURNS) if self.solved else 0.0


def load_nouns(split: str, path: Path = FOLDER / "q20_nouns.csv") -> list[Noun]:
    """Those of ``train`` or of ``test``."""
    with path.open(encoding="utf-8", newline="") as lines:
        return [
            {
                "category": line["category"],
                "answer": line["answer"],
                "search_enabled": line["search_enabled"] == "true",
            }
            for line in csv.DictReader(lines)
            if line["split"] == split
        ]


async def play(noun: Noun, player: Model, helper: Model, *, search: bool = False) -> Game:
    """One game.

    Args:
        noun: What is to be guessed.
        player: Who asks.
        helper: Who answers, and who is the search engine.
        search: Whether the player may search, for nouns that allow it.
    """
    may_search = search and noun["search_enabled"]
    rules = PLAYER.format(
        category=noun["category"],
        search=SEARCH_LINE.format(searches=MAX_SEARCHES) if may_search else "",
        turns=MAX_TURNS,
    )
    messages: list[Any] = [{"role": "user", "content": rules}]
    game = Game()
    while game.turns < MAX_TURNS:
        said = await player.ask(messages)
        kind, text = parse(said)
        game.lines.append(f"{kind}: {text}")
        if kind == "search" and may_search and game.searches < MAX_SEARCHES:
            game.searches += 1
            query = [{"role": "user", "content": SEARCHER.format(query=text)}]
            reply = await helper.ask(query)
        else:
            game.turns += 1
            if kind == "guess" and is_same(text, noun["answer"]):
                game.solved = True
                return game
            reply = await _reply(kind, text, noun, helper)
        game.lines.append(reply)
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": reply})
    return game


async def _reply(kind: str, text: str, noun: Noun, helper: Model) -> str:
    if kind == "guess":
        return "no"
    if kind != "question":
        return "Write one line that begins with question: or guess:"
    prompt = ANSWERER.format(answer=noun["answer"], category=noun["category"], question=text)
    said = (await helper.ask([{"role": "user", "content": prompt}])).lower()
    found = re.search(r"\b(yes|no|unclear)\b", said)
    return found[1] if found else "unclear"


def parse(said: str) -> tuple[str, str]:
    """``question``, ``search`` or ``guess`` with its text; nothing where it is none of them."""
    pattern = r"(?im)^\s*(question|search|guess)\s*:\s*(.+)$"
    found = re.search(pattern, said)
    return (found[1].lower(), found[2].strip()) if found else ("", said.strip())


def is_same(guess: str, answer: str) -> bool:
    """Whether a guess is the answer, articles and punctuation aside."""
    words = re.findall(r"[a-z]+", guess.lower())
    return [word for word in words if word not in ("a", "an", "the", "it", "is")] == [answer]


def helper_model() -> Model:
    """The model of ``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and ``HELPER_MODEL``."""
    from openai import AsyncOpenAI

    base = os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
    return Model(AsyncOpenAI(base_url=base), os.environ.get("HELPER_MODEL", "gpt-4.1-mini"))


async def debug() -> None:
    """One game, shown."""
    model = helper_model()
    game = await play(load_nouns("test")[0], model, model, search=True)
    print("\n".join(game.lines))
    print(f"reward {game.reward:g} after {game.turns} turns")


if __name__ == "__main__":
    asyncio.run(debug())
