"""Six small SQLite databases, made up here, so that the example runs without the Spider download.

    python make_databases.py [FOLDER]

The folder gets the layout of Spider: ``database/<db_id>/*.sqlite``. Each database has two files,
of one schema and different rows: a query that returns the right rows of one by luck fails in the
other. The questions and their reference queries are in ``questions.jsonl``.
"""

import os
import random
import sqlite3
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

DEFAULT_FOLDER = Path(__file__).parent / "data-mini"
FIRST_NAMES = [
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gus",
    "Hana",
    "Ivo",
    "June",
    "Kai",
    "Lea",
    "Max",
    "Nora",
    "Omar",
    "Pia",
    "Quin",
]
LAST_NAMES = [
    "Adler",
    "Brandt",
    "Costa",
    "Diaz",
    "Evans",
    "Fox",
    "Green",
    "Hill",
    "Ito",
    "Jones",
    "Klein",
    "Lopez",
]
COUNTRIES = ["France", "Japan", "Brazil", "Kenya", "Norway"]
CITIES = ["Paris", "Oslo", "Lima", "Cairo", "Delhi"]

SCHEMAS = {
    "concerts": """
        CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name TEXT, country TEXT, age INTEGER);
        CREATE TABLE stadium (
            stadium_id INTEGER PRIMARY KEY, name TEXT, city TEXT, capacity INTEGER);
        CREATE TABLE concert (
            concert_id INTEGER PRIMARY KEY, title TEXT, year INTEGER,
            stadium_id INTEGER REFERENCES stadium(stadium_id));
        CREATE TABLE performance (
            concert_id INTEGER REFERENCES concert(concert_id),
            singer_id INTEGER REFERENCES singer(singer_id));
    """,
    "library": """
        CREATE TABLE author (
            author_id INTEGER PRIMARY KEY, name TEXT, country TEXT, birth_year INTEGER);
        CREATE TABLE book (
            book_id INTEGER PRIMARY KEY, title TEXT, author_id INTEGER REFERENCES author(author_id),
            genre TEXT, pages INTEGER, published INTEGER);
        CREATE TABLE member (
            member_id INTEGER PRIMARY KEY, name TEXT, city TEXT, joined INTEGER);
        CREATE TABLE loan (
            loan_id INTEGER PRIMARY KEY, book_id INTEGER REFERENCES book(book_id),
            member_id INTEGER REFERENCES member(member_id), days INTEGER, returned INTEGER);
    """,
    "shop": """
        CREATE TABLE customer (customer_id INTEGER PRIMARY KEY, name TEXT, city TEXT);
        CREATE TABLE product (
            product_id INTEGER PRIMARY KEY, name TEXT, category TEXT, price REAL, stock INTEGER);
        CREATE TABLE purchase (
            purchase_id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customer(customer_id),
            product_id INTEGER REFERENCES product(product_id), quantity INTEGER, month INTEGER);
    """,
    "school": """
        CREATE TABLE teacher (
            teacher_id INTEGER PRIMARY KEY, name TEXT, subject TEXT, salary INTEGER);
        CREATE TABLE course (
            course_id INTEGER PRIMARY KEY, title TEXT,
            teacher_id INTEGER REFERENCES teacher(teacher_id), credits INTEGER);
        CREATE TABLE student (
            student_id INTEGER PRIMARY KEY, name TEXT, grade INTEGER, age INTEGER);
        CREATE TABLE enrolment (
            student_id INTEGER REFERENCES student(student_id),
            course_id INTEGER REFERENCES course(course_id), mark INTEGER);
    """,
    "flights": """
        CREATE TABLE airline (airline_id INTEGER PRIMARY KEY, name TEXT, country TEXT);
        CREATE TABLE airport (code TEXT PRIMARY KEY, city TEXT, elevation INTEGER);
        CREATE TABLE flight (
            flight_no INTEGER PRIMARY KEY, airline_id INTEGER REFERENCES airline(airline_id),
            source TEXT REFERENCES airport(code), destination TEXT REFERENCES airport(code),
            distance INTEGER, price INTEGER);
    """,
    "pets": """
        CREATE TABLE owner (owner_id INTEGER PRIMARY KEY, name TEXT, city TEXT, age INTEGER);
        CREATE TABLE pet (
            pet_id INTEGER PRIMARY KEY, name TEXT, kind TEXT, weight REAL,
            owner_id INTEGER REFERENCES owner(owner_id));
        CREATE TABLE visit (
            visit_id INTEGER PRIMARY KEY, pet_id INTEGER REFERENCES pet(pet_id),
            reason TEXT, cost INTEGER);
    """,
}

