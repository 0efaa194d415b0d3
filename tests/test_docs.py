"""
Run every example of the README and of ``docs/``, page by page, on real servers, and compare its output with the page.

A page is for a reader who pastes its examples, in order, on a machine with a fresh nats-server:

- ``python`` blocks are one program. An ``output`` block after one of them is its output.
- ``console`` blocks run in a shell afterwards, in the same directory. Those before the first ``python`` block run
  before the program. The lines after a command are its output.
- ``python setup`` is a part of the program that runs first, wherever it is on the page.
- ``text`` blocks are not run.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pkgutil
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import cast

import pytest
import typer
import yaml
from cloudevents.core.v1.event import CloudEvent
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

import ce_nats
from ce_nats import CeNatsError, ContentMode, ErrorCode, NatsMessage, aio, from_nats_message, to_nats_message
from ce_nats.cli import app
from ce_nats.testing import NatsServer
from ce_nats.wire.nats import encode_header_block
from hatch_build import with_absolute_links
from tests.support.caching import available
from tests.support.forks import SPARK, forking
from tests.support.lakehouse import VERSIONS, jars, lakehouse
from tests.support.postgres import Postgres
from tests.support.programs import streaming_server
from tests.support.streaming import StreamingServer
from tests.support.tables import each
from tests.support.waiting import until

pytestmark = [pytest.mark.server, pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FILES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SETUP = "python setup"
# A part of an example, which other tests run; or a file that the reader saves.
QUOTE = re.compile(r'python title="(examples/[a-z_]+\.py)"')
SAVED = re.compile(r'python title="([a-z_]+\.py)"')
# The end of the output of a command that the reader stops with Ctrl-C.
CTRL_C = "^C\n"
KINDS = {"python", SETUP, "output", "console", "text"}
BLOCK = re.compile(r"^(?P<fence>```+)(?P<kind>[^\n`]*)\n(?P<text>.*?)^(?P=fence)$", re.DOTALL | re.MULTILINE)
# A command, which continues after a backslash, and its output.
STEP = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)

DEFAULT_URL = "nats://127.0.0.1:4222"
DEFAULT_MONITOR = "http://127.0.0.1:8222"
# Settings of the user, which may name other servers or another Python.
SETTINGS = ("NATS_", "PYSPARK_", "SPARK_")

# For small tables, without the user interface, which takes time to start.
SPARK_DEFAULTS = f"""spark.ui.enabled false
spark.sql.shuffle.partitions 2
spark.driver.extraJavaOptions {os.environ["SPARK_SUBMIT_OPTS"]}
"""

# Runs the programs whose paths it reads, in separate namespaces, with one Spark.
RUNNER = """
import runpy, sys, traceback
for path in sys.stdin:
    try:
        runpy.run_path(path.strip(), run_name="__main__")
    except BaseException:
        print("failed:", traceback.format_exc())
    print("end of program", flush=True)
"""
# Time between batches: on the pages, and here.
SLOW_TRIGGER, FAST_TRIGGER = 'processingTime="10 seconds"', 'processingTime="1 second"'

# Code is cut off in a browser window of 1,300 pixels beyond this.
MAX_COLUMNS = 88


@dataclass(frozen=True)
class Page:
    """A Markdown file and its blocks of code, as (kind, text)."""

    path: Path

    def __str__(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def text(self) -> str:
        return self.path.read_text("utf-8")

    @property
    def blocks(self) -> list[tuple[str, str]]:
        return [(match["kind"], match["text"]) for match in BLOCK.finditer(self.text)]

    def of(self, kind: str) -> list[str]:
        return [text for its, text in self.blocks if its == kind]

    @property
    def has_files(self) -> bool:
        """Whether the reader saves files, instead of running one program."""
        return any(SAVED.fullmatch(kind) for kind, _ in self.blocks)

    @property
    def program(self) -> str:
        return "\n".join(self.of(SETUP) + self.of("python"))

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Commands and their output."""
        return [step for block in self.of("console") for step in STEP.findall(block)]

    @property
    def first_steps(self) -> list[tuple[str, str]]:
        """Commands that run before the program, and their output."""
        first = takewhile(lambda block: block[0] != "python", self.blocks)
        return [step for kind, block in first if kind == "console" for step in STEP.findall(block)]


