"""Wait for a condition."""

import asyncio

import pytest


async def until(condition, seconds):
    for _ in range(100 * seconds):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"the condition must hold within {seconds} seconds")
