"""Text-to-SQL documents from templates: a schema, a question in words, and the query that answers it.

The licensed SQL corpus is thin, so schemas are composed here from pools of table and column names.  The
pools of held-out schemas share no table name with the training pools, so a held-out prompt asks about
tables that the pair has never seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

TRAINING_TABLES = (
    "customers", "orders", "products", "employees", "departments", "invoices", "payments", "shipments",
    "suppliers", "warehouses", "accounts", "transactions", "branches", "loans", "students", "courses",
    "teachers", "enrolments", "books", "authors", "publishers", "members", "patients", "doctors",
    "appointments", "hospitals", "flights", "airports", "airlines", "passengers", "tickets", "hotels",
    "rooms", "bookings", "guests", "restaurants", "dishes", "reviews", "players", "teams", "matches",
    "stadiums", "songs", "albums", "artists", "concerts", "films", "actors", "directors", "cinemas",
    "projects", "tasks", "sprints", "devices", "sensors", "readings", "vehicles", "drivers", "trips",
    "stations", "articles", "comments", "subscriptions", "campaigns", "leads", "contracts", "claims",
    "policies", "agents", "properties",
)  # fmt: skip
HELD_OUT_TABLES = (
    "museums", "exhibits", "curators", "vineyards", "wines", "tastings", "ferries", "harbours", "crews",
    "orchards", "harvests", "beekeepers", "hives", "telescopes", "observations", "astronomers", "clinics",
    "vaccines", "nurses", "archives", "manuscripts", "scribes", "theatres", "plays", "actresses",
    "tournaments", "referees", "glaciers", "expeditions", "climbers", "bakeries", "loaves", "bakers",
    "satellites", "launches", "engineers", "libraries_abroad", "auctions", "bidders", "paintings",
)  # fmt: skip
TEXT_COLUMNS = {
    "status": ("active", "pending", "closed", "cancelled", "archived"),
    "city": ("Paris", "Berlin", "Madrid", "Oslo", "Rome", "Lisbon", "Vienna", "Dublin"),
    "country": ("France", "Germany", "Spain", "Norway", "Italy", "Canada", "Japan", "Brazil"),
    "category": ("basic", "premium", "standard", "gold", "silver"),
    "region": ("north", "south", "east", "west", "central"),
    "colour": ("red", "green", "blue", "black", "white"),
    "language": ("English", "French", "German", "Spanish", "Italian"),
    "level": ("junior", "senior", "expert", "beginner"),
    "type": ("public", "private", "internal", "external"),
    "grade": ("A", "B", "C", "D"),
}
NUMBER_COLUMNS = (
    "price", "amount", "quantity", "salary", "age", "weight", "distance", "rating", "score", "duration",
    "capacity", "balance", "budget", "discount", "height", "population", "total", "stock",
)  # fmt: skip
DATE_COLUMNS = ("created_at", "updated_at", "start_date", "end_date", "due_date", "opened_on")


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a schema; `parent` is the table its foreign key points to, if any."""

    name: str
    text_columns: tuple[str, ...]
    number_columns: tuple[str, ...]
    date_columns: tuple[str, ...]
    parent: str | None

    @property
    def singular(self) -> str:
        return self.name[:-3] + "y" if self.name.endswith("ies") else self.name.removesuffix("s")

    def ddl(self) -> str:
        lines = ["  id INTEGER PRIMARY KEY"]
        if self.parent is not None:
            lines.append(f"  {self.parent.removesuffix('s')}_id INTEGER REFERENCES {self.parent}(id)")
        lines.append("  name TEXT")
        lines += [f"  {column} TEXT" for column in self.text_columns]
        lines += [f"  {column} NUMERIC" for column in self.number_columns]
        lines += [f"  {column} DATE" for column in self.date_columns]
        return f"CREATE TABLE {self.name} (\n" + ",\n".join(lines) + "\n);"


@dataclass(frozen=True, slots=True)
class SchemaDocument:
    """A schema with the questions asked of it, in order, each with its query."""

    schema: str
    questions: tuple[tuple[str, str], ...]


def _tables(rng: random.Random, names: tuple[str, ...]) -> tuple[Table, ...]:
    chosen = rng.sample(names, rng.choice((1, 2, 2)))
    tables: list[Table] = []
    for index, name in enumerate(chosen):
        tables.append(
            Table(
                name=name,
                text_columns=tuple(rng.sample(sorted(TEXT_COLUMNS), rng.choice((1, 2)))),
                number_columns=tuple(rng.sample(NUMBER_COLUMNS, rng.choice((1, 2)))),
                date_columns=tuple(rng.sample(DATE_COLUMNS, rng.choice((0, 1)))),
                parent=chosen[index - 1] if index else None,
            )
        )
    return tuple(tables)