PAGES = [Page(path) for path in FILES]
RUNNABLE = [page for page in PAGES if (page.program or page.steps) and not page.has_files]
WITH_LAKEHOUSE = [page for page in RUNNABLE if "iceberg" in page.program]
WITH_SPARK = [page for page in RUNNABLE if "pyspark" in page.program and page not in WITH_LAKEHOUSE]
WITH_STREAMING = [page for page in RUNNABLE if "stan.connect" in page.program]
WITH_POSTGRES = [page for page in RUNNABLE if "psycopg.connect" in page.program]


class Place:
    """The place where a page runs: a directory, and servers in place of those at default addresses."""

    def __init__(self, page: Page, directory: Path, python: str, stack: ExitStack) -> None:
        self.page = page
        self.directory = directory
        server = stack.enter_context(NatsServer(jetstream=True))
        self._addresses = {DEFAULT_URL: server.url}
        if page in WITH_STREAMING:
            streaming = stack.enter_context(
                StreamingServer(available(streaming_server, "nats-streaming-server"), over=server.url)
            )
            self._addresses[DEFAULT_MONITOR] = streaming.monitor
        postgres = stack.enter_context(available(Postgres, "PostgreSQL")).variables if page in WITH_POSTGRES else {}
        commands = directory / "bin"
        commands.mkdir(parents=True, exist_ok=True)
        for name, arguments in (("ce-nats", " -m ce_nats"), ("python", "")):
            command = commands / name
            command.write_text(f'#!/bin/sh\nexec "{python}"{arguments} "$@"\n')
            command.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
        self.environment = (
            kept
            | postgres
            | {
                "NATS_URL": server.url,
                "XDG_CONFIG_HOME": str(directory),
                "SPARK_CONF_DIR": str(directory),
                "PATH": os.pathsep.join([str(commands), os.environ["PATH"]]),
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                "PYTHONUTF8": "1",
                "COLUMNS": "80",
            }
        )
        self.program = directory / "program.py"
        self.program.write_text(self.here(page.program), "utf-8")

    def here(self, text: str) -> str:
        """Return a text of the page with the addresses of these servers, and with a shorter time between batches."""
        text = text.replace(SLOW_TRIGGER, FAST_TRIGGER)
        for usual, actual in self._addresses.items():
            text = text.replace(usual, actual)
        return text

    def run(self, *command: str | Path, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a command in the directory."""
        return subprocess.run(
            command, cwd=self.directory, env=self.environment, capture_output=True, encoding="utf-8", timeout=seconds
        )

    def check_output(self, printed: str) -> None:
        """Check that a program printed the output blocks of the page, in order."""
        position = 0
        for expected in map(self.here, self.page.of("output")):
            found = printed.find(expected, position)
            assert found >= 0, f"{expected}\nis not in the rest of what was printed:\n{printed[position:]}"
            position = found + len(expected)

    def check_commands(self, steps: list[tuple[str, str]]) -> None:
        """Check that commands print the output on the page."""
        for command, expected in steps:
            if expected.endswith(CTRL_C):
                self._check_until_stopped(command, expected.removesuffix(CTRL_C))
                continue
            done = self.run("sh", "-c", self.here(command))
            lines = [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]
            assert lines == self.here(expected).splitlines(), command

    def _check_until_stopped(self, command: str, expected: str) -> None:
        """Check the output of a command that is interrupted when it has printed it, and its exit status."""
        log = self.directory / "output.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {command}"], cwd=self.directory, env=self.environment, stdout=output, stderr=output
            )
        deadline = time.monotonic() + 60
        while log.read_text("utf-8") != expected and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert (process.wait(60), log.read_text("utf-8")) == (0, expected), command


def test_pages_were_found() -> None:
    assert len(PAGES) > 15
    assert len(WITH_SPARK) >= 3
    assert len(WITH_STREAMING) == len(WITH_LAKEHOUSE) == 1


@each("page", PAGES)
def test_blocks_are_of_known_kinds(page: Page) -> None:
    """So that no example is skipped. A page with output has a program that prints it; no output is empty."""
    assert {kind for kind, _ in page.blocks if not (QUOTE.fullmatch(kind) or SAVED.fullmatch(kind))} <= KINDS
    assert page.text.count("```") == 2 * len(page.blocks)
    assert page.of("python") or not page.of("output")
    assert all(text.strip() for _, text in page.blocks)


@each("page", PAGES)
def test_quotes_are_parts_of_examples(page: Page) -> None:
    for kind, text in page.blocks:
        if quote := QUOTE.fullmatch(kind):
            assert _without_layout(text) in _without_layout((ROOT / quote[1]).read_text("utf-8"))


def _without_layout(code: str) -> str:
    """Return code without spaces, and without the commas that ruff adds to wrapped lines."""
    return re.sub(r",(?=[)\]}])", "", "".join(code.split()))


@each("page", PAGES)
def test_code_fits_the_page(page: Page) -> None:
    """Output of commands may be longer."""
    code = [line for kind in ("python", SETUP, "text") for block in page.of(kind) for line in block.splitlines()]
    code += [line for command, _ in page.steps for line in f"$ {command}".splitlines()]
    assert [line for line in code if len(line) > MAX_COLUMNS] == []


@each("page", PAGES)
def test_headings_follow_an_empty_line(page: Page) -> None:
    """After a table, a heading would be a row of it."""
    assert re.findall(r"[^\n]\n(#+ .*)", BLOCK.sub("", page.text)) == []


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    """Yield a program that runs scripts fast, in forks of one process."""
    with forking("duckdb", "polars", *SPARK) as program:
        yield program


@pytest.mark.skipif(os.name != "posix", reason="the examples are for a POSIX shell")
@pytest.mark.parametrize("page", [page for page in RUNNABLE if page not in WITH_SPARK + WITH_LAKEHOUSE], ids=str)
def test_examples(page: Page, tmp_path: Path, python: str) -> None:
    """Commands and the program in order, then the program again, because readers run examples repeatedly."""
    with ExitStack() as stack:
        place = Place(page, tmp_path / "here", python, stack)
        first_steps = page.first_steps if page.program else []
        place.check_commands(first_steps)
        for is_first in (True, False):
            done = place.run(python, place.program)
            assert done.returncode == 0, done.stderr[-4000:]
            place.check_output(done.stdout)
            if is_first:
                place.check_commands(page.steps[len(first_steps) :])


def test_each_block_of_the_readme_runs_alone(tmp_path: Path, python: str) -> None:
    """As a reader copies one; the block with Spark runs in ``test_examples_with_spark``."""
    readme = PAGES[0]
    blocks = [block for block in readme.of("python") if "pyspark" not in block]
    assert len(blocks) == 2
    with ExitStack() as stack:
        place = Place(readme, tmp_path / "here", python, stack)
        for block in blocks:
            place.program.write_text(place.here(block), "utf-8")
            done = place.run(python, place.program)
            assert done.returncode == 0, done.stderr[-4000:]


@each("page", [page for page in PAGES if page.has_files])
def test_tutorial(page: Page, python: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As a reader follows it: files are saved and commands run, one after the other."""
    with ExitStack() as stack:
        place = Place(page, tmp_path_factory.mktemp("tutorial"), python, stack)
        for kind, text in page.blocks:
            if saved := SAVED.fullmatch(kind):
                (place.directory / saved[1]).write_text(place.here(text), "utf-8")
            elif kind == "console":
                place.check_commands(STEP.findall(text))


class SparkPrograms:
    """A process that runs programs with one Spark, because Spark starts slowly. They share its directory."""

    def __init__(self, home: Path, python: str) -> None:
        self.directory = home / "here"
        self._output, self._errors = home / "output", home / "errors"
        (home / "spark-defaults.conf").write_text(SPARK_DEFAULTS)
        with ExitStack() as stack, self._output.open("wb") as output, self._errors.open("wb") as errors:
            environment = Place(WITH_SPARK[0], self.directory, python, stack).environment
            self._process = subprocess.Popen(
                [sys.executable, "-c", RUNNER],
                cwd=self.directory,
                env=environment | {"SPARK_CONF_DIR": str(home), "PYSPARK_PYTHON": python},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
            )

    def run(self, program: Path) -> str:
        """Run a program, and return what it prints."""
        before = self._output.read_text("utf-8")
        self._process.stdin.write(f"{program}\n".encode())
        self._process.stdin.flush()
        asyncio.run(until(lambda: self._has_printed_more(before), 600))
        return self._output.read_text("utf-8").removeprefix(before)

    def _has_printed_more(self, before: str) -> bool:
        assert self._process.poll() is None, self._errors.read_text("utf-8")[-4000:]
        printed = self._output.read_text("utf-8")
        return len(printed) > len(before) and printed.endswith("end of program\n")

    def end(self) -> None:
        """End the process, with the end of its input."""
        self._process.communicate()


@pytest.fixture(scope="module")
def spark_programs(
    tmp_path_factory: pytest.TempPathFactory, python: str
) -> Iterator[Callable[[], AbstractContextManager[SparkPrograms]]]:
    """Yield a context manager with the process; a failure in it ends the process, so that a new one is used next."""
    running: list[SparkPrograms] = []

    @contextmanager
    def current() -> Iterator[SparkPrograms]:
        programs = running.pop() if running else SparkPrograms(tmp_path_factory.mktemp("spark"), python)
        with ExitStack() as stack:
            stack.callback(programs.end)
            yield programs
            stack.pop_all()
        running.append(programs)

    yield current
    for programs in running:
        programs.end()


@pytest.mark.skipif(os.name != "posix", reason="the examples are for a POSIX shell")
@pytest.mark.parametrize("page", WITH_SPARK, ids=str)
def test_examples_with_spark(
    page: Page, spark_programs: Callable[[], AbstractContextManager[SparkPrograms]], python: str
) -> None:
    with ExitStack() as stack, spark_programs() as programs:
        place = Place(page, programs.directory, python, stack)
        printed = programs.run(place.program)
        assert "failed:" not in printed, printed
        place.check_output(printed)
        place.check_commands(page.steps)


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_LAKEHOUSE, ids=str)
def test_examples_with_a_lakehouse(page: Page, tmp_path: Path) -> None:
    """They run in an environment with Delta and Iceberg, with the same versions as examples/lakehouse."""
    assert [jar for jar in jars(VERSIONS["iceberg"]) if jar not in page.program] == []
    environment = available(lakehouse, "Spark with Delta and Iceberg")
    with ExitStack() as stack:
        place = Place(page, tmp_path / "here", sys.executable, stack)
        (place.directory / "spark-defaults.conf").write_text(SPARK_DEFAULTS)
        place.environment |= environment.variables
        done = place.run(environment.python, place.program, seconds=600)
        assert done.returncode == 0, done.stderr[-8000:]
        place.check_output(done.stdout)


