"""
Imports run one way: root is text, wire/ is bytes, aio/ is the network, arrow/ is Arrow, spark/ is Spark.

Checked on the source, imports inside of functions included.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ce_nats"
SOURCES = {
    ".".join(("ce_nats", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# Tools on top of everything.
TOOLS = ("cli", "__main__", "demo", "conformance", "testing")

# Layer -> other layers of the package that it may import, and libraries.
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "root": (set(), {"cloudevents", "msgspec"}),
    "wire": ({"root"}, {"google"}),
    "aio": ({"root", "wire"}, {"nats", "msgspec", "google"}),
    "arrow": ({"root", "wire"}, {"pyarrow"}),
    "spark": ({"root", "wire", "aio", "arrow"}, {"nats", "pyspark", "pyarrow", "msgspec"}),
}
# Single modules that need more.
EXTRAS = {"ce_nats.capture": {"pyarrow"}}


def layer(module: str) -> str:
    """The layer of a module named ``ce_nats.x.y``."""
    name = module.removeprefix("ce_nats").removeprefix(".")
    first = name.partition(".")[0]
    if first in TOOLS:
        return "tools"
    return first if first in ALLOWED else "root"


def imports(module: str, source: str, is_package: bool) -> Iterator[str]:
    """Full names of all modules (or members of modules) that a source imports."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{start}.{alias.name}" for alias in node.names)


def module_of(name: str) -> str:
    """``ce_nats.errors`` for ``ce_nats.errors.ErrorCode``."""
    while name not in SOURCES:
        name = name.rpartition(".")[0]
    return name


def faults(module: str, source: str, is_package: bool = False) -> list[str]:
    """Imports that the module's layer must not have."""
    own = layer(module)
    if own == "tools":
        return []
    layers, libraries = ALLOWED[own]
    wrong = []
    for name in imports(module, source, is_package):
        top = name.partition(".")[0]
        if top == "ce_nats":
            target = module_of(name)
            if layer(target) not in {own, *layers}:
                wrong.append(name)
        elif top not in sys.stdlib_module_names | libraries | EXTRAS.get(module, set()):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("module", SOURCES)
def test_layers(module: str) -> None:
    """A module imports from its own layer and from those below, and no library but its layer's."""
    path = SOURCES[module]
    assert faults(module, path.read_text(encoding="utf-8"), path.name == "__init__.py") == []


def test_no_cycles() -> None:
    """No module imports itself by way of others."""
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
    assert order.index("ce_nats.errors") < order.index("ce_nats.binding")


def _packages_of(module: str) -> set[str]:
    """The module and the packages around it: importing a sibling by ``from . import`` goes through them."""
    parts = module.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts) + 1)}


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("ce_nats.percent", "from .wire import nats", ["ce_nats.wire.nats"]),
        ("ce_nats.percent", "import nats.aio.client", ["nats.aio.client"]),
        ("ce_nats.percent", "def f():\n    import pyspark", ["pyspark"]),
        ("ce_nats.binding", "from ce_nats.aio.publish import publish", ["ce_nats.aio.publish.publish"]),
        ("ce_nats.wire.nats", "from ..aio import publish", ["ce_nats.aio.publish"]),
        ("ce_nats.aio.publish", "from ..spark import columns", ["ce_nats.spark.columns"]),
        ("ce_nats.aio.publish", "from ..cli import app", ["ce_nats.cli.app"]),
        ("ce_nats.spark.columns", "from ..cli import app", ["ce_nats.cli.app"]),
        ("ce_nats.percent", "import requests", ["requests"]),
        ("ce_nats.binding", "from .arrow import explode_cloudevents", ["ce_nats.arrow.explode_cloudevents"]),
        ("ce_nats.arrow.decode", "from ..aio.publish import publish", ["ce_nats.aio.publish.publish"]),
        ("ce_nats.arrow.decode", "import pyspark", ["pyspark"]),
        ("ce_nats.spark.columns", "from ..errors import ErrorCode\nfrom . import schema\nimport pyspark.sql", []),
        ("ce_nats.spark.source", "from ..aio import jetstream\nfrom .schema import ROW\nfrom .. import arrow", []),
        ("ce_nats.cli", "import typer\nfrom .spark import columns", []),
    ],
)
def test_the_check_sees_what_is_wrong(
    module: str, source: str, wrong: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each forbidden import is found, however it is written, and allowed ones pass."""
    monkeypatch.setitem(SOURCES, "ce_nats.spark.source", Path())
    assert faults(module, source) == wrong
