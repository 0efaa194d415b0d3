"""Statuses of pull requests, as nats-server sends them."""

from ce_nats.aio._pull_status import PullStatus, parse_pull_status
from tests.support.tables import each


@each(
    ("code", "description", "status"),
    [
        ("100", "Idle Heartbeat", PullStatus.HEARTBEAT),
        ("404", "No Messages", PullStatus.NO_MESSAGES),
        ("408", "Request Timeout", PullStatus.NO_MESSAGES),
        ("408", "Requests Pending", PullStatus.NO_MESSAGES),
        ("409", "Batch Completed", PullStatus.COMPLETED),
        ("409", "Message Size Exceeds MaxBytes", PullStatus.TOO_LARGE),
        ("409", "Consumer Deleted", PullStatus.DELETED),
        ("409", "Consumer is push based", PullStatus.REFUSED),
        ("409", "Exceeded MaxRequestBatch of 10", PullStatus.REFUSED),
        ("400", "Bad Request - Not a JSON Object", PullStatus.REFUSED),
        ("409", "Leadership Change", PullStatus.INTERRUPTED),
        ("409", "Server Shutdown", PullStatus.INTERRUPTED),
        ("503", "", PullStatus.NO_RESPONDERS),
        ("", "", PullStatus.INTERRUPTED),
    ],
)
def test_statuses_of_the_server(code, description, status):
    assert parse_pull_status(code, description) is status
    assert parse_pull_status(code, description.upper()) is status
