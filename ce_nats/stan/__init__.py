"""
CloudEvents over NATS Streaming (STAN), for systems that still use it.

    async with await stan.connect(nc, "test-cluster", "billing") as connection:
        await connection.publish(event, "orders")
        async with await connection.subscribe("orders", start=stan.Start.first(), durable="billing") as subscription:
            async for item in subscription:
                async with item as event:
                    ...

NATS Streaming drops headers, so events are sent in structured mode, as JSON without a content type. The streaming
server is a client of NATS, so the connection is one of nats-py. Delivery is at least once, and duplicates are not
detected.

Needs the extra ``stan`` (``pip install 'ce-nats[stan]'``).
"""

from ..errors import StanError
from ._connection import Connection, connect
from ._subscription import Delivery, Start, Subscription

__all__ = ["Connection", "Delivery", "StanError", "Start", "Subscription", "connect"]
