"""Fixtures: a server, a stream on it, and events to publish."""

from tests.aio.conftest import js, nc, stream, subject
from tests.support.broker import make_event, server

__all__ = ["js", "make_event", "nc", "server", "stream", "subject"]
