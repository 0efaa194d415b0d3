"""
Imports go from upper layers to lower ones only, imports inside of functions included.
"""

import ast
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from tests.support.tables import each

PACKAGE = Path(__file__).parents[1] / "ce_nats"
SOURCES = {
    ".".join(("ce_nats", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# From the bottom up. Parts may import parts of earlier layers, and their own libraries. Parts of one layer do not
# import each other.
LAYERS: tuple[dict[str, set[str]], ...] = (
    {
        name: set()
        for name in (
            "_version",
            "_callables",
            "errors",
            "message",
            "subjects",
            "_ranges",
            "_settings",
            "_numbers",
            "_instructions",
            "_monitoring",
        )
    },
    {"codec": {"cloudevents", "google", "msgspec", "pydantic"}, "wire": set(), "_parquet": {"pyarrow"}},
    {"cesql": set()},
    {
        **{name: set() for name in ("extensions", "redelivery", "routing")},
        "iggy": {"apache_iggy"},
        "schemas": {"jsonschema", "jsonschema_specifications", "referencing"},
        "capture": {"pyarrow", "msgspec"},
        "arrow": {"pyarrow"},
    },
    {"aio": {"nats", "nkeys", "msgspec"}},
    {"stan": {"nats", "msgspec", "google"}, "otel": {"opentelemetry"}, "sync": {"nats", "anyio"}},
    {"spark": {"nats", "pyspark", "pyarrow", "msgspec"}},
)
# Helpers that modules of any layer import inside functions, with the parts that they may import.
HELPERS = {"_notebook": {"errors"}}
# Above all layers; may import any library.
TOOLS = {"cli", "__main__", "conformance", "testing"}
# Other brokers. Each can be deleted with its folder and one line for each of its users.
OTHER_BROKERS = {"stan", "iggy"}
THEIR_USERS = {"spark", *TOOLS}
# Parts of ce_nats.aio, from the bottom up: each may import those before it.
AIO_PARTS = (
    *("_util", "link", "_pull_status", "_foreign_subjects"),
    *("_server_codes", "_errors", "_reply_inbox", "_reply_window", "_connect", "_jetstream_api", "check_up"),
    *("core", "_log_fields", "_observer", "reading", "_object_writer", "_claim_check"),
    *("publishing", "consumer", "jetstream", "__init__"),
)


def room(module: str) -> str:
    """Return the part of the package that a module belongs to: ``codec`` for ``ce_nats.codec.percent``."""
    return module.removeprefix("ce_nats").removeprefix(".").partition(".")[0]


def allowed(own: str) -> tuple[set[str], set[str]]:
    """Return the parts of the package, and the libraries, that a part may import."""
    if own in HELPERS:
        return {own, *HELPERS[own]}, set()
    below = set(HELPERS)
    for number, layer in enumerate(LAYERS):
        if own in layer:
            parts = below | (set(layer) if number == 0 else {own})
            if own not in THEIR_USERS:
                parts -= OTHER_BROKERS - {own}
            return parts, layer[own]
        below |= set(layer)
    raise AssertionError(f"ce_nats.{own} is not in any layer")


@cache
def imports(module: str, source: str, is_package: bool) -> list[str]:
    """Return the full names of all modules (or members of modules) that a source imports."""
    found = []
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{start}.{alias.name}" for alias in node.names]
    return found


def module_of(name: str) -> str:
    """Return ``ce_nats.errors`` for ``ce_nats.errors.ErrorCode``."""
    while name not in SOURCES:
        name = name.rpartition(".")[0]
    return name


def faults(module: str, source: str, is_package: bool = False) -> list[str]:
    """Return the imports that the module's layer does not allow."""
    own = room(module)
    if own in TOOLS or module == "ce_nats":
        return []
    parts, libraries = allowed(own)
    wrong = []
    for name in imports(module, source, is_package):
        top = name.partition(".")[0]
        if top == "ce_nats":
            if room(module_of(name)) not in parts:
                wrong.append(name)
        elif top not in sys.stdlib_module_names | libraries:
            wrong.append(name)
    return wrong


@each("module", SOURCES)
def test_modules_import_lower_layers_only(module: str) -> None:
    """A module imports from its own part, from lower layers, and the libraries of its part."""
    path = SOURCES[module]
    assert faults(module, path.read_text(encoding="utf-8"), path.name == "__init__.py") == []


def test_imports_have_no_cycles() -> None:
    """No module imports itself through other modules."""
    graph = {
        module: {
            module_of(name)
            for name in imports(module, path.read_text(encoding="utf-8"), path.name == "__init__.py")
            if name.startswith("ce_nats") and module_of(name) not in _packages_of(module)
        }
        for module, path in SOURCES.items()
    }
    assert sum(map(len, graph.values())) > 30
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("ce_nats.errors") < order.index("ce_nats.codec.binding")


def _packages_of(module: str) -> set[str]:
    """Return the module and its parent packages: ``from . import`` of a sibling goes through them."""
    parts = module.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts) + 1)}


