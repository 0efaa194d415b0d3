"""A slow, interrupted or bursty network: a TCP proxy of a server."""

import asyncio
import re
import threading
from contextlib import suppress

from .listening import serving


class Relay:
    """
    TCP proxy of the server at a URL, as a context manager. It runs in a thread.

    Attributes:
        url: URL of the proxy.
        delay: Seconds of delay for bytes from clients; may be changed at any time.
        lost: Function that returns the bytes that are left of those in one direction; None loses nothing. It is called
            with bytes that a client or the server has sent at once.
    """

    def __init__(self, url):
        host, _, port = url.removeprefix("nats://").rpartition(":")
        self._target = host, int(port)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._started = threading.Event()
        self._held = None  # bytes to send after an interruption, as (writer, bytes)
        self._burst = None
        self.url = ""
        self.delay = 0.0
        self.lost = None

    def __enter__(self):
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *error):
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    @property
    def is_interrupted(self):
        """Whether bytes are held back."""
        return self._held is not None

    def interrupt(self):
        """Hold back all bytes in both directions, with all connections open."""
        self._held = []

    def resume(self):
        """Send the bytes that were held back, and forward again."""
        self._loop.call_soon_threadsafe(self._release)

    def burst(self, request, last):
        """
        Hold back answers after a request, and send them together.

        Args:
            request: Bytes of a request that start it.
            last: Bytes of the last answer to hold back.
        """
        self._burst = _Burst(request, last)

    async def _run(self):
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        async with serving(self._serve) as port:
            self.url = f"nats://127.0.0.1:{port}"
            self._started.set()
            await self._stopped.wait()

    async def _serve(self, reader, writer):
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        try:
            await asyncio.gather(self._forward(reader, upstream_writer), self._return(upstream_reader, writer))
        finally:
            upstream_writer.close()
            with suppress(OSError):
                await upstream_writer.wait_closed()

    async def _forward(self, reader, writer):
        due = 0.0
        with suppress(OSError):
            while chunk := await reader.read(65536):
                if self._burst is not None:
                    self._burst.note_request(chunk)
                due = max(self._loop.time() + self.delay, due + 1e-6)  # in order, although the delay may decrease
                self._loop.call_at(due, self._send, writer, chunk)
        writer.close()

    async def _return(self, reader, writer):
        with suppress(OSError):
            while chunk := await reader.read(65536):
                if self._burst is not None:
                    chunk = self._burst.collect(chunk)
                self._send(writer, chunk)
        writer.close()

    def _send(self, writer, chunk):
        if self.lost is not None:
            chunk = self.lost(chunk)
        if self._held is not None:
            self._held.append((writer, chunk))
        elif not writer.is_closing():
            writer.write(chunk)

    def _release(self):
        held, self._held = self._held, None
        for writer, chunk in held or ():
            self._send(writer, chunk)


def without(chunk, pattern):
    """Remove PUB and HMSG frames whose control lines match a pattern, which ends with the last size."""
    while found := re.search(pattern, chunk):
        size = int(found[0].split()[-1])
        chunk = chunk[: found.start()] + chunk[found.end() + size + 4 :]
    return chunk


class _Burst:
    def __init__(self, request, last):
        self._request, self._last = request, last
        self._is_collecting = False
        self._collected = b""

    def note_request(self, chunk):
        self._is_collecting = self._is_collecting or self._request in chunk

    def collect(self, chunk):
        """Return the bytes to send now."""
        if not self._is_collecting:
            return chunk
        self._collected += chunk
        if self._last not in self._collected:
            return b""
        self._is_collecting, self._request = False, b"\0"  # once
        collected, self._collected = self._collected, b""
        return collected


class LossyRelay(Relay):
    """Relay that loses or delays single messages: it parses NATS protocol, without TLS."""

    def __init__(self, url):
        super().__init__(url)
        self._rules = []

    def drop_answers(self, subject, count=1, *, after=0):
        """
        Drop the answers to the next messages that clients publish to a subject.

        Args:
            subject: First characters of the subject.
            count: Number of messages.
            after: Number of messages before them.

        Returns:
            The rule; its ``seen`` is the number of answers that were dropped.
        """
        return self._add(_Rule(subject.encode(), count, after, holds=False))

    def hold(self, subject, count=1, *, after=0):
        """
        Hold back the next messages that clients publish to a subject, until :meth:`release`.

        Args:
            subject: First characters of the subject.
            count: Number of messages.
            after: Number of messages before them.

        Returns:
            The rule; its ``seen`` is the number of messages that are held back.
        """
        return self._add(_Rule(subject.encode(), count, after, holds=True))

    def release(self, rule):
        """Send the messages that were held back."""
        self._loop.call_soon_threadsafe(self._flush, rule)

    def _add(self, rule):
        self._rules.append(rule)
        return rule

    def _flush(self, rule):
        held, rule.held = rule.held, []
        for writer, frame in held:
            writer.write(frame)

    async def _forward(self, reader, writer):
        with suppress(OSError):
            async for line, frame in _frames(reader):
                if not any(rule.request(line, frame, writer) for rule in self._rules):
                    writer.write(frame)
        writer.close()

    async def _return(self, reader, writer):
        with suppress(OSError):
            async for line, frame in _frames(reader):
                if not any(rule.answer(line) for rule in self._rules):
                    writer.write(frame)
        writer.close()


class _Rule:
    def __init__(self, subject, count, after, *, holds):
        self.seen = 0
        self.held = []
        self._subject, self._holds = subject, holds
        self._left, self._after = count, after
        self._replies = set()

    def request(self, line, frame, writer):
        """Note a message of a client; return whether it is held back."""
        words = line.split()
        if words[0] not in (b"PUB", b"HPUB") or not words[1].startswith(self._subject) or not self._left:
            return False
        if self._after:
            self._after -= 1
            return False
        self._left -= 1
        if self._holds:
            self.held.append((writer, frame))
            self.seen += 1
            return True
        self._replies.add(words[2])  # a request
        return False

    def answer(self, line):
        """Return whether a message of the server is dropped."""
        words = line.split()
        if words[0] not in (b"MSG", b"HMSG") or words[1] not in self._replies:
            return False
        self._replies.remove(words[1])
        self.seen += 1
        return True


async def _frames(reader):
    """Yield the control line of each operation, and all its bytes."""
    with suppress(asyncio.IncompleteReadError):
        while True:
            line = await reader.readuntil(b"\r\n")
            words = line.split()
            has_payload = words and words[0] in (b"PUB", b"HPUB", b"MSG", b"HMSG")
            payload = await reader.readexactly(int(words[-1]) + 2) if has_payload else b""
            yield line, line + payload
