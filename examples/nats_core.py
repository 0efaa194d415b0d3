"""
Publish and consume events with nats-core and nats-jetstream, the successors of nats-py.

    pip install ce-nats 'nats-core[nkeys]' nats-jetstream
    NATS_URL=nats://127.0.0.1:4222 python examples/nats_core.py

Both need Python 3.13, and can be installed beside nats-py. The stream ``PARCELS`` must listen on ``parcels.>``.
"""

import asyncio
import os

from cloudevents.core.v1.event import CloudEvent
from nats.client import connect
from nats.jetstream import new as jetstream

from ce_nats import DecodeError, dedup_id, from_nats_message, to_nats_message

URL = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")


async def main() -> None:
    async with await connect(URL) as nc:
        js = jetstream(nc)
        stream = await js.get_stream("PARCELS")
        consumer = await stream.create_consumer(name="labels", durable_name="labels", ack_policy="explicit")

        event = CloudEvent({"source": "/shop", "type": "com.example.packed"}, {"kg": 2.5})
        message = to_nats_message(event, "parcels.packed", headers={"Nats-Msg-Id": dedup_id(event)})
        await js.publish(message.subject, message.data, headers=message.headers.asdict())
        await nc.publish("parcels.bad", b"not an event")
        await nc.flush()

        async for received in await consumer.fetch(max_messages=2, max_wait=10):
            try:
                event = from_nats_message(received)
            except DecodeError as error:
                print(received.subject, error.code)
                await received.term()
            else:
                print(received.subject, event.type, event.data)
                await received.ack()
        await nc.flush()


if __name__ == "__main__":
    asyncio.run(main())
