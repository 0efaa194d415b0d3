import json

import pytest

REQUIRED = [["ce-specversion", "1.0"], ["ce-id", "1"], ["ce-source", "/s"], ["ce-type", "t"]]


def explain(cli, headers, data=""):
    result = cli("explain", "--json", json.dumps({"headers": headers, "data": data}))
    return result.exit_code, json.loads(result.stdout)


def test_every_header_as_sent_and_as_read(cli):
    status, found = explain(cli, [*REQUIRED, ["CE-Subject", "a%20%E2%82%AC"], ["Tag", "%20"]], "x")
    assert (status, found["mode"], found["error"], found["data_bytes"]) == (0, "binary", None, 1)
    subject, tag = found["headers"][-2:]
    assert subject == {
        "name": "CE-Subject",
        "raw": "a%20%E2%82%AC",
        "attribute": "subject",
        "value": "a €",
        "error": None,
    }
    assert tag == {"name": "Tag", "raw": "%20", "attribute": None, "value": None, "error": None}
    assert found["event"]["subject"] == "a €"


def test_every_fault_has_its_place(cli):
    """The event is refused for the first one; the headers show all of them."""
    status, found = explain(cli, [*REQUIRED, ["ce-time", "now"], ["ce-subject", "%"]])
    assert (status, found["error"]["code"], found["error"]["header"]) == (1, "invalid-timestamp", "ce-time")
    assert found["error"]["requirement"] == "CE-TS-13"
    codes = [header["error"] and header["error"]["code"] for header in found["headers"]]
    assert codes == [None] * 4 + ["invalid-timestamp", "invalid-percent-escape"]


@pytest.mark.parametrize(
    ("headers", "data", "mode", "reason", "code"),
    [
        ([["Content-Type", "application/cloudevents+json"]], "{}", "structured", "Content-Type", "missing-attribute"),
        ([], "{}", "structured", "no header", "not-a-cloudevent"),
        ([["Content-Type", "application/cloudevents-batch+json"]], "[]", None, "", "batch-not-supported"),
    ],
)
def test_mode_and_reason(cli, headers, data, mode, reason, code):
    status, found = explain(cli, headers, data)
    assert (status, found["mode"], found["error"]["code"]) == (1, mode, code)
    assert (found["reason"] or "").startswith(reason)


def test_for_people(cli):
    """Nothing in a message gets at the terminal."""
    headers = [*REQUIRED, ["ce-subject", "%C0%A0"], ["Tag", "\x1b[31m[red]\udcff"]]
    result = cli("explain", stdin=json.dumps({"headers": headers}))
    assert result.exit_code == 1
    assert result.stdout.startswith("binary: there are headers that start with 'ce-'\n")
    assert "\\x1b[31m[red]\\udcff" in result.stdout
    assert "\x1b" not in result.stdout
    assert "at header ce-subject, attribute subject, requirement NB-3.1.3.2-22" in result.stdout