def _question(rng: random.Random, tables: tuple[Table, ...]) -> tuple[str, str]:
    table = rng.choice(tables)
    text = rng.choice(table.text_columns)
    value = rng.choice(TEXT_COLUMNS[text])
    number = rng.choice(table.number_columns)
    bound = rng.choice((5, 10, 20, 25, 50, 100, 200, 500, 1000))
    limit = rng.choice((3, 5, 10))
    aggregate, word = rng.choice((("AVG", "average"), ("SUM", "total"), ("MAX", "highest"), ("MIN", "lowest")))
    name = table.name
    simple = [
        (f"How many {name} have {text} '{value}'?",
         f"SELECT COUNT(*)\nFROM {name}\nWHERE {text} = '{value}';"),
        (f"List the names of all {name} with {number} above {bound}.",
         f"SELECT name\nFROM {name}\nWHERE {number} > {bound}\nORDER BY name;"),
        (f"What is the {word} {number} of {name} per {text}?",
         f"SELECT {text}, {aggregate}({number}) AS {word}_{number}\nFROM {name}\nGROUP BY {text}\n"
         f"ORDER BY {text};"),
        (f"Show the {limit} {name} with the highest {number}.",
         f"SELECT name, {number}\nFROM {name}\nORDER BY {number} DESC\nLIMIT {limit};"),
        (f"Which {text} has more than {bound} {name}?",
         f"SELECT {text}, COUNT(*) AS number_of_{name}\nFROM {name}\nGROUP BY {text}\n"
         f"HAVING COUNT(*) > {bound};"),
        (f"What is the {word} {number} of {name} whose {text} is '{value}'?",
         f"SELECT {aggregate}({number}) AS {word}_{number}\nFROM {name}\nWHERE {text} = '{value}';"),
        (f"Raise the {number} of every {table.singular} with {text} '{value}' by 10 percent.",
         f"UPDATE {name}\nSET {number} = {number} * 1.1\nWHERE {text} = '{value}';"),
        (f"Delete the {name} with {number} below {bound}.",
         f"DELETE FROM {name}\nWHERE {number} < {bound};"),  # noqa: S608 - a text to learn from, never run
    ]  # fmt: skip
    if table.date_columns:
        date, year = table.date_columns[0], rng.randint(2015, 2024)
        simple.append(
            (f"List the {name} with {date} in {year} and {text} '{value}'.",
             f"SELECT id, name, {date}\nFROM {name}\nWHERE {date} >= '{year}-01-01'\n"
             f"  AND {date} < '{year + 1}-01-01'\n  AND {text} = '{value}';")
        )  # fmt: skip
    if table.parent is not None:
        parent, key = table.parent, f"{table.parent.removesuffix('s')}_id"
        simple += [
            (f"For each of the {parent}, what is the {word} {number} of its {name}?",
             f"SELECT {parent}.name, {aggregate}({name}.{number}) AS {word}_{number}\nFROM {parent}\n"
             f"JOIN {name} ON {name}.{key} = {parent}.id\nGROUP BY {parent}.name;"),
            (f"Which {parent} have no {name}?",
             f"SELECT {parent}.name\nFROM {parent}\nLEFT JOIN {name} ON {name}.{key} = {parent}.id\n"
             f"WHERE {name}.id IS NULL;"),
            (f"Count the {name} of each of the {parent} where {text} is '{value}'.",
             f"SELECT {parent}.name, COUNT({name}.id) AS number_of_{name}\nFROM {parent}\n"
             f"JOIN {name} ON {name}.{key} = {parent}.id\nWHERE {name}.{text} = '{value}'\n"
             f"GROUP BY {parent}.name;"),
        ]  # fmt: skip
    return rng.choice(simple)


def schema_documents(seed: int, count: int, *, held_out: bool, questions: int = 4) -> Iterator[SchemaDocument]:
    """Yield `count` schemas with up to `questions` distinct questions each; reproducible from `seed`."""
    rng = random.Random(f"text-to-sql:{seed}:{held_out}")
    names = HELD_OUT_TABLES if held_out else TRAINING_TABLES
    for _ in range(count):
        tables = _tables(rng, names)
        asked = dict(_question(rng, tables) for _ in range(questions))
        yield SchemaDocument("\n\n".join(table.ddl() for table in tables), tuple(asked.items()))


def question_message(schema: str, question: str) -> str:
    """The user message of a text-to-SQL request."""
    return f"{schema}\n\nQuestion: {question}"