Rows = dict[str, Iterable[tuple[object, ...]]]


class Draw(random.Random):
    """Random values of the kinds that the tables need."""

    def names(self, count: int) -> list[str]:
        """Full names, all different."""
        return self.sample([f"{a} {b}" for a in FIRST_NAMES for b in LAST_NAMES], count)

    def numbers(self, low: int, high: int, count: int, step: int = 1) -> list[int]:
        """Numbers, all different, so that there is one largest and one smallest."""
        return self.sample(range(low, high, step), count)

    def cover(self, values: Iterable[object], count: int) -> list[object]:
        """``count`` values in which each occurs, as often as the draw has it."""
        values = list(values)
        drawn = values + self.choices(values, k=count - len(values))
        self.shuffle(drawn)
        return drawn


def concerts(draw: Draw) -> Rows:
    """Singers who perform in stadiums; the last two singers never do, nor the last stadium."""
    titles = [
        f"{word} Night"
        for word in ["Autumn", "Blue", "Crazy", "Desert", "Electric", "First", "Golden"]
    ]
    stadiums = [f"{side} Arena" for side in ("North", "East", "South", "West", "Lake", "Hill")]
    return {
        "singer": zip(range(1, 13), draw.names(12), draw.cover(COUNTRIES, 12),
                      draw.numbers(19, 70, 12), strict=True),
        "stadium": zip(range(1, 7), stadiums,
                       draw.cover(CITIES, 6), draw.numbers(2000, 60000, 6, 500), strict=True),
        "concert": zip(range(1, 8), titles, draw.cover([2021, 2022, 2023], 7),
                       draw.cover(range(1, 6), 7), strict=True),
        "performance": {(draw.randint(1, 7), singer) for singer in [*range(1, 11)] * 2}
        | {(concert, concert) for concert in range(1, 8)},
    }  # fmt: skip


def library(draw: Draw) -> Rows:
    """Books on loan; the last two members borrow nothing, the last author has no book."""
    genres = ["novel", "poetry", "history", "science"]
    titles = [f"The {a} {b}" for a in ("Old", "Last", "Hidden") for b in
              ("River", "House", "Garden", "Letter", "Winter")]  # fmt: skip
    return {
        "author": zip(range(1, 9), draw.names(8), draw.cover(COUNTRIES, 8),
                      draw.numbers(1930, 1995, 8), strict=True),
        "book": zip(range(1, 16), titles, draw.cover(range(1, 8), 15), draw.cover(genres, 15),
                    draw.numbers(80, 900, 15), draw.cover(range(1990, 2002), 15), strict=True),
        "member": zip(range(1, 11), draw.names(10), draw.cover(CITIES, 10),
                      draw.cover(range(2015, 2021), 10), strict=True),
        "loan": zip(range(1, 31), draw.cover(range(1, 14), 30), draw.cover(range(1, 9), 30),
                    draw.choices(range(1, 60), k=30), draw.cover([0, 1], 30), strict=True),
    }  # fmt: skip


def shop(draw: Draw) -> Rows:
    """Purchases; the last two customers buy nothing, and nobody buys the last product."""
    kinds = ["kitchen", "garden", "toys", "books"]
    things = [
        "Kettle",
        "Pan",
        "Rake",
        "Spade",
        "Robot",
        "Puzzle",
        "Atlas",
        "Diary",
        "Kite",
        "Lamp",
        "Mug",
        "Hose",
    ]
    return {
        "customer": zip(range(1, 14), draw.names(13), draw.cover(CITIES, 13), strict=True),
        "product": zip(range(1, 13), things, draw.cover(kinds, 12),
                       [cents / 100 for cents in draw.numbers(300, 9000, 12)],
                       draw.numbers(0, 200, 12), strict=True),
        "purchase": zip(range(1, 41), draw.cover(range(1, 12), 40), draw.cover(range(1, 12), 40),
                        draw.cover(range(1, 6), 40), draw.cover(range(1, 13), 40), strict=True),
    }  # fmt: skip


