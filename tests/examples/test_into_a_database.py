"""The programs of the guide "Into a database", which are killed, or whose database is: each event is stored once."""

import asyncio
import re
import sqlite3
import sys

import duckdb
import psycopg
import pytest
from nats.js.errors import NotFoundError

from tests.examples.conftest import EXAMPLES
from tests.support.caching import available
from tests.support.postgres import Postgres
from tests.support.waiting import until

GUIDE = "\n" + (EXAMPLES.parent / "docs/guides/into-a-database.md").read_text("utf-8")
COUNT = 20_000
BAD = 417  # the event that the tables refuse

DATABASES = {
    "psycopg": "PostgreSQL with psycopg",
    "asyncpg": "PostgreSQL with asyncpg",
    "sqlite": "SQLite",
    "duckdb": "DuckDB",
}


def code_of(section: str, kind: str = "python") -> str:
    text = GUIDE.partition(f"\n{section}\n")[2].partition("\n## ")[0]
    return "".join(re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL))


def make_table():
    with psycopg.connect() as connection:
        connection.execute(re.search(r'TABLE = """(.*?)"""', GUIDE, re.DOTALL)[1])


@pytest.fixture
def postgres(monkeypatch):
    with available(Postgres, "PostgreSQL") as postgres:
        for name, value in postgres.variables.items():
            monkeypatch.setenv(name, value)
        yield postgres


@pytest.fixture
async def store(start, js, server, tmp_path, monkeypatch, postgres):
    """Publish events, and return a function that starts the program that stores them in a database."""

    def program(name, code):
        path = tmp_path / name
        code = code.replace("nats://127.0.0.1:4222", server.url).replace('"meters.', f'"{tmp_path}/meters.')
        path.write_text(code, "utf-8")
        return path

    sample = code_of("## Sample data", "python setup").replace("range(1000)", f"range({COUNT})")
    await start(program("sample.py", sample)).until_exit()
    make_table()

    def store(database):
        code = code_of("# Into a database") + code_of(f"## {DATABASES[database]}")
        # Batches that take longer together than a start, and redeliveries soon.
        code = re.sub("max_events=[0-9]+", "max_events=100", code).replace(
            "max_ack_pending=", "ack_wait=2, max_ack_pending="
        )
        return start(program(f"into_{database}.py", code.replace("999", str(COUNT))), python=sys.executable)

    return store


@pytest.fixture
def until_left(js):
    """Wait until a program has acknowledged all events but a part of them."""

    async def until_left(program, database, part):
        async def is_reached():
            assert program.process.poll() is None, program.log
            try:
                info = await js.consumer_info("POWER", database)
            except NotFoundError:  # it is not created yet
                return False
            return info.num_pending + info.num_ack_pending <= part * COUNT

        await until(is_reached)

    return until_left


@pytest.fixture
def check(js, tmp_path):
    """Check that a database has all events, except for the one that is dead-lettered."""

    async def check(database):
        query = "SELECT count(*), count(DISTINCT source || id), sum(kwh) FROM meters"
        if database in ("psycopg", "asyncpg"):
            with psycopg.connect() as connection:
                found = connection.execute(query).fetchone()
        elif database == "sqlite":
            found = sqlite3.connect(tmp_path / "meters.db").execute(query).fetchone()
        else:
            found = duckdb.connect(tmp_path / "meters.duckdb").execute(query).fetchone()
        assert found == (COUNT - 1, COUNT - 1, sum(range(COUNT)) - BAD)
        assert (await js.stream_info("DEAD_POWER")).state.messages == 1

    return check


@pytest.mark.faults
@pytest.mark.parametrize("database", DATABASES)
async def test_killed_programs(store, until_left, check, database):
    for part in (0.8, 0.6, 0.4, 0):
        program = store(database)
        await until_left(program, database, part)
        program.kill()
    await check(database)


@pytest.mark.faults
@pytest.mark.parametrize("database", ["psycopg", "asyncpg"])
async def test_database_that_crashes(store, until_left, check, postgres, database):
    """It is an outage of the consumer, which continues, in one process."""
    program = store(database)
    for part in (0.7, 0.4):
        await until_left(program, database, part)
        await asyncio.to_thread(postgres.crash)
        await program.until_printed("handlers fail")
        await asyncio.to_thread(postgres.start)
    await until_left(program, database, 0)
    program.kill()
    await check(database)


def test_last_state_of_each_key(postgres):
    """The statement of the guide, with several events of a key in a batch, and an earlier one in a later batch."""
    make_table()
    with psycopg.connect() as connection:
        connection.execute("CREATE TABLE meters_now (source TEXT PRIMARY KEY, time TIMESTAMPTZ, kwh DOUBLE PRECISION)")
        for rows in ([("a", 2, 20), ("a", 3, 30), ("b", 1, 1)], [("a", 1, 10), ("b", 2, 2)]):
            connection.execute("CREATE TEMP TABLE incoming (LIKE meters)")
            for source, second, kwh in rows:
                time = f"2026-01-01T00:00:{second:02}Z"
                connection.execute("INSERT INTO incoming VALUES (%s, %s, %s, %s)", (source, str(second), time, kwh))
            connection.execute(code_of("## Updates", "text"))
            connection.execute("DROP TABLE incoming")
        assert connection.execute("SELECT source, kwh FROM meters_now ORDER BY 1").fetchall() == [("a", 30), ("b", 2)]
