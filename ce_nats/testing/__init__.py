"""
Helpers for the tests of applications: nats-servers, clusters of them, and deliveries without a server.

``ce_nats.testing.pytest_plugin`` has pytest fixtures.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._deliveries import FakeDelivery
    from ._server import NatsCluster, NatsServer

__all__ = ["FakeDelivery", "NatsCluster", "NatsServer"]

_MODULES = {"FakeDelivery": "_deliveries", "NatsCluster": "_server", "NatsServer": "_server"}


def __getattr__(name: str) -> Any:
    """Import a name when it is used, because every run of pytest imports this package with its plugin."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
