import json

SCRIPT = "examples/sync_script.py"


def lines(*numbers):
    return "".join(
        json.dumps({"specversion": "1.0", "id": str(number), "source": "/tests", "type": "paid"}) + "\n"
        for number in numbers
    )


async def test_what_is_valid_is_stored(start, js, tmp_path):
    await js.add_stream(name="ORDERS", subjects=["orders.*"])
    file = tmp_path / "events.jsonl"
    file.write_text(lines(1) + "{}\n" + lines(2))
    output = await start(SCRIPT, file, "--subject", "orders.{type}").ends(1)
    assert output.startswith("line 2: missing-attribute: ")
    assert output.endswith("2 stored, 1 refused\n")
    assert (await js.get_msg("ORDERS", 2)).headers["ce-id"] == "2"


async def test_what_is_not_stored_is_told(start, js, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text(lines(1))
    output = await start(SCRIPT, file, "--subject", "nobody.listens").ends(3)
    assert output.startswith("1: no-responders: ")
    assert "stored" not in output


async def test_no_server(start, server, tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text(lines(1))
    server.stop()
    assert "connection-failed: " in await start(SCRIPT, file, "--subject", "a").ends(3)
