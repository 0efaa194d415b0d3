"""A server that answers published messages from a script: for answers that real servers rarely give."""

import asyncio
import json
from contextlib import asynccontextmanager

import nats

from ce_nats.wire.nats import FrameReader, encode_hmsg

from .listening import serving

SECONDS = 20
ACK = {"stream": "S", "seq": 7}
IN_PROCESS = {"error": {"code": 409, "err_code": 10158, "description": "duplicate message id is in process"}}
TOO_MANY = {"error": {"code": 429, "err_code": 10167, "description": "too many requests"}}
REFUSED = {"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence: 3"}}
NO_ANSWER = object()
NO_RESPONDERS = object()


class ScriptedServer:
    """Answers each published message with the next line of a script; its JetStream API has no streams."""

    def __init__(self, script):
        self.script = list(script)
        self.received = []
        self.changed = asyncio.Event()

    async def serve(self, reader, writer):
        writer.write(b'INFO {"headers":true,"max_payload":1048576,"proto":1}\r\n')
        self.writer, self.sids = writer, {}
        frames = FrameReader()
        while data := await reader.read(65536):
            for frame in frames.feed(data):
                if frame.op == "SUB":
                    self.sids[frame.subject.rstrip("*>")] = frame.sid
                elif frame.op == "PING":
                    writer.write(b"PONG\r\n")
                elif frame.op in {"PUB", "HPUB"}:
                    self.answer(frame)

    def answer(self, frame):
        if frame.subject.startswith("$JS.API."):
            self.send(frame, {"total": 0, "offset": 0, "limit": 1024, "streams": None})
            return
        self.received.append(frame)
        self.changed.set()
        line = self.script.pop(0) if self.script else NO_ANSWER
        if line is not NO_ANSWER:
            self.send(frame, line)

    def send(self, frame, line):
        if line is NO_RESPONDERS:
            block = b"NATS/1.0 503\r\n\r\n"
            head = f"HMSG {frame.reply} {self.sid(frame.reply)} {len(block)} {len(block)}\r\n"
            self.writer.write(head.encode() + block + b"\r\n")
        else:
            self.writer.write(encode_hmsg(frame.reply, self.sid(frame.reply), json.dumps(line).encode(), None))

    def reply(self, subject, payload):
        """Answer with bytes, and without headers, as a stream does."""
        self.writer.write(f"MSG {subject} {self.sid(subject)} {len(payload)}\r\n".encode() + payload + b"\r\n")

    def sid(self, subject):
        return next(sid for inbox, sid in self.sids.items() if subject.startswith(inbox))

    async def receives(self, number):
        while len(self.received) < number:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), SECONDS)


@asynccontextmanager
async def scripted(*script):
    """Yield a scripted server and a nats-py connection to it."""
    server = ScriptedServer(script)
    async with (
        serving(server.serve) as port,
        await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False) as nc,
    ):
        yield server, nc
