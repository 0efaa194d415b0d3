"""Reading documents without blocking the event loop."""

import asyncio
import threading

from ce_nats.cli._files import async_documents


async def test_many_documents_wake_the_loop_once(tmp_path, monkeypatch):
    """Each wake-up writes to the pipe that also carries signals. If the pipe is full, a signal is lost."""
    (tmp_path / "events").write_text("{}\n" * 500)
    loop = asyncio.get_running_loop()
    wake_ups = []
    call_soon = loop.call_soon_threadsafe

    def wake_up(*arguments):
        wake_ups.append(arguments)
        return call_soon(*arguments)

    monkeypatch.setattr(loop, "call_soon_threadsafe", wake_up)
    others = threading.enumerate()
    documents = async_documents(str(tmp_path / "events"))
    first = asyncio.ensure_future(anext(documents))
    await asyncio.sleep(0)  # starts the reading thread
    for thread in threading.enumerate():
        if thread not in others:
            thread.join()  # blocks the loop
    found = [await first] + [document async for document in documents]
    assert found == [(f"line {number}", b"{}") for number in range(1, 501)]
    assert len(wake_ups) == 1
