"""
A peer with apache-iggy: ``current.py PACKAGES send|poll ADDRESS``, over HTTP if ADDRESS is a URL, else over TCP.

It sends the messages in the lines of its input, or prints polled messages, one per line, as JSON with the layout of
typed keys. ce_nats converts them from and to the objects of the client.
"""

import asyncio
import json
import os
import sys

sys.path.insert(0, sys.argv[1])

import apache_iggy as iggy

from ce_nats.iggy import Layout, as_fields, as_message, from_client_message, to_client_message

STREAM, TOPIC, PARTITION = "stream", "topic", 1


async def main(what: str, address: str) -> None:
    is_url = address.startswith("http:")
    client = iggy.IggyClient(iggy.HttpConfig(api_url=address, retries=0) if is_url else address)
    await client.connect()
    await client.login_user("iggy", "password")
    if what == "send":
        messages = [as_message(json.loads(line), layout=Layout.TYPED_KEYS) for line in sys.stdin]
        await client.send_messages(STREAM, TOPIC, PARTITION, [to_client_message(message) for message in messages])
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
        print(json.dumps(as_fields(from_client_message(message), layout=Layout.TYPED_KEYS)))


asyncio.run(main(*sys.argv[2:]))
sys.stdout.flush()
# The client's threads sometimes abort the interpreter during its exit.
os._exit(0)
