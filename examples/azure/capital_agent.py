"""An agent that answers questions for capitals, and has a tool to look them up.

    python capital_agent.py     # five questions, against the model at OPENAI_BASE_URL

Names of capitals are known to every model; what is learned here is to look them up all the same, as
the prompt says, and to answer with what was found.
"""

import csv
import json
import os
from pathlib import Path
from typing import Any, TypedDict

import agl

FOLDER = Path(__file__).parent
SAMPLES = FOLDER / "capital_samples.csv"
TRAIN_SHARE = 0.8
SYSTEM_MESSAGE = (
    "You answer questions for capitals. Always look the country up with the tool "
    "country_capital_lookup, and answer with the name of the city alone."
)
MAX_CALLS = 4
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "country_capital_lookup",
            "description": "The capital of a country.",
            "parameters": {
                "type": "object",
                "properties": {"country": {"type": "string", "description": "Its English name."}},
                "required": ["country"],
            },
        },
    }
]


class CapitalKey(TypedDict):
    """The capital that is asked for."""

    answer: str


class CapitalTask(TypedDict):
    """A question, and what only its grader sees."""

    question: str
    private: CapitalKey


CAPITALS = {
    **{"France": "Paris", "Norway": "Oslo", "Japan": "Tokyo", "Kenya": "Nairobi", "Peru": "Lima"},
    **{"Canada": "Ottawa", "Australia": "Canberra", "Egypt": "Cairo", "Chile": "Santiago"},
    **{"Portugal": "Lisbon", "Thailand": "Bangkok", "Poland": "Warsaw", "Turkey": "Ankara"},
    **{"Brazil": "Brasília", "Finland": "Helsinki", "Ghana": "Accra", "Vietnam": "Hanoi"},
    **{"Greece": "Athens", "Cuba": "Havana", "Ireland": "Dublin", "Nepal": "Kathmandu"},
    **{"Hungary": "Budapest", "Morocco": "Rabat", "Iceland": "Reykjavik", "Senegal": "Dakar"},
    **{"Uruguay": "Montevideo", "Austria": "Vienna", "Mongolia": "Ulaanbaatar"},
    **{"Bolivia": "Sucre", "Croatia": "Zagreb", "Jordan": "Amman", "Denmark": "Copenhagen"},
    **{"Ecuador": "Quito", "Kazakhstan": "Astana", "Estonia": "Tallinn", "Zambia": "Lusaka"},
    **{"Belgium": "Brussels", "Pakistan": "Islamabad", "Jamaica": "Kingston"},
    **{"Slovenia": "Ljubljana"},
}


def country_capital_lookup(country: str) -> str:
    """The tool: a capital, or that there is no such country."""
    return CAPITALS.get(country, f"There is no country {country!r} in the table.")


def load_tasks(path: Path = SAMPLES) -> tuple[list[CapitalTask], list[CapitalTask]]:
    """Four fifths of the questions to learn from, and the rest."""
    with path.open(encoding="utf-8", newline="") as lines:
        tasks: list[CapitalTask] = [
            {"question": line["question"], "private": {"answer": line["answer"]}}
            for line in csv.DictReader(lines)
        ]
    split = round(TRAIN_SHARE * len(tasks))
    return tasks[:split], tasks[split:]


def grade_answer(task: CapitalTask, private: CapitalKey, result: str) -> float:
    """The reward: 1 when the answer has the capital's name in it, else 0."""
    return float(private["answer"].lower() in str(result).lower())


@agl.rollout(grade=grade_answer)
async def capital_agent(task: CapitalTask, llm: agl.LLM) -> str:
    """Answer a question; what is returned is graded."""
    return await answer(task["question"], llm)


async def answer(question: str, llm: agl.LLM, *, show: bool = False) -> str:
    """What the model says at last; nothing when it goes on calling, or calls what is not there."""
    from openai import AsyncOpenAI

    messages: list[Any] = [
        {"role": "system", "content": SYSTEM_MESSAGE},
        {"role": "user", "content": question},
    ]
    async with AsyncOpenAI(
        base_url=llm.endpoint,
        api_key=llm.api_key or "none",
        max_retries=0,  # the gateway retries, and records each call once
    ) as client:
        for _ in range(MAX_CALLS):
            completion = await client.chat.completions.create(
                model=llm.model, messages=messages, tools=TOOLS, **llm.sampling_parameters
            )
            message = completion.choices[0].message
            if not message.tool_calls:
                return (message.content or "").strip()
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                found = use_tool(call.function)  # type: ignore[union-attr]
                if show:
                    print(f"   {call.function.arguments} -> {found}")  # type: ignore[union-attr]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    return ""


def use_tool(function: Any) -> str:
    """What a call of the tool gives; a call that is wrong gives what is wrong about it."""
    try:
        arguments = json.loads(function.arguments)
        if function.name == "country_capital_lookup" and isinstance(arguments["country"], str):
            return country_capital_lookup(arguments["country"])
    except (ValueError, TypeError, KeyError):
        pass
    return 'Wrong call: expected country_capital_lookup with {"country": "its name"}.'


async def debug() -> None:
    """Answer five questions without trainer, runner or store."""
    llm = agl.LLM(
        endpoint=os.environ.get("OPENAI_BASE_URL") or os.environ["OPENAI_API_BASE"],
        api_key=os.environ.get("OPENAI_API_KEY"),
        model=os.environ.get("AGENT_MODEL", "gpt-4.1-mini"),
    )
    for task in load_tasks()[1][:5]:
        said = await answer(task["question"], llm, show=True)
        print(f"{grade_answer(task, task['private'], said):g}  {task['question']}  {said}")


if __name__ == "__main__":
    import asyncio

    asyncio.run(debug())
