"""Fixtures: the stream that deliveries of a real server come from."""

from tests.aio.conftest import js, nc, stream, subject

__all__ = ["js", "nc", "stream", "subject"]
