import json

SCRIPT = "examples/sync_script.py"


def lines(*numbers):
    return "".join(
        json.dumps({"specversion": "1.0", "id": str(number), "source": "/tests", "type": "paid"}) + "\n"
        for number in numbers
    )


async def test_valid_events_are_stored(start, js, tmp_path):
    await js.add_stream(name="ORDERS", subjects=["orders.*"])
    file = tmp_path / "events.jsonl"
    file.write_text(lines(1) + "{}\n" + lines(2))
    output = await start(SCRIPT, file, "--subject", "orders.{type}").until_exit(1)
    assert output.startswith("line 2: missing-attribute: ")
    assert output.endswith("2 stored, 1 refused\n")
    assert (await js.get_msg("ORDERS", 2)).headers["ce-id"] == "2"


async def test_event_that_is_not_stored_is_reported(start, js, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text(lines(1))
    output = await start(SCRIPT, file, "--subject", "no.stream").until_exit(3)
    assert output.startswith("1: no-responders: ")
    assert "stored" not in output


async def test_unreachable_server_is_an_error(start, server, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text(lines(1))
    server.stop()
    assert "connection-failed: " in await start(SCRIPT, file, "--subject", "a").until_exit(3)
