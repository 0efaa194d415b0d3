"""
Handle the events of a stream by their type, with data as models, until SIGTERM or Ctrl-C.

    pip install ce-nats pydantic
    NATS_URL=nats://127.0.0.1:4222 python examples/order_router.py

Events of other types, and orders whose data is not valid, are stored under dead.web-orders. The streams WEB_ORDERS
(web-orders.>) and DEAD_WEB_ORDERS (dead.web-orders) must exist.
"""

import asyncio
import os
import signal

from nats.js.api import ConsumerConfig
from pydantic import BaseModel, PositiveInt

from ce_nats import DecodedEvent, aio
from ce_nats.routing import Router

URL = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")

router = Router(unknown="reject")


class Order(BaseModel):
    sku: str
    quantity: PositiveInt


@router.on("com.example.order.placed")
async def reserve(order: Order, event: DecodedEvent) -> None:
    print(f"{event.id}: reserve {order.quantity} of {order.sku}")


@router.on("com.example.order.*")
async def log(event: DecodedEvent, delivery: aio.Delivery) -> None:
    print(f"{event.id}: {event.type} on {delivery.subject}")


async def main() -> None:
    async with aio.connect(URL) as nc:
        config = ConsumerConfig(ack_wait=30)
        consumer = aio.PullConsumer(nc.jetstream(), "WEB_ORDERS", "stock", dead_letter="dead.web-orders", create=config)
        async with consumer:
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, consumer.stop)
            print("ready")
            await consumer.run(router, concurrency=4)


if __name__ == "__main__":
    asyncio.run(main())
