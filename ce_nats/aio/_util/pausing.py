"""Pauses before a further attempt. A part is random, so that clients that failed together do not come back together."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from ...redelivery import Backoff

# 0 or more, and below 1.
random_number: Final = random.random


async def pause(seconds: float) -> None:
    """Wait for so many seconds at most, and for the half at least."""
    await asyncio.sleep(Backoff(seconds, maximum=seconds).delay(1, random_number()))
