"""Wait for a condition."""

import asyncio
import inspect
import time

import pytest

SECONDS = 60  # generous, because the machine may be busy


async def until(condition, seconds=SECONDS):
    """
    Wait until a condition holds, and return its value.

    Args:
        condition: Called repeatedly, without arguments; may be async.
        seconds: The test fails after this time.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        await asyncio.sleep(0.01)
    pytest.fail(f"the condition must hold within {seconds} seconds")
