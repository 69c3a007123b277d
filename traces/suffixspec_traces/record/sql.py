"""The SQL workload: questions about a small SQLite database, answered by running queries."""

from __future__ import annotations

import random
import sqlite3
import time
from dataclasses import dataclass

from suffixspec_traces.record.base import (
    Arguments,
    Step,
    Task,
    ToolFailure,
    argument,
    example,
    request,
    tool,
)
from suffixspec_traces.record.sandbox import shorten

SYSTEM = (
    "You are a data analyst. You answer questions about a SQLite database by calling tools, and "
    "you report the numbers exactly as the database gives them."
)
TOOLS = (
    tool("list_tables", "List the tables of the database."),
    tool("describe_table", "Show the columns of a table.", table="table name"),
    tool("run_query", "Run a SELECT statement and return its rows.", sql="the statement"),
)
_EXAMPLES = (
    *example(
        "list_tables",
        {},
        "name\nowners\npets",
        "Name the tables, and say in one sentence what pets probably holds.",
        "The database has two tables, owners and pets. The table pets probably holds one row for "
        "each animal.",
    ),
    *example(
        "describe_table",
        {"table": "pets"},
        "CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT, weight INTEGER)",
        "List the columns of pets with their types as bullet points.",
        "- `id`: INTEGER, the primary key\n- `name`: TEXT\n- `weight`: INTEGER",
    ),
    *example(
        "run_query",
        {"sql": "SELECT name, weight FROM pets ORDER BY weight DESC"},
        "name | weight\nRex | 31\nMitzi | 4",
        "Write these rows as a Markdown table.",
        "| name | weight |\n| --- | --- |\n| Rex | 31 |\n| Mitzi | 4 |",
    ),
)
_ROWS, _SECONDS = 12, 2.0


@dataclass(frozen=True, slots=True)
class _Domain:
    """Two related tables and where their values come from."""

    parent: str
    parent_key: str
    label: str
    labels: tuple[str, ...]
    child: str
    amount: str
    unit: tuple[int, int]
    day: str


_DOMAINS = (
    _Domain(
        "customers", "customer_id", "city",
        ("Lisbon", "Oslo", "Kyoto", "Nairobi", "Lima", "Quebec"),
        "orders", "total", (15, 480), "ordered_on",
    ),
    _Domain(
        "books", "book_id", "title",
        ("Dune", "Emma", "Ulysses", "Walden", "Beloved", "Middlemarch"),
        "loans", "days_kept", (2, 60), "lent_on",
    ),
    _Domain(
        "machines", "machine_id", "site",
        ("Hall A", "Hall B", "North yard", "South yard", "Dock 3", "Roof"),
        "repairs", "cost", (40, 2200), "repaired_on",
    ),
    _Domain(
        "pupils", "pupil_id", "class",
        ("4a", "4b", "5a", "5b", "6a", "6b"),
        "exams", "points", (20, 100), "taken_on",
    ),
    _Domain(
        "routes", "route_id", "destination",
        ("Bergen", "Turin", "Ghent", "Porto", "Graz", "Cork"),
        "departures", "passengers", (9, 320), "departed_on",
    ),
)  # fmt: skip


