"""Every sample over every route, between ce_nats and programs on other SDKs, through a real server."""

from collections.abc import Callable, Sequence

import pytest

from ce_nats.testing import NatsServer

from . import table
from .exchange import exchange
from .routes import ROUTES, Route


@pytest.mark.parametrize("route", ROUTES, ids=str)
async def test_received_events(
    route: Route, program: Callable[[str], Sequence[str]], server: NatsServer, request: pytest.FixtureRequest
) -> None:
    """
    Differences are the known faults of the route, and the table of docs/interop.md has this result.

    ``python -m tests.interop.table`` writes the table.
    """
    if route.protocol == "stan":
        request.getfixturevalue("streaming")
    found = await exchange(route, program(route.program), server.url)
    assert found == {name: fault.seen for name, fault in route.faults.items()}
    assert table.row(route, found) in table.written()


def test_table_has_no_other_rows() -> None:
    rows = [line for line in table.written() if line not in table.head() + table.notes()]
    assert len(rows) == len(ROUTES)
    assert set(table.head() + table.notes()) <= set(table.written())
