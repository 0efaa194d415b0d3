"""Waiting for what has to happen."""

import asyncio

import pytest


async def until(condition, seconds):
    for _ in range(100 * seconds):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it does not come to that")
