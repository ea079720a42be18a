"""An agent that books meeting rooms: it looks rooms up with a tool, and answers with one name.

The reward is 1 when that is the smallest free room that has all that is needed, else 0. The prompt
does not say so at first.
"""

import json
from pathlib import Path
from typing import Any, TypedDict

import openai

import agl

FOLDER = Path(__file__).parent


class TaskInput(TypedDict):
    """What is asked for."""

    date: str
    time: str
    duration_min: int
    attendees: int
    needs: list[str]
    accessible_required: bool


class RoomKey(TypedDict):
    """The room that a meeting should get."""

    expected_choice: str


class RoomTask(TypedDict):
    """A meeting, and what only its grader sees."""

    id: str
    task_input: TaskInput
    private: RoomKey


ROOMS: list[dict[str, Any]] = [
    {"id": "Luna", "capacity": 2, "equipment": ["phone"], "accessible": True},
    {"id": "Vega", "capacity": 4, "equipment": ["whiteboard"], "accessible": False},
    {"id": "Mira", "capacity": 5, "equipment": ["whiteboard", "tv"], "accessible": True},
    {"id": "Orion", "capacity": 6, "equipment": ["projector", "phone"], "accessible": True},
    {"id": "Rigel", "capacity": 8, "equipment": ["tv", "whiteboard"], "accessible": False},
    {"id": "Nova", "capacity": 10, "equipment": ["projector", "phone", "tv"], "accessible": True},
    {"id": "Atlas", "capacity": 14, "equipment": ["projector", "whiteboard"], "accessible": False},
    {
        "id": "Terra",
        "capacity": 20,
        "equipment": ["projector", "whiteboard", "phone", "tv"],
        "accessible": True,
    },
]
BOOKINGS = [
    ("Luna", "2025-11-03", "09:00", 60),
    ("Orion", "2025-11-03", "10:00", 120),
    ("Nova", "2025-11-03", "15:00", 90),
    ("Mira", "2025-11-04", "09:30", 60),
    ("Rigel", "2025-11-04", "11:00", 180),
    ("Vega", "2025-11-05", "13:00", 120),
    ("Orion", "2025-11-05", "14:00", 60),
    ("Nova", "2025-11-06", "09:00", 240),
    ("Atlas", "2025-11-06", "10:00", 60),
    ("Mira", "2025-11-07", "14:00", 120),
    ("Luna", "2025-11-07", "16:00", 60),
]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_rooms_and_availability",
            "description": "All meeting rooms, and which of them are free at a time.",
            "parameters": {
                "type": "object",
                "properties": {
                    "date": {"type": "string", "description": "YYYY-MM-DD"},
                    "time": {"type": "string", "description": "HH:MM, 24 hours"},
                    "duration_min": {"type": "integer", "description": "minutes"},
                },
                "required": ["date", "time", "duration_min"],
            },
        },
    }
]


def minutes(time: str) -> int:
    """Minutes since midnight."""
    hours, rest = time.split(":")
    return 60 * int(hours) + int(rest)


def get_rooms_and_availability(date: str, time: str, duration_min: int) -> list[dict[str, Any]]:
    """The tool: every room, and whether it is free for the whole meeting."""
    start = minutes(time)
    taken = {
        room
        for room, day, begin, length in BOOKINGS
        if day == date and minutes(begin) < start + duration_min and start < minutes(begin) + length
    }
    return [{**room, "free": room["id"] not in taken} for room in ROOMS]


def right_room(wanted: TaskInput) -> str:
    """How the tasks are labelled: the smallest room that will do, or ``None``."""
    fitting = [
        room
        for room in get_rooms_and_availability(
            wanted["date"], wanted["time"], wanted["duration_min"]
        )
        if room["free"]
        and room["capacity"] >= wanted["attendees"]
        and set(wanted["needs"]) <= set(room["equipment"])
        and (room["accessible"] or not wanted["accessible_required"])
    ]
    return min(fitting, key=lambda room: room["capacity"])["id"] if fitting else "None"


def prompt_template_baseline() -> agl.PromptTemplate:
    """Where the optimisation begins."""
    return agl.PromptTemplate(
        template=(
            "Book a room on {date} at {time} for {duration_min} minutes, for {attendees} people. "
            "Needed: {needs}. Wheelchair access needed: {accessible_required}. "
            "Answer with the name of a room only."
        ),
        engine="f-string",
    )


def load_tasks() -> tuple[list[RoomTask], list[RoomTask]]:
    """The 57 tasks: 28 to search with, 29 held out."""
    lines = (FOLDER / "room_tasks.jsonl").read_text(encoding="utf-8").splitlines()
    tasks: list[RoomTask] = [json.loads(line) for line in lines]
    return tasks[:28], tasks[28:]


def grade_choice(task: RoomTask, private: RoomKey, result: str) -> float:
    """The reward: 1 for the right room, else 0. Its process is none that the agent reaches."""
    return float(result == private["expected_choice"])


@agl.rollout(grade=grade_choice)
def room_selector(task: RoomTask, prompt_template: agl.PromptTemplate, llm: agl.LLM) -> str:
    """Ask the model, call the tool as often as it wants, and return the room that it names."""
    prompt = prompt_template.format(**task["task_input"])
    messages: list[Any] = [{"role": "user", "content": prompt}]
    with openai.OpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        for _ in range(4):
            answer = client.chat.completions.create(
                model=llm.model, messages=messages, tools=TOOLS, **llm.sampling_parameters
            )
            message = answer.choices[0].message
            if not message.tool_calls:
                return (message.content or "").strip(" .")
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                arguments = json.loads(call.function.arguments)
                found = get_rooms_and_availability(**arguments)
                messages.append(
                    {"role": "tool", "tool_call_id": call.id, "content": json.dumps(found)}
                )
    return ""
