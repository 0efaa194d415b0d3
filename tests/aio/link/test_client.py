"""What is known of a connection and its server."""

import pytest
from nats.aio.client import Client

from ce_nats.aio.link._client import is_server_from


@pytest.mark.parametrize(
    ("number", "expected"),
    [("2.14.0", True), ("2.14.0-beta.1", True), ("2.13.9", False), ("2.9.25", False), ("3.0", True), ("", False)],
)
def test_version_of_the_connected_server(number, expected):
    client = Client()
    client._server_info = {"version": number}
    assert is_server_from(client, (2, 14)) is expected


def test_version_is_unknown_before_a_connection():
    assert not is_server_from(Client(), (2, 14))
