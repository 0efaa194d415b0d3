"""The option --filter."""

import json
from pathlib import Path

import pytest

from tests.support.tables import each

EVENT = {"specversion": "1.0", "source": "/shop", "type": "order"}


@pytest.fixture
def filled(at_server, with_js, stream, subject, event):
    """Return a stream with three events and another message."""
    for number, tier in ((1, "gold"), (2, "silver"), (3, "gold")):
        given = event(number, source="/shop", tier=tier)
        assert at_server("pub", "-J", subject, given).exit_code == 0
    with_js(lambda js: js.publish(subject, b"no event"))
    return stream


def lines(result):
    assert result.exit_code in (0, 1), result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


GOLD = ("--filter", "tier = 'gold'")


def test_stored_events(at_server, filled):
    printed = lines(at_server("sub", "--stream", filled, "--all", *GOLD))
    assert [item["event"]["tier"] if "event" in item else item["error"]["code"] for item in printed] == [
        "gold",
        "gold",
        "not-a-cloudevent",
    ]


def test_find(at_server, filled):
    """Only events; --where is the same option."""
    found = lines(at_server("find", filled, "--where", "tier = 'silver'", "--json"))
    assert [item["sequence"] for item in found] == [2]
    both = lines(at_server("find", filled, *GOLD, "--since", "1h", "--json"))
    assert [item["sequence"] for item in both] == [1, 3]
    assert at_server("find", filled, "--where", "missing = 1").exit_code == 1


def test_captures(at_server, filled, tmp_path, with_js, subject):
    """A capture has the same bytes, of fewer messages; replay publishes fewer of them."""
    path = str(tmp_path / "some.jsonl")
    assert at_server("capture", path, "--stream", filled, *GOLD).exit_code == 0
    captured = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert [item["sequence"] for item in captured] == [1, 3, 4]
    whole = str(tmp_path / "all.jsonl")
    assert at_server("capture", whole, "--stream", filled).exit_code == 0
    result = at_server("replay", whole, "-J", "--new-ids", "--json", "--filter", "id LIKE '%2'")
    assert json.loads(result.stdout)["messages"] == 2
    decoded = lines(at_server("decode", whole, *GOLD))
    assert [item["tier"] for item in decoded] == ["gold", "gold"]


@each("text", ["tier = 'gold'", "tier LIKE '%'"])
def test_decode(cli, text):
    document = json.dumps({"headers": [[f"ce-{name}", value] for name, value in {**EVENT, "id": "1"}.items()]})
    result = cli("decode", document, "--filter", text)
    assert (result.exit_code, result.stdout) == (0, "")


def test_explain(cli):
    """The value and the errors of each part, as JSON and as text."""
    headers = [[f"ce-{name}", value] for name, value in {**EVENT, "id": "1", "hops": "x"}.items()]
    text = "source LIKE '/shop%' AND (hops + 1 > 2 OR EXISTS tier)"
    command = ("explain", json.dumps({"headers": headers}), "--filter", text)
    (shown,) = lines(cli(*command, "--json"))
    assert shown["filter"] == {
        "passes": False,
        "value": False,
        "errors": ["cast at position 26: 'x' is not Integer"],
        "parts": [
            {"depth": 0, "text": text.replace("(", "(", 1), "value": False, "errors": []},
            {"depth": 1, "text": "source LIKE '/shop%'", "value": True, "errors": []},
            {"depth": 2, "text": "source", "value": "/shop", "errors": []},
            {"depth": 1, "text": "hops + 1 > 2", "value": False, "errors": []},
            {"depth": 2, "text": "hops + 1", "value": 1, "errors": ["cast at position 26: 'x' is not Integer"]},
            {"depth": 3, "text": "hops", "value": "x", "errors": []},
            {"depth": 1, "text": "EXISTS tier", "value": False, "errors": []},
        ],
    }
    printed = cli(*command).stdout
    assert "filter: does not pass" in printed
    assert "hops + 1: 1; cast at position 26: 'x' is not Integer" in printed
    assert "filter" not in json.loads(cli(*command[:2], "--json").stdout)
