"""A planted problem for prompt optimisers: what a prompt is worth is known, without a model.

A task needs two of six facts. A worker succeeds with a chance of 0.1, 0.4 or 0.95 when the prompt
has none, one or both of them, and each useless fact in the prompt takes a tenth of that chance off.
A scripted proposer stands in for the models that criticise and edit: it adds a fact that is missing
(a hit), a useless one, or takes one away; or, for measuring false acceptance, only says the same in
other words.
"""

import hashlib
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

NUM_FACTS = 6
NUM_USELESS = 4
CHANCES = (0.1, 0.4, 0.95)
SEED_PROMPT = "Help with {request}.\nKnown:."
KNOWN = re.compile(r"Known:([ \d]*)\.")
CHANGE = re.compile(r"NEW LIST:([ \d]*)\.")


def make_tasks(seed: int, number: int, kind: str) -> list[dict[str, Any]]:
    """Tasks with two of the facts each."""
    rng = random.Random(f"tasks/{seed}/{kind}")
    return [
        {"request": f"{kind} {index}", "needs": sorted(rng.sample(range(NUM_FACTS), 2))}
        for index in range(number)
    ]


def facts_of(prompt: str) -> frozenset[int]:
    """The facts that a prompt states, useless ones (from ``NUM_FACTS`` on) too."""
    found = KNOWN.search(prompt)
    return frozenset(map(int, found.group(1).split())) if found else frozenset()


def chance(prompt: str, task: dict[str, Any]) -> float:
    """How likely the worker succeeds."""
    facts = facts_of(prompt)
    useless = sum(fact >= NUM_FACTS for fact in facts)
    return CHANCES[sum(fact in facts for fact in task["needs"])] * 0.9**useless


def quality(prompt: str) -> float:
    """Mean chance over all pairs of facts; the optimum is 0.95."""
    pairs = [(a, b) for a in range(NUM_FACTS) for b in range(a)]
    return sum(chance(prompt, {"needs": pair}) for pair in pairs) / len(pairs)


def reward(prompt: str, task: dict[str, Any], *draw: object) -> float:
    """1 or 0; the same for the same ``draw``."""
    return float(random.Random(f"{draw}/{task}/{prompt}").random() < chance(prompt, task))


@dataclass
class Proposer:
    """Answers what critics and editors are asked, as a reply function of ``EchoLLM``.

    Models named ``critic`` give a critique, ``editor`` the prompt that it asks for, and
    ``reflect`` the edited prompt at once.
    """

    seed: int
    hit_rate: float = 0.5
    paraphrase_only: bool = False
    repeatable: bool = False
    """The same question always has the same answer; else it is a new draw each time."""
    asked: Counter[str] = field(default_factory=Counter[str])

    def __call__(self, body: dict[str, Any]) -> str:
        """The answer to a chat completion's body."""
        text = "\n".join(_text(message["content"]) for message in body["messages"])
        digest = hashlib.sha256(text.encode()).hexdigest()
        draw = 0 if self.repeatable else self.asked[digest]
        self.asked[digest] += 1
        rng = random.Random(f"{self.seed}/{digest}/{draw}")
        if body["model"] == "editor":
            # The critique is the last thing that names a list.
            return prompt_with(CHANGE.findall(text)[-1], rng if self.paraphrase_only else None)
        changed = self._change(facts_of(text), rng)
        if body["model"] == "reflect":
            new = prompt_with(changed, rng if self.paraphrase_only else None)
            return f"```\n{new}\n```"
        return f"The prompt should say more, number {rng.random()}.\nNEW LIST:{changed}."

    def _change(self, facts: frozenset[int], rng: random.Random) -> str:
        new, luck = set(facts), rng.random()
        if not self.paraphrase_only:
            missing = [fact for fact in range(NUM_FACTS) if fact not in facts]
            if luck < self.hit_rate:
                new |= set(rng.sample(missing, min(1, len(missing))))
            elif luck < (1 + self.hit_rate) / 2:
                new.add(NUM_FACTS + rng.randrange(NUM_USELESS))
            else:
                new -= set(rng.sample(sorted(facts), min(1, len(facts))))
        return "".join(f" {fact}" for fact in sorted(new))


def prompt_with(facts: str, rng: random.Random | None = None) -> str:
    """A prompt with these facts; with ``rng`` in words of its own."""
    words = "" if rng is None else f" Take care, as always ({rng.randrange(10**9)})."
    return f"Help with {{request}}.{words}\nKnown:{facts}."


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
