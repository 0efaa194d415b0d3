"""A server whose users lack permissions, and connections to it."""

import json
from contextlib import asynccontextmanager

import nats
import pytest

from ce_nats.testing import NatsServer

PERMISSIONS = {
    "unrestricted": {},
    "reader": {
        "publish": {"allow": ["Allowed.>", "$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.>"]},
        "subscribe": {"deny": ["Secret.>"]},
    },
    "deaf": {"subscribe": {"deny": ["_INBOX.>"]}},
    "publisher": {"publish": {"deny": ["Work.denied.>"]}},
    "no create": {"publish": {"deny": ["$JS.API.CONSUMER.CREATE.>"]}},
    "no info": {"publish": {"deny": ["$JS.API.CONSUMER.INFO.>"]}},
    "no next": {"publish": {"deny": ["$JS.API.CONSUMER.MSG.NEXT.>"]}},
    "no acks": {"publish": {"deny": ["$JS.ACK.>"]}},
    "no letters": {"publish": {"deny": ["Dead.>"]}},
}
USERS = [{"user": name, "password": "p", "permissions": given} for name, given in PERMISSIONS.items()]


@pytest.fixture(scope="module")
def restricted_server():
    with NatsServer(jetstream=True, config=f"authorization: {json.dumps({'users': USERS})}") as server:
        yield server


@pytest.fixture
def connected(restricted_server):
    """A connection of a user, and the errors that were passed to its ``error_cb``."""

    @asynccontextmanager
    async def connect(user, **options):
        reported = []

        async def note(error):
            reported.append(str(error))

        nc = await nats.connect(restricted_server.url, user=user, password="p", error_cb=note, **options)
        try:
            yield nc, reported
        finally:
            await nc.close()

    return connect
