"""Public names, their signatures, and the modules that importing them loads."""

import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ce_nats
from ce_nats.wire import nats
from tests.support.tables import each

ROOT = Path(__file__).parents[1]
PUBLIC = {
    *("to_nats_message", "from_nats_message", "detect_mode", "dedup_id"),
    *("ContentMode", "Dialect", "NatsMessage", "Headers", "SubjectTemplate", "Timestamp", "Unavailable"),
    *("ApiError", "AtomicBatchError", "CeNatsError", "DataLossError", "DecodeError", "DeliveryError"),
    *("EncodeError", "ErrorCode"),
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
    """``ce_nats.__all__`` has exactly these names."""
    assert set(ce_nats.__all__) == PUBLIC
    assert ce_nats.__version__.count(".") >= 1


@each("name", MODULES)
def test_names_in_all_exist(name: str) -> None:
    """A module's __all__ has existing names, without duplicates."""
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


def test_names_of_packages_do_not_hide_modules() -> None:
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
    """The modules under test include those of the codec."""
    assert {
        "ce_nats.codec.percent",
        "ce_nats.codec.binding",
        "ce_nats.wire.nats",
        "ce_nats.iggy",
        "ce_nats.aio.core._publish",
    } <= set(MODULES)


# Functions and classes of ce_nats.sync, what they correspond to in ce_nats.aio, and the arguments that only one of them
# has. The first argument (the connection) is left out.
SYNC_SIGNATURES: tuple[tuple[str, str, set[str], set[str]], ...] = (
    ("publish", "publish", set(), set()),
    ("flush", "flush", set(), set()),
    ("request", "request", set(), set()),
    ("publish_to_stream", "jetstream.publish", set(), set()),
    ("read_stream", "jetstream.read_stream", set(), set()),
    ("configure_stream", "jetstream.configure_stream", set(), set()),
    ("configure_consumer", "jetstream.configure_consumer", set(), set()),
    ("check_stream", "jetstream.check", set(), set()),
    ("replay", "replay", set(), set()),
    ("requeue", "requeue", set(), set()),
    ("requeue_all", "requeue_all", set(), set()),
    ("Connection.claim_check", "ClaimCheck", set(), set()),
    ("ClaimCheck", "ClaimCheck", set(), set()),
    ("ClaimCheck.check_in", "ClaimCheck.check_in", set(), set()),
    ("ClaimCheck.read", "ClaimCheck.read", set(), set()),
    ("ClaimCheck.resolve", "ClaimCheck.resolve", set(), set()),
    ("Publisher", "Publisher", set(), set()),
    ("Publisher.publish", "Publisher.publish", set(), set()),
    ("Publisher.flush", "Publisher.flush", set(), set()),
    ("Connection.publisher", "Publisher", set(), set()),
    ("AtomicBatch", "AtomicBatch", set(), set()),
    ("AtomicBatch.publish", "AtomicBatch.publish", set(), set()),
    ("Connection.atomic_batch", "AtomicBatch", set(), set()),
    # A thread that waits for the next message cannot be cancelled; asyncio has asyncio.timeout().
    ("subscribe", "subscribe", {"timeout"}, set()),
    ("PullConsumer", "PullConsumer", {"timeout"}, set()),
    ("Connection.consumer", "PullConsumer", {"timeout"}, set()),
    # Nor can a handler's thread.
    ("PullConsumer.run", "PullConsumer.run", set(), {"stop_timeout"}),
    ("PullConsumer.run_batches", "PullConsumer.run_batches", set(), {"stop_timeout"}),
    ("PullConsumer.stop", "PullConsumer.stop", set(), set()),
    ("Delivery.ack", "Delivery.ack", set(), set()),
    ("Delivery.nak", "Delivery.nak", set(), set()),
    ("Delivery.reject", "Delivery.reject", set(), set()),
    ("Delivery.resolve", "Delivery.resolve", set(), set()),
)


@each(("own", "other", "added", "missing"), SYNC_SIGNATURES)
def test_sync_has_the_signatures_of_aio(own: str, other: str, added: set[str], missing: set[str]) -> None:
    """Names, order, kinds and defaults of parameters."""
    ours = _parameters(f"ce_nats.sync:{own}", added)
    assert ours == _parameters(f"ce_nats.aio:{other}", missing)
    assert not any(name == "options" for name, *_ in ours)


def test_sync_connects_with_the_arguments_of_aio() -> None:
    """``connect`` has no connection as its first argument, and ``respond`` has none in ``aio``."""
    sync, aio = map(importlib.import_module, ("ce_nats.sync", "ce_nats.aio"))
    assert _plain(sync.connect) == _plain(aio.connect)
    assert _plain(sync.respond) == _plain(aio.respond).replace("(request", "(self, request")


# Public names of ce_nats.aio that are not in ce_nats.sync, with the reason.
NOT_IN_SYNC = {
    **dict.fromkeys(("BatchAck", "Received", "PublishResult", "RequeueResult"), "results are those of aio"),
    **dict.fromkeys(("Instruments", "MessageOutcome", "Operation", "OutcomeKind"), "hooks are those of aio"),
    "Events": "Subscription",
    "events": "a subscription of nats-py belongs to the event loop: subscribe()",
    "jetstream": "publish_to_stream(), read_stream(), configure_stream(), configure_consumer(), check_stream()",
}


# Public members of one class that the other does not have.
MEMBERS = (
    ("Publisher", "Publisher", {"close"}, set()),  # attributes that __init__ sets are not compared
    ("AtomicBatch", "AtomicBatch", set(), set()),
    ("PullConsumer", "PullConsumer", {"close"}, set()),
    ("Subscription", "Events", {"close"}, {"stop"}),
    ("Delivery", "Delivery", set(), set()),
    ("ClaimCheck", "ClaimCheck", set(), set()),
)


def test_sync_has_the_names_of_aio() -> None:
    """Differences are documented in docs/guides/sync.md."""
    sync, aio = map(importlib.import_module, ("ce_nats.sync", "ce_nats.aio"))
    assert set(aio.__all__) - set(sync.__all__) == set(NOT_IN_SYNC)
    assert set(sync.__all__) - set(aio.__all__) == {
        *("Connection", "Subscription"),
        *("check_stream", "configure_consumer", "configure_stream", "publish_to_stream", "read_stream"),
    }


@each(("own", "other", "added", "missing"), MEMBERS)
def test_classes_of_sync_have_the_members_of_aio(own: str, other: str, added: set[str], missing: set[str]) -> None:
    ours, theirs = (
        {member for member, value in inspect.getmembers(pkgutil.resolve_name(name)) if not member.startswith("_")}
        for name in (f"ce_nats.sync:{own}", f"ce_nats.aio:{other}")
    )
    assert ours - added - {"failures"} == theirs - missing


def test_differences_of_sync_are_documented() -> None:
    """In the table of docs/guides/sync.md."""
    page = (ROOT / "docs" / "guides" / "sync.md").read_text("utf-8")
    table = [line for line in page.splitlines() if line.startswith("| `")]
    differences = {name for *_, added, missing in SYNC_SIGNATURES + MEMBERS for name in added | missing}
    for name in {*differences, "publish_to_stream", "read_stream", "events", "Subscription"}:
        assert any(re.search(rf"\b{name}\b", line) for line in table), name


def _parameters(name: str, left_out: set[str]) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter but the first, keyword arguments by name."""
    parameters = list(inspect.signature(pkgutil.resolve_name(name)).parameters.values())[1:]
    assert left_out <= {one.name for one in parameters}
    found = [(one.name, one.kind, _Shown.of(one.default)) for one in parameters if one.name not in left_out]
    return [(name, kind, repr(default)) for name, kind, default in found]


def _plain(function: Any) -> str:
    parameters = [
        parameter.replace(annotation=parameter.empty, default=_Shown.of(parameter.default))
        for parameter in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(parameters))


class _Shown:
    """A default that prints as the name of its enum member or function."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    @classmethod
    def of(cls, default: Any) -> Any:
        if inspect.isfunction(default) or (inspect.isclass(default) and default is not inspect.Parameter.empty):
            return cls(default.__name__)
        if type(default).__name__ == "StructType":
            return cls("EVENT_TYPE")
        return cls(default.name) if hasattr(default, "name") else default


def test_decode_frames_needs_one_argument() -> None:
    """Other parameters of decode_frames() have defaults."""
    assert next(iter(inspect.signature(nats.decode_frames).parameters)) == "data"
    assert nats.decode_frames(b"") == []


@each(
    ("name", "members"),
    [
        ("ContentMode", {"binary", "structured"}),
        ("Dialect", {"spec", "sdk-go"}),
    ],
)
def test_enums_are_strings(name: str, members: set[str]) -> None:
    """Command lines and fixtures use their values."""
    enum = getattr(ce_nats, name)
    assert {str(member) for member in enum} == members
    assert all(enum(value) == value for value in members)


@each(
    ("statement", "forbidden"),
    [
        (
            "import ce_nats, ce_nats.wire.nats, ce_nats.iggy",
            {"pyspark", "typer", "rich", "nats", "jsonschema", "pyarrow", "google.protobuf", "asyncio", "pydantic"},
        ),
        ("import ce_nats.capture, ce_nats.cli", {"pyarrow"}),
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