def school(draw: Draw) -> Rows:
    """Students in courses; the last student takes none, and the last teacher gives none."""
    subjects = ["maths", "music", "history", "biology"]
    courses = ["Algebra", "Geometry", "Choir", "Piano", "Rome", "Egypt", "Cells", "Plants"]
    return {
        "teacher": zip(range(1, 9), draw.names(8), draw.cover(subjects, 8),
                       draw.numbers(30000, 70000, 8, 250), strict=True),
        "course": zip(range(1, 9), courses, draw.cover(range(1, 8), 8),
                      draw.cover([2, 3, 4, 6], 8), strict=True),
        "student": zip(range(1, 16), draw.names(15), draw.cover([9, 10, 11, 12], 15),
                       draw.cover(range(14, 20), 15), strict=True),
        "enrolment": [
            (student, course, draw.randint(35, 100))
            for student in range(1, 15)
            for course in sorted(draw.sample(range(1, 9), 3))
        ],
    }  # fmt: skip


def flights(draw: Draw) -> Rows:
    """Flights between airports; the last airline has none."""
    codes = ["PAR", "OSL", "LIM", "CAI", "DEL"]
    pairs = [(a, b) for a in codes for b in codes if a != b]
    airlines = ["Albatross Air", "Blue Wings", "Condor Lines", "Delta Sky", "Egret Jets", "Falco"]
    routes = draw.sample(pairs, 18) + draw.sample(pairs, 6)
    return {
        "airline": zip(range(1, 7), airlines, draw.cover(COUNTRIES, 6), strict=True),
        "airport": zip(codes, CITIES, draw.numbers(1, 2500, 5), strict=True),
        "flight": [
            (number, airline, *route, distance, price)
            for number, airline, route, distance, price in zip(
                draw.numbers(100, 999, 24), draw.cover(range(1, 6), 24), routes,
                draw.numbers(400, 9000, 24), draw.numbers(40, 900, 24), strict=True)
        ],
    }  # fmt: skip


def pets(draw: Draw) -> Rows:
    """Pets and their visits to the vet; the last owner has no pet, the last two pets no visit."""
    names = [
        "Bella",
        "Coco",
        "Daisy",
        "Felix",
        "Ginger",
        "Hugo",
        "Kira",
        "Luna",
        "Milo",
        "Nemo",
        "Oscar",
        "Rex",
        "Simba",
        "Tiger",
    ]
    kinds = ["dog", "cat", "rabbit", "parrot"]
    return {
        "owner": zip(range(1, 10), draw.names(9), draw.cover(CITIES, 9),
                     draw.numbers(20, 80, 9), strict=True),
        "pet": zip(range(1, 15), names, draw.cover(kinds, 14),
                   [w / 10 for w in draw.numbers(3, 400, 14)], draw.cover(range(1, 9), 14),
                   strict=True),
        "visit": zip(range(1, 31), draw.cover(range(1, 13), 30),
                     draw.cover(["vaccination", "injury", "check"], 30),
                     draw.numbers(20, 400, 30), strict=True),
    }  # fmt: skip


MAKERS: dict[str, Callable[[Draw], Rows]] = {
    "concerts": concerts,
    "library": library,
    "shop": shop,
    "school": school,
    "flights": flights,
    "pets": pets,
}


def make_databases(folder: Path = DEFAULT_FOLDER) -> Path:
    """Write the databases that are missing, and return the folder.

    A file appears under its name only when it is complete, so that a run that was broken off
    leaves none by halves.
    """
    for name, make in MAKERS.items():
        for copy in (1, 2):
            path = folder / "database" / name / f"{name}{'' if copy == 1 else f'_{copy}'}.sqlite"
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(f".unfinished-{os.getpid()}")
            with closing(sqlite3.connect(unfinished)) as connection:
                connection.executescript(SCHEMAS[name])
                for table, rows in make(Draw(f"{name}-{copy}")).items():
                    for row in rows:
                        marks = ", ".join("?" * len(row))
                        connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)
                connection.commit()
            unfinished.rename(path)
    return folder


if __name__ == "__main__":
    print(make_databases(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER))
