"""Fixtures: a server, a stream on it, and events to publish."""

from tests.support.broker import js, make_event, nc, server, stream, subject

__all__ = ["js", "make_event", "nc", "server", "stream", "subject"]
