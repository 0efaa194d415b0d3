"""Reading documents without blocking the event loop."""

import asyncio
import os
import threading

import pytest

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


@pytest.mark.parametrize("lines", [1, 5_000], ids=["waits for input", "waits for a reader"])
def test_thread_ends_after_the_loop(tmp_path, lines):
    """The end of a command neither leaves the thread waiting nor is an exception in it, which pytest would report."""
    path = tmp_path / "events"
    if lines == 1:
        os.mkfifo(path)
        writer = os.open(path, os.O_RDWR)
        os.write(writer, b"{}\n")
    else:
        path.write_bytes(b"{}\n" * lines)
    others = threading.enumerate()

    async def read_one():
        documents = async_documents(str(path))
        await anext(documents)
        return {thread for thread in threading.enumerate() if thread not in others}

    (thread,) = asyncio.run(read_one())
    if lines == 1:
        os.write(writer, b"{}\n")
        os.close(writer)
    thread.join(60)
    assert not thread.is_alive()
