"""
A peer with iggy-py, a client of Iggy 0.4: ``old.py PACKAGES send|poll ADDRESS``.

It sends the lines of its input as messages, or prints polled messages, one per line, or its error.
"""

import asyncio
import json
import os
import sys
from base64 import b64encode

sys.path.insert(0, sys.argv[1])

import iggy_py

STREAM, TOPIC, PARTITION = "stream", "topic", 1


async def main(what: str, address: str) -> None:
    client = iggy_py.IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "password")
    if what == "send":
        messages = [iggy_py.SendMessage(line.rstrip("\n")) for line in sys.stdin]
        await client.send_messages(STREAM, TOPIC, PARTITION, messages)
        return
    first = iggy_py.PollingStrategy.First()
    for message in await client.poll_messages(STREAM, TOPIC, PARTITION, first, 1000, False):
        numbers = {"id": message.id(), "offset": message.offset(), "timestamp": message.timestamp()}
        print(json.dumps({"payload": b64encode(message.payload()).decode(), **numbers}))


try:
    asyncio.run(main(*sys.argv[2:]))
except RuntimeError as error:
    print(json.dumps({"error": str(error)}))
sys.stdout.flush()
# The client's threads sometimes abort the interpreter during its exit.
os._exit(0)
