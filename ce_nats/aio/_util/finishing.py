"""Finish work, a deletion for instance, although the task that began it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from .supervising import supervise

# The event loop has only weak references to tasks.
_unfinished: Final[set[asyncio.Task[None]]] = set()


async def finish(work: Coroutine[Any, Any, None], name: str, seconds: float) -> None:
    """Wait until work is finished. It continues in the background if the caller is cancelled, or after ``seconds``."""
    task = supervise(work, name, lambda error: None)
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)
    await asyncio.wait([task], timeout=seconds)
