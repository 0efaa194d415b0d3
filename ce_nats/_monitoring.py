"""
Requests to the HTTP monitoring of a server (server option ``-m``).

The HTTP client of Python is imported with the first request, because few programs need it, and it takes long.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from .errors import DeliveryError, ErrorCode


def is_monitoring_url(url: str) -> bool:
    """Return whether a text is the URL of a server, with ``http`` or ``https``."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


async def fetch(url: str, path: str, timeout: float) -> tuple[int, bytes]:
    """
    Return the status and the body of the response, whatever the status is.

    ``url``: URL of the server, without a slash at its end; it must be a monitoring URL.

    Raises:
        DeliveryError: ``connection-failed``: there is no response within ``timeout`` seconds.
    """
    from http.client import HTTPException

    try:
        return await asyncio.to_thread(_get, f"{url}/{path}", timeout)
    except (OSError, HTTPException) as error:
        raise DeliveryError(ErrorCode.CONNECTION_FAILED, f"monitoring at {url}: {error}") from error


def _get(url: str, timeout: float) -> tuple[int, bytes]:
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=timeout) as answer:  # noqa: S310 - the scheme was checked
            return answer.status, answer.read()
    except HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read()
