"""Settle messages beside handlers: storing a dead letter takes two round trips, in which events would wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from .._util.supervising import supervise
from ._running import Running

_MAX_TASKS: Final = 64


class Background:
    """Tasks that settle messages."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task; if there are already many, wait for the end of the work instead."""
        if len(self._tasks) >= _MAX_TASKS:
            await work
            return
        task = supervise(work, self._running.target, self._running.fail)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for the end of all tasks."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for their ends: their messages are released."""
        await asyncio.sleep(0)  # a task that has not begun would not release its message
        for task in self._tasks:
            task.cancel()
        await self.finish()