# --- What is said elsewhere -------------------------------------------------------------------------------------------


@each("page", PAGES)
def test_links_have_targets(page: Page) -> None:
    """Links within the repository, headings included. ``mkdocs build --strict`` does not check the README."""
    prose = BLOCK.sub("", page.text)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.path.parent / name).resolve() if name else page.path
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path), target


def test_links_of_the_readme_are_absolute_on_a_package_index() -> None:
    """Each is a file of the repository that ``[project.urls]`` names."""
    source = "https://github.com/ce-nats/ce-nats"
    assert f'Source = "{source}"' in (ROOT / "pyproject.toml").read_text("utf-8")
    text = with_absolute_links((ROOT / "README.md").read_text("utf-8"), source)
    targets = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", BLOCK.sub("", text))
    assert all(target.startswith("https://") for _, target in targets)
    inside = [(kind, target.removeprefix(source)) for kind, target in targets if target.startswith(source)]
    assert len(inside) > 15
    for kind, target in inside:
        folder = "/raw/main/" if kind else "/blob/main/"
        assert target.startswith(folder)
        assert (ROOT / target.removeprefix(folder).partition("#")[0]).is_file()


def test_pages_share_no_stream() -> None:
    """So that a reader may run all pages on one server."""
    pages: dict[str, set[Page]] = {}
    for page in RUNNABLE:
        for name in re.findall(r"add_stream\(\s*name=\"(\w+)\"", _on_the_shared_server(page)):
            pages.setdefault(name, set()).add(page)
    assert {name: pages for name, pages in pages.items() if len(pages) > 1} == {}


