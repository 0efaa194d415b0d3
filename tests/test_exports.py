"""
The public names, their signatures, and what importing them costs.
"""

import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ce_nats
from ce_nats import iggy
from ce_nats.codec import percent
from ce_nats.wire import nats

ROOT = Path(__file__).parents[1]
PUBLIC = {
    *("to_nats_message", "from_nats_message", "detect_mode", "dedup_id"),
    *("ContentMode", "Dialect", "NatsMessage", "Headers", "SubjectTemplate", "Timestamp"),
    *("ApiError", "CeNatsError", "DataLossError", "DecodeError", "DeliveryError", "EncodeError", "ErrorCode"),
    *("NoStreamError", "PublishError", "Reject", "StanError", "DecodedEvent", "EventLike", "__version__"),
}
# Modules that need an extra to be imported.
OPTIONAL = (
    "ce_nats.cli",
    "ce_nats.conformance._report",
    "ce_nats.otel",
    "ce_nats.spark",
    "ce_nats.stan",
    "ce_nats.sync",
)
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(ce_nats.__path__, "ce_nats.")
    if not module.name.startswith(OPTIONAL) and not module.name.endswith("__main__")
)


def test_public_names() -> None:
    """What the package offers, no more and no less."""
    assert set(ce_nats.__all__) == PUBLIC
    assert ce_nats.__version__.count(".") >= 1


@pytest.mark.parametrize("name", MODULES)
def test_all_is_true(name: str) -> None:
    """A module's __all__ is sorted, without repeats, and holds names that exist."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])
    assert len(set(names)) == len(names)
    assert [one for one in names if not hasattr(module, one)] == []


def test_public_modules() -> None:
    """Public modules are documented in docs/api and have ``__all__``; private ones have an underscore, and neither."""
    documented = {
        name
        for page in (ROOT / "docs" / "api").glob("*.md")
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE)
    }
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path.read_text("utf-8")
        for path in (ROOT / "ce_nats").rglob("*.py")
    }
    with_names = {name for name, source in sources.items() if re.search("^__all__ = ", source, re.MULTILINE)}
    assert with_names == documented | {"ce_nats.errors"}
    assert {"ce_nats.aio", "ce_nats.spark", "ce_nats.message", "ce_nats.wire.nats"} <= with_names
    packages = {name for name in sources if any(other.startswith(f"{name}.") for other in sources)}
    without_underscore = {name for name in sources if not re.search(r"\._", name)} - packages
    assert {name for name in with_names if re.search(r"\._", name)} == set()
    assert without_underscore == with_names - packages


def test_no_name_of_a_package_hides_a_module() -> None:
    """A path such as ``ce_nats.aio.connect`` is either a module or a function, so that it can be patched and linked."""
    packages = [ce_nats, *(importlib.import_module(name) for name in MODULES)]
    hidden = [
        f"{package.__name__}.{module.name}"
        for package in packages
        for module in pkgutil.iter_modules(getattr(package, "__path__", []))
        if not inspect.ismodule(getattr(package, module.name, package))
    ]
    assert len(packages) > 50
    assert hidden == []


def test_modules_were_found() -> None:
    """The walk saw the codec."""
    assert {
        "ce_nats.codec.percent",
        "ce_nats.codec.binding",
        "ce_nats.wire.nats",
        "ce_nats.iggy",
        "ce_nats.aio.core._publish",
    } <= set(MODULES)


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (ce_nats.to_nats_message, "(event, subject='', *, mode=BINARY, format=None, reply='', headers=None)"),
        (
            ce_nats.from_nats_message,
            "(message, *, mode=None, dialect=SPEC, parse_data=True, extension_types=None)",
        ),
        (ce_nats.detect_mode, "(message)"),
        (ce_nats.dedup_id, "(event)"),
        (percent.encode, "(text)"),
        (percent.decode, "(value)"),
        (ce_nats.Headers.get, "(self, name, default='', *, ignore_case=False)"),
        (ce_nats.Headers.values, "(self, name=None, *, ignore_case=False)"),
        (ce_nats.Headers.append, "(self, name, value, *, ignore_case=False)"),
        (ce_nats.Headers.set, "(self, name, value, *, ignore_case=False)"),
        (ce_nats.Headers.delete, "(self, name, *, ignore_case=False)"),
        (ce_nats.Headers.items, "(self)"),
        (nats.encode_header_block, "(headers)"),
        (nats.decode_header_block, "(block)"),
        (nats.encode_hpub, "(subject, payload, headers, *, reply='')"),
        (nats.encode_hmsg, "(subject, sid, payload, headers, *, reply='')"),
        (nats.FrameReader.feed, "(self, data)"),
        (iggy.to_iggy_message, "(event, *, mode=BINARY)"),
        (iggy.from_iggy_message, "(message, *, mode=None, parse_data=True, extension_types=None)"),
        (iggy.encode_headers, "(headers, *, layout=STRING_KEYS)"),
        (iggy.decode_headers, "(data, *, layout=STRING_KEYS)"),
        (iggy.encode_message, "(message, *, polled=False)"),
        (iggy.decode_messages, "(data, *, polled=False)"),
        (iggy.encode_json, "(message, *, layout=STRING_KEYS)"),
        (iggy.decode_json, "(text, *, layout=STRING_KEYS)"),
    ],
)
def test_signatures(function: Any, signature: str) -> None:
    """Names, order, kinds and defaults of parameters are what callers rely on."""
    assert _plain(function) == signature


def _plain(function: Any) -> str:
    parameters = [
        parameter.replace(annotation=parameter.empty, default=_Shown.of(parameter.default))
        for parameter in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(parameters))


class _Shown:
    """A default that prints as the name of its enum member."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    @classmethod
    def of(cls, default: Any) -> Any:
        return cls(default.name) if hasattr(default, "name") else default


def test_frames_can_be_decoded_in_one_call() -> None:
    """Further options of decode_frames() have defaults."""
    assert next(iter(inspect.signature(nats.decode_frames).parameters)) == "data"
    assert nats.decode_frames(b"") == []


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("ContentMode", {"binary", "structured"}),
        ("Dialect", {"spec", "sdk-go"}),
    ],
)
def test_enums_are_strings(name: str, members: set[str]) -> None:
    """Command lines and fixtures give and take the values."""
    enum = getattr(ce_nats, name)
    assert {str(member) for member in enum} == members
    assert all(enum(value) == value for value in members)


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        (
            "import ce_nats",
            {"pyspark", "typer", "rich", "nats", "jsonschema", "pyarrow", "google.protobuf", "asyncio", "pydantic"},
        ),
        ("import ce_nats.wire.nats", {"pyspark", "typer", "rich", "nats", "asyncio"}),
        ("import ce_nats.iggy", {"pyspark", "typer", "rich", "nats", "asyncio"}),
        ("import ce_nats.aio", {"pyspark", "typer", "rich", "jsonschema", "pyarrow", "google.protobuf", "anyio"}),
        ("import ce_nats.sync", {"pyspark", "typer", "rich", "jsonschema", "pyarrow", "google.protobuf", "pydantic"}),
    ],
)
def test_imports_are_light(statement: str, forbidden: set[str]) -> None:
    """In a fresh interpreter, importing the codec loads neither a network client nor Spark nor the CLI's libraries."""
    code = f"{statement}; import json, sys; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert "ce_nats.codec.binding" in loaded
    assert forbidden & set(loaded) == set()