class Database:
    """An SQLite database in memory; queries can only read, and only for two seconds."""

    def __init__(self, statements: list[tuple[str, list[tuple[object, ...]]]]) -> None:
        self._connection = sqlite3.connect(":memory:")
        for statement, rows in statements:
            if rows:
                self._connection.executemany(statement, rows)
            else:
                self._connection.execute(statement)
        self._connection.commit()
        self._connection.execute("PRAGMA query_only = 1")
        self._connection.set_authorizer(_reading_only)

    def call(self, name: str, arguments: Arguments) -> str:
        """Run ``list_tables``, ``describe_table`` or ``run_query``."""
        if name == "list_tables":
            return self.query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        if name == "describe_table":
            table = argument(arguments, "table")
            found = self.query_rows("SELECT sql FROM sqlite_master WHERE name = ?", (table,))[1]
            if not found:
                raise ToolFailure(f"error: no such table: {table}")
            return str(found[0][0])
        if name == "run_query":
            return self.query(argument(arguments, "sql"))
        raise ToolFailure(f"error: there is no tool {name!r}")

    def query(self, sql: str) -> str:
        """The result as text: a header line, then a line per row."""
        header, rows = self.query_rows(sql)
        lines = [" | ".join(header), *(" | ".join(map(str, row)) for row in rows[:_ROWS])]
        if len(rows) > _ROWS:
            lines.append(f"({len(rows) - _ROWS} more rows)")
        return shorten("\n".join(lines))

    def query_rows(
        self, sql: str, values: tuple[object, ...] = ()
    ) -> tuple[list[str], list[tuple[object, ...]]]:
        """Column names and at most a thousand rows. Raises :class:`ToolFailure`."""
        deadline = time.monotonic() + _SECONDS
        self._connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        try:
            cursor = self._connection.execute(sql, values)
            rows = cursor.fetchmany(1000)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise ToolFailure(f"error: {error}") from error
        return [column[0] for column in cursor.description or ()], rows

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _reading_only(action: int, *_: object) -> int:
    allowed = (
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    )
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY


def make_task(seed: int, number: int) -> Task:
    """A database of two tables and four questions about it."""
    rng = random.Random(f"sql-{seed}-{number}")
    d = rng.choice(_DOMAINS)
    least = rng.randrange(d.unit[0], sum(d.unit) // 2, 5)
    limit = rng.randint(4, 7)
    listing = (
        f"SELECT {d.parent_key}, {d.amount}, {d.day} FROM {d.child} "
        f"WHERE {d.amount} >= {least} ORDER BY {d.amount} DESC LIMIT {limit}"
    )
    joined = (
        f"SELECT {d.label}, COUNT(*) AS n, SUM({d.amount}) AS sum_{d.amount} FROM {d.child} "
        f"JOIN {d.parent} USING ({d.parent_key}) GROUP BY {d.label} ORDER BY sum_{d.amount} DESC"
    )
    steps = (
        Step(
            request("list_tables", {}),
            "list_tables",
            {},
            f"Name the tables, and say in one sentence what {d.child} probably holds.",
        ),
        Step(
            request("describe_table", {"table": d.child}),
            "describe_table",
            {"table": d.child},
            f"List the columns of {d.child} with their types as bullet points.",
        ),
        Step(
            request("run_query", {"sql": listing}),
            "run_query",
            {"sql": listing},
            f"Write these rows as a Markdown table with the columns {d.parent_key}, {d.amount} "
            f"and {d.day}.",
        ),
        Step(
            request("run_query", {"sql": joined}),
            "run_query",
            {"sql": joined},
            f"Which {d.label} has the highest sum_{d.amount}, and which the lowest? List all of "
            "them with their sums, then repeat the statement that you ran.",
        ),
    )
    statements = _statements(d, rng)
    return Task(
        f"sql-{seed}-{number:04d}",
        "sql",
        SYSTEM,
        TOOLS,
        _EXAMPLES,
        steps,
        lambda: Database(statements),
    )


def _statements(d: _Domain, rng: random.Random) -> list[tuple[str, list[tuple[object, ...]]]]:
    parents: list[tuple[object, ...]] = [
        (100 + i, label) for i, label in enumerate(rng.sample(d.labels, 5))
    ]
    children: list[tuple[object, ...]] = [
        (
            i + 1,
            100 + rng.randrange(len(parents)),
            rng.randint(*d.unit),
            f"2025-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
        )
        for i in range(rng.randint(18, 26))
    ]
    return [
        (f"CREATE TABLE {d.parent} ({d.parent_key} INTEGER PRIMARY KEY, {d.label} TEXT)", []),
        (
            f"CREATE TABLE {d.child} (id INTEGER PRIMARY KEY, {d.parent_key} INTEGER REFERENCES "
            f"{d.parent}({d.parent_key}), {d.amount} INTEGER, {d.day} TEXT)",
            [],
        ),
        (f"INSERT INTO {d.parent} VALUES (?, ?)", parents),
        (f"INSERT INTO {d.child} VALUES (?, ?, ?, ?)", children),
    ]