def _on_the_shared_server(page: Page) -> str:
    """Return the program of a page, unless it starts servers itself."""
    return "" if "with NatsServer" in page.program or "def test_" in page.program else page.program


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """``mkdocs build`` checks this, but is not part of the tests."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    navigation = str(yaml.safe_load(text)["nav"])
    missing = [page for page in PAGES[1:] if page.path.relative_to(DOCS).as_posix() not in navigation]
    assert missing == []


def _anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub and mkdocs give to headings."""
    text = BLOCK.sub("", path.read_text("utf-8"))
    explicit = re.findall(r"\{ ?#([\w-]+) ?\}|<a id=\"([\w-]+)\">", text)
    headings = re.findall(r"^#+ (.+?)(?: \{.*)?$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return slugs | {one or other for one, other in explicit}


def test_every_guide_is_listed_on_the_first_page() -> None:
    first = (DOCS / "index.md").read_text("utf-8")
    assert [path.name for path in (DOCS / "guides").glob("*.md") if f"(guides/{path.name})" not in first] == []


def test_readme_is_short() -> None:
    assert len(PAGES[0].text.splitlines()) <= 180


def test_docstring_of_the_package_names_its_modules() -> None:
    modules = {module.name for module in pkgutil.iter_modules(ce_nats.__path__)}
    public = {name for name in modules if not name.startswith("_")} - {"cli"}
    assert {name for name in public if f"``{name}``" not in (ce_nats.__doc__ or "")} == set()


def test_every_command_is_listed() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group
    page = (DOCS / "guides" / "command-line.md").read_text("utf-8")
    rows = re.findall(r"^\|([^|]*)\|", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)", row)} >= commands.keys()


def test_every_decision_is_argued() -> None:
    """The page of decisions has every A-nn that the code or the fixtures cite."""
    sources = [*(ROOT / "ce_nats").rglob("*.py"), *(ROOT / "spec-fixtures").glob("*.json")]
    cited = {number for path in sources for number in re.findall(r"\bA-\d\d\b", path.read_text("utf-8"))}
    argued = re.findall(r"^\| (A-\d\d) \|", (DOCS / "decisions.md").read_text("utf-8"), re.MULTILINE)
    assert len(argued) == len(set(argued))
    assert cited <= set(argued)
    assert len(cited) > 60


@each(("page", "kind"), [("consume.md", aio.PullConsumer), ("publish.md", aio.Publisher)])
def test_every_option_is_listed_once(page: str, kind: type) -> None:
    section = (DOCS / "guides" / page).read_text("utf-8").partition("\n## Options\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    positional = {"js", "stream", "consumer"}
    assert sorted(listed) == sorted({*inspect.signature(kind).parameters} - positional)


def test_every_error_code_is_explained() -> None:
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    rows = re.findall(r"^\|([^|]*)\|", page.partition("## Error codes")[2], re.MULTILINE)
    explained = [code for row in rows for code in re.findall(r"`([a-z0-9-]+)`", row)]
    assert sorted(explained) == sorted(map(str, ErrorCode))


async def test_quoted_errors_are_those_raised() -> None:
    """The first two tables of the page have exactly the errors that are raised here."""
    page = (DOCS / "troubleshooting.md").read_text("utf-8").partition("## Messages that are not events")[0]
    quoted = re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE)
    raised = [re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:4222", text) async for text in _errors()]
    matches = [(text, error) for text in quoted for error in raised if _is_quote(text, error)]
    assert set(raised) - {error for _, error in matches} == set()
    assert set(quoted) - {text for text, _ in matches} == set()


def _is_quote(text: str, error: str) -> bool:
    """Return whether a quotation matches an error text; three dots match any text."""
    return bool(re.fullmatch(re.escape(text).replace(r"\.\.\.", ".*"), error, re.DOTALL))


async def _errors() -> AsyncIterator[str]:
    """Yield the error texts of servers without a stream, a consumer, headers, or permissions."""
    event = CloudEvent({"source": "/orders", "type": "com.example.paid", "id": "1"}, "x" * 2_000_000)
    small = CloudEvent({"source": "/orders", "type": "com.example.paid", "id": "1"}, None)

    def enter(nc: Client, dead_letter: str | None = None) -> Awaitable[object]:
        create = None if dead_letter is None else ConsumerConfig()
        consumer = aio.PullConsumer(nc.jetstream(), "ORDERS", "billing", dead_letter=dead_letter, create=create)
        return consumer.__aenter__()

    async def publish_unacknowledged(nc: Client, *, has_stream: bool) -> None:
        js = nc.jetstream()
        if has_stream:
            await js.add_stream(name="ORDERS", subjects=["orders.>"], no_ack=True)
        subscription = await nc.subscribe("orders.paid")
        try:
            await aio.jetstream.publish(js, small, "orders.paid", timeout=0.2)
        finally:
            await subscription.unsubscribe()
            if has_stream:
                await js.delete_stream("ORDERS")

    locked = "users: [{user: u, password: p, permissions: {publish: [nothing]}}]"
    with (
        NatsServer(jetstream=True) as server,
        NatsServer() as plain,
        NatsServer(config="no_header_support: true") as old,
        NatsServer(config=f"authorization {{ {locked} }}") as strict,
    ):
        async with (
            await aio.connect(server.url) as nc,
            await aio.connect(plain.url) as without_jetstream,
            await aio.connect(old.url) as without_headers,
            await aio.connect(strict.url, user="u", password="p") as denied,
        ):
            attempts: list[Callable[[], Awaitable[object]]] = [
                lambda: aio.connect("nats://127.0.0.1:1"),
                lambda: aio.connect(server.url.replace("nats:", "tls:")),
                lambda: aio.connect("http://127.0.0.1:8222"),
                lambda: aio.connect(strict.url),
                lambda: aio.jetstream.publish(denied.jetstream(), small, "orders.paid"),
                lambda: aio.jetstream.publish(nc.jetstream(), small, "orders.paid"),
                lambda: aio.jetstream.publish(without_jetstream.jetstream(), small, "orders.paid"),
                lambda: publish_unacknowledged(nc, has_stream=False),
                lambda: publish_unacknowledged(nc, has_stream=True),
                lambda: anext(aio.jetstream.read_stream(without_jetstream.jetstream(), "ORDERS")),
                lambda: enter(nc),
                lambda: nc.jetstream().add_stream(name="ORDERS", subjects=["orders.>"]),
                lambda: enter(nc),
                lambda: enter(nc, "orders.dead"),
                lambda: aio.request(nc, small, "prices.get"),
                lambda: aio.publish(nc, event, "orders.paid"),
                lambda: aio.publish(without_headers, small, "orders.paid"),
                lambda: aio.jetstream.publish(cast("JetStreamContext", nc), small, "orders.paid"),
            ]
            for attempt in attempts:
                try:
                    await attempt()
                except CeNatsError as error:
                    yield str(error)
                except TypeError as error:
                    yield f"TypeError: {error}"


def test_every_option_of_spark_is_listed() -> None:
    from ce_nats.spark.connector._connection import CONNECTION_OPTIONS
    from ce_nats.spark.connector._read_options import READ_OPTIONS
    from ce_nats.spark.connector._sink import SINK_OPTIONS

    page = (DOCS / "guides" / "spark-source-sink.md").read_text("utf-8")
    listed = {name for row in re.findall(r"^\|([^|]*)\|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert {*CONNECTION_OPTIONS, *READ_OPTIONS, *SINK_OPTIONS} <= listed


def test_every_option_for_kafka_has_its_equivalent_in_the_table() -> None:
    from ce_nats.spark.connector._connection import KAFKA_NAMES

    page = (DOCS / "guides" / "spark-source-sink.md").read_text("utf-8")
    table = re.search(r"^## From Kafka\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert table is not None
    rows = [[set(re.findall(r"`([\w.]+)`", cell)) for cell in row.split("|")] for row in table[1].splitlines()]
    found = {
        (kafka.lower(), ours)
        for _, left, right, *_ in (row for row in rows if len(row) > 3)
        for kafka in left
        for ours in right
    }
    assert set(KAFKA_NAMES.items()) <= found


def test_picture_of_a_message_has_its_headers() -> None:
    """The lines of docs/message.svg are the headers and data that the codec creates from its event."""
    tree = ElementTree.parse(DOCS / "message.svg")
    groups = {
        group.get("id"): ["".join(line.itertext()) for line in group if line.get("class") == "wire"]
        for group in tree.iter("{http://www.w3.org/2000/svg}g")
    }
    event = from_nats_message(NatsMessage(data="".join(groups["event"]).encode()))
    for mode in ContentMode:
        message = to_nats_message(event, mode=mode)
        lines = (encode_header_block(message.headers) + message.data).decode().split("\r\n")
        assert "".join(groups[str(mode)]) == "".join(lines)


def test_figures_of_the_codec_are_the_measured_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """The table, the file and the picture are from one run of the benchmark."""
    from benchmarks import codec

    results = codec.read(ROOT / "benchmarks" / "codec.json")
    codec.show(results, markdown=True)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) > 10
    assert "\n".join(table) in (DOCS / "speed.md").read_text(encoding="utf-8")
    picture = (DOCS / "codec.svg").read_text(encoding="utf-8")
    assert all(f">{one.event}, {one.operation}<" in picture for one in results)


def test_figures_of_growth_are_the_measured_ones() -> None:
    """The tables and pictures are those of the file."""
    from benchmarks.growth import _curve
    from benchmarks.growth.__main__ import rows

    page = (DOCS / "growth.md").read_text(encoding="utf-8")
    parts = _curve.read(ROOT / "benchmarks" / "growth.json")
    assert parts
    for part, given in parts.items():
        curves = _curve.curves(given)
        assert all("| " + " | ".join(row) + " |" in page for row in rows(part, curves))
        picture = (DOCS / f"growth-{part}.svg").read_text(encoding="utf-8")
        assert all(f">{curve.name}<" in picture for curve in curves)
        assert f"(growth-{part}.svg)" in page
