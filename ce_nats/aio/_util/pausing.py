"""Pause before a retry. Half of a pause is random, so that clients that failed together do not retry together."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from ...redelivery import Backoff

# 0 or more, and below 1.
random_number: Final = random.random


async def pause(seconds: float) -> None:
    """Wait for at most ``seconds``, and at least half of that."""
    await asyncio.sleep(Backoff(seconds, maximum=seconds).delay(1, random_number()))