def test_parts_of_aio() -> None:
    """``aio.core`` does not import ``aio.publishing``, which does not import ``aio.consumer``."""

    def part(module: str) -> str:
        return f"{module}.__init__".split(".")[2]

    upwards = set()
    for module, path in SOURCES.items():
        if room(module) == "aio":
            for name in imports(module, path.read_text(encoding="utf-8"), path.name == "__init__.py"):
                imported = module_of(name) if name.startswith("ce_nats.aio.") else module
                if AIO_PARTS.index(part(imported)) > AIO_PARTS.index(part(module)):
                    upwards.add((part(module), imported))
    assert not upwards


def test_each_module_of_aio_has_a_test_file() -> None:
    """``tests/aio/core/test_publish.py`` tests ``aio/core/_publish.py``; ``scenarios`` test several modules."""
    expected = {
        path.relative_to(PACKAGE / "aio").with_name(f"test_{path.stem.removeprefix('_')}.py")
        for path in (PACKAGE / "aio").rglob("*.py")
        if path.name != "__init__.py"
    }
    folder = Path(__file__).parent / "aio"
    found = {path.relative_to(folder) for path in folder.rglob("test_*.py")}
    without_underscore = {Path(*(part.removeprefix("_") for part in path.parts)) for path in expected}
    assert {path for path in found if path.parts[0] != "scenarios"} == without_underscore
    assert len(found) > len(without_underscore) > 25


@each(
    ("module", "source", "wrong"),
    [
        ("ce_nats.codec.percent", "from ..wire import nats", ["ce_nats.wire.nats"]),
        ("ce_nats.codec.percent", "import nats.aio.client", ["nats.aio.client"]),
        ("ce_nats.codec.percent", "def f():\n    import pyspark", ["pyspark"]),
        ("ce_nats.codec.percent", "import requests", ["requests"]),
        ("ce_nats.codec.binding", "from ce_nats.aio import publish", ["ce_nats.aio.publish"]),
        ("ce_nats.codec.binding", "from ..arrow import explode_cloudevents", ["ce_nats.arrow.explode_cloudevents"]),
        ("ce_nats.message", "from .codec import percent", ["ce_nats.codec.percent"]),
        ("ce_nats.wire.nats", "from ..aio import publish", ["ce_nats.aio.publish"]),
        ("ce_nats.arrow._decode", "from ..aio.core._publish import publish", ["ce_nats.aio.core._publish.publish"]),
        ("ce_nats.arrow._decode", "import pyspark", ["pyspark"]),
        ("ce_nats.aio.core._publish", "from ...spark import columns", ["ce_nats.spark.columns"]),
        ("ce_nats.aio.core._publish", "from ...cli import _program", ["ce_nats.cli._program"]),
        ("ce_nats.aio.core._publish", "from ...stan import wire", ["ce_nats.stan.wire"]),
        ("ce_nats.aio.publishing._publisher", "from ...otel import Instrumentation", ["ce_nats.otel.Instrumentation"]),
        ("ce_nats.aio.core._publish", "from ...sync import connect\nimport anyio", ["ce_nats.sync.connect", "anyio"]),
        ("ce_nats.stan._connection", "from .. import iggy\nfrom ..aio import publish", ["ce_nats.iggy"]),
        ("ce_nats.spark._session", "from ..cli import _program", ["ce_nats.cli._program"]),
        ("ce_nats.spark._session", "from ..errors import ErrorCode\nfrom . import columns\nimport pyspark.sql", []),
        ("ce_nats.spark.connector._source", "from ...aio import jetstream\nfrom ...stan import wire", []),
        ("ce_nats.cli", "import typer\nfrom ..spark import columns", []),
    ],
)
def test_forbidden_imports_are_found(module: str, source: str, wrong: list[str]) -> None:
    """In any notation; allowed imports pass."""
    assert faults(module, source, SOURCES[module].name == "__init__.py") == wrong
