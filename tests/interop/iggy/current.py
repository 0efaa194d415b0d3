"""
A peer with apache-iggy: ``current.py PACKAGES send|poll ADDRESS``, over HTTP if ADDRESS is a URL, else over TCP.

It sends the messages in the lines of its input, or prints polled messages, one per line. A header is a pair of key and
value, and each of these is a pair of the client's type name and the value, in base64 for raw bytes.
"""

import asyncio
import json
import os
import sys
from base64 import b64decode, b64encode

sys.path.insert(0, sys.argv[1])

import apache_iggy as iggy

STREAM, TOPIC, PARTITION = "stream", "topic", 1


def typed(family, spelled):
    name, value = spelled
    return getattr(family, name)(b64decode(value) if name == "Raw" else value)


def spelled(typed):
    name, value = type(typed).__name__, typed.value
    return [name, b64encode(value).decode() if name == "Raw" else value]


async def main(what: str, address: str) -> None:
    is_url = address.startswith("http:")
    client = iggy.IggyClient(iggy.HttpConfig(api_url=address, retries=0) if is_url else address)
    await client.connect()
    await client.login_user("iggy", "password")
    if what == "send":
        messages = []
        for line in map(json.loads, sys.stdin):
            headers = {typed(iggy.HeaderKey, key): typed(iggy.HeaderValue, value) for key, value in line["headers"]}
            messages.append(iggy.SendMessage(b64decode(line["payload"]), headers or None, line["id"]))
        await client.send_messages(STREAM, TOPIC, PARTITION, messages)
        return
    for message in await client.poll_messages(
        STREAM,
        TOPIC,
        consumer=iggy.Consumer.Single(1),
        polling_strategy=iggy.PollingStrategy.First(),
        count=1000,
        auto_commit=False,
        partition_id=PARTITION,
    ):
        headers = [[spelled(key), spelled(value)] for key, value in (message.user_headers() or {}).items()]
        payload = b64encode(message.payload()).decode()
        print(json.dumps({"payload": payload, "headers": headers, "id": message.id(), "offset": message.offset()}))


asyncio.run(main(*sys.argv[2:]))
sys.stdout.flush()
# The client's threads sometimes abort the interpreter during its exit.
os._exit(0)
