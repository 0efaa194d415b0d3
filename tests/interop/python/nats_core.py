"""
Exchange messages between ce_nats and the classes of nats-core and nats-jetstream, through the server of ``NATS_URL``.

Prints a JSON object with a result for each exchange. The stream ``REPEATS`` listens on ``repeats.>``.
"""

import asyncio
import json
import os

from cloudevents.core.v1.event import CloudEvent
from nats import client, jetstream
from nats.client.message import Headers as TheirHeaders

from ce_nats import DecodeError, Headers, from_nats_message, to_nats_message

EVENT = CloudEvent({"id": "1", "source": "/tests", "type": "päid"}, {"total": 17})


def outcome(message):
    """Return the attributes and data of a received event, or the code of its error."""
    try:
        event = from_nats_message(message)
    except DecodeError as error:
        return str(error.code)
    return [event.id, event.type, event.data]


async def main():
    results = {}
    async with await client.connect(os.environ["NATS_URL"]) as nc:
        js = jetstream.new(nc)
        stream = await js.get_stream("REPEATS")
        consumer = await stream.create_consumer(name="all", durable_name="all", ack_policy="explicit")
        core = await nc.subscribe("repeats.>")

        binary = to_nats_message(
            EVENT, "repeats.a", headers=[("X-Step", "one"), ("X-Step", "two"), ("x-step", "three")]
        )
        structured = to_nats_message(EVENT, "repeats.a", mode="structured")
        duplicated = [("ce-id", "2"), *binary.headers.items()]
        headers = {
            "asdict": binary.headers.asdict(),
            "their class": TheirHeaders(binary.headers.asdict()),
            "structured": structured.headers.asdict(),
            "duplicated": Headers(duplicated).asdict(),
        }
        for name, given in headers.items():
            data = structured.data if name == "structured" else binary.data
            if name == "their class":
                await nc.publish("repeats.a", data, headers=given)
            else:
                await js.publish("repeats.a", data, headers=given)
            fetched = await anext(aiter(await consumer.fetch(max_messages=1, max_wait=10)))
            stored = await stream.get_message(fetched.metadata.sequence.stream)
            received = [await core.next(timeout=10), fetched, stored]
            values = [Headers(message.headers).values("X-Step", ignore_case=True) for message in received]
            results[name] = {"outcomes": list(map(outcome, received)), "steps": values}
    print(json.dumps(results))


asyncio.run(main())
