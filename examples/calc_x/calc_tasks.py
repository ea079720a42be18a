"""The problems: Calc-X where it is there, else a small set that is made here.

Calc-X is read from ``data/train.parquet`` and ``data/test.parquet``, or from the files that the
scripts are given; its columns ``question`` and ``result`` are used. The small set has 120 problems
to learn from and 40 others, made from 16 stories with numbers drawn at random, always the same.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

FOLDER = Path(__file__).parent
NUM_TRAIN, NUM_TEST = 120, 40


class CalcKey(TypedDict):
    """The number that is the answer, as text."""

    result: str


class CalcTask(TypedDict):
    """A problem, and what only its grader sees."""

    question: str
    private: CalcKey


Story = Callable[[random.Random], tuple[str, float]]


def _shopping(draw: random.Random) -> tuple[str, float]:
    pens, price, notebooks, cost = (draw.randint(2, 40) for _ in range(4))
    text = (
        f"A pen costs {price} cents and a notebook costs {cost} cents. How many cents do {pens} "
        f"pens and {notebooks} notebooks cost?"
    )
    return text, pens * price + notebooks * cost


def _bus(draw: random.Random) -> tuple[str, float]:
    start, off, on = draw.randint(20, 60), draw.randint(2, 15), draw.randint(2, 30)
    text = f"A bus has {start} passengers. {off} get off and {on} get on. How many are there now?"
    return text, start - off + on


def _boxes(draw: random.Random) -> tuple[str, float]:
    boxes, each, broken = draw.randint(3, 30), draw.randint(6, 48), draw.randint(1, 15)
    text = f"{boxes} boxes hold {each} eggs each, and {broken} eggs are broken. How many are whole?"
    return text, boxes * each - broken


def _share(draw: random.Random) -> tuple[str, float]:
    children, each, left = draw.randint(3, 12), draw.randint(4, 30), draw.randint(1, 2)
    total = children * each + left
    text = f"{children} children share {total} sweets fairly. How many sweets are left over?"
    return text, left


def _journey(draw: random.Random) -> tuple[str, float]:
    speed, hours = draw.randint(4, 22) * 5, draw.randint(2, 9)
    text = f"A train goes {speed} km per hour for {hours} and a half hours. How many km is that?"
    return text, speed * (hours + 0.5)


def _discount(draw: random.Random) -> tuple[str, float]:
    price, percent = draw.randint(4, 60) * 20, draw.choice([5, 10, 15, 20, 25, 40])
    text = f"A coat for {price} euros is reduced by {percent} percent. What does it cost now?"
    return text, price * (100 - percent) / 100


def _average(draw: random.Random) -> tuple[str, float]:
    numbers = [draw.randint(10, 99) for _ in range(4)]
    text = f"What is the average of {', '.join(map(str, numbers[:3]))} and {numbers[3]}?"
    return text, sum(numbers) / 4


def _garden(draw: random.Random) -> tuple[str, float]:
    length, width, path = draw.randint(10, 40), draw.randint(5, 25), draw.randint(1, 2)
    text = (
        f"A garden is {length} metres long and {width} metres wide. A path of {path} metres runs "
        "around it on the inside. How many square metres are left within the path?"
    )
    return text, (length - 2 * path) * (width - 2 * path)


def _saving(draw: random.Random) -> tuple[str, float]:
    start, weekly, weeks = draw.randint(10, 200), draw.randint(3, 40), draw.randint(4, 52)
    text = f"Mia has {start} euros and saves {weekly} a week. How many has she in {weeks} weeks?"
    return text, start + weekly * weeks


def _pages(draw: random.Random) -> tuple[str, float]:
    each, days, left = draw.randint(8, 45), draw.randint(3, 20), draw.randint(5, 200)
    text = (
        f"A book has {each * days + left} pages. Tom reads {each} pages a day. How many pages are "
        f"left after {days} days?"
    )
    return text, left


def _sum(draw: random.Random) -> tuple[str, float]:
    a, b, c = (draw.randint(100, 9999) for _ in range(3))
    return f"What is {a} + {b} - {c}?", a + b - c


def _product(draw: random.Random) -> tuple[str, float]:
    a, b, c = draw.randint(12, 99), draw.randint(12, 99), draw.randint(2, 9)
    return f"What is ({a} + {b}) * {c}?", (a + b) * c


def _fraction(draw: random.Random) -> tuple[str, float]:
    parts, each = draw.choice([4, 5, 8, 10]), draw.randint(3, 40)
    used = draw.randint(2, parts - 1)
    text = f"A tank holds {parts * each} litres. {used}/{parts} of it is used. How many are left?"
    return text, each * (parts - used)


def _wages(draw: random.Random) -> tuple[str, float]:
    hours, rate, tax = draw.randint(10, 40), draw.randint(12, 45), draw.choice([10, 20, 25])
    text = (
        f"Ana works {hours} hours for {rate} euros an hour and pays {tax} percent of it as tax. "
        "How many euros does she keep?"
    )
    return text, hours * rate * (100 - tax) / 100


def _recipe(draw: random.Random) -> tuple[str, float]:
    grams, people, guests = draw.randint(5, 40) * 12, draw.choice([2, 3, 4, 6]), draw.randint(5, 24)
    text = (
        f"A recipe for {people} people takes {grams} grams of flour. How many grams does it take "
        f"for {guests} people?"
    )
    return text, grams / people * guests


def _ages(draw: random.Random) -> tuple[str, float]:
    child, factor, years = draw.randint(4, 12), draw.randint(3, 5), draw.randint(2, 20)
    text = (
        f"Leo is {child} years old and his mother is {factor} times as old. How old are they "
        f"together in {years} years?"
    )
    return text, child + child * factor + 2 * years


STORIES: list[Story] = [
    *(_shopping, _bus, _boxes, _share, _journey, _discount, _average, _garden),
    *(_saving, _pages, _sum, _product, _fraction, _wages, _recipe, _ages),
]


def small_tasks() -> tuple[list[CalcTask], list[CalcTask]]:
    """Train and test problems of the small set; no problem is in both."""
    draw = random.Random(0)
    tasks: dict[str, CalcTask] = {}
    while len(tasks) < NUM_TRAIN + NUM_TEST:
        question, result = STORIES[len(tasks) % len(STORIES)](draw)
        tasks.setdefault(question, calc_task(question, f"{result:g}"))
    made = list(tasks.values())
    return made[:NUM_TRAIN], made[NUM_TRAIN:]


def load_tasks(
    train_file: Path | None = None, test_file: Path | None = None
) -> tuple[list[CalcTask], list[CalcTask]]:
    """Calc-X if it is named or in ``data``, else the small set.

    Raises:
        FileNotFoundError: A file that is named, or one of the two, is not there.
    """
    data = FOLDER / "data"
    if train_file is None and test_file is None and not data.is_dir():
        return small_tasks()
    return (
        read_parquet(train_file or data / "train.parquet"),
        read_parquet(test_file or data / "test.parquet"),
    )


def read_parquet(path: Path) -> list[CalcTask]:
    """The problems of one file of Calc-X.

    Raises:
        KeyError: It has no ``question`` or no ``result``.
    """
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(path).to_pylist()
    return [calc_task(row["question"], str(row["result"])) for row in rows]


def calc_task(question: str, result: str) -> CalcTask:
    """A problem with its answer where the agent does not get it."""
    return {"question": question, "private": {"result": result}}
