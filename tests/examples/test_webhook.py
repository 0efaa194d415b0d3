import httpx
import pytest

from ce_nats import from_nats_message

EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/shop", "ce-type": "paid", "Content-Type": "text/plain"}


@pytest.fixture
async def client(start, js):
    await js.add_stream(name="EVENTS", subjects=["events.*"])
    program = start("-m", "uvicorn", "--app-dir", "examples", "webhook:app", "--port", 0)
    port = (await program.until_printed("Uvicorn running on http://127.0.0.1:")).split()[0]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        yield client


async def test_events_are_stored_unchanged(client, js):
    answer = await client.post("/events", headers={**EVENT, "ce-subject": "5%20%E2%82%AC"}, content=b"text")
    assert (answer.status_code, answer.json()) == (202, {"sequence": 1, "duplicate": False})
    again = await client.post("/events", headers={**EVENT, "ce-subject": "5%20%E2%82%AC"}, content=b"text")
    assert (again.status_code, again.json()["duplicate"]) == (202, True)
    structured = '{"specversion":"1.0","id":"2","source":"/shop","type":"paid","data":{"total":5}}'
    answer = await client.post(
        "/events", headers={"Content-Type": "application/cloudevents+json"}, content=structured.encode()
    )
    assert answer.status_code == 202

    first, second = [from_nats_message(await js.get_msg("EVENTS", seq)) for seq in (1, 2)]
    assert first.get_attributes() == {
        **{name[3:]: value for name, value in EVENT.items() if name.startswith("ce-")},
        "subject": "5 €",
        "datacontenttype": "text/plain",
    }
    assert first.get_data() == "text"
    assert second.get_data() == {"total": 5}


INVALID = [
    ({**EVENT, "ce-id": ""}, b"", "empty-attribute"),
    ({**EVENT, "ce-subject": "%C0%A0"}, b"", "invalid-utf8"),
    ({**EVENT, "ce-subject": b"\xff"}, b"", "invalid-utf8"),
    ({"Content-Type": "application/cloudevents-batch+json"}, b"[]", "batch-not-supported"),
    ({"Content-Type": "application/json"}, b"{}", "not-a-cloudevent"),
    ({"ce-id": "1"}, b"", "missing-attribute"),
]


async def test_invalid_events_are_rejected(client):
    answers = [await client.post("/events", headers=headers, content=content) for headers, content, _ in INVALID]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(400, code) for *_, code in INVALID]


async def test_unavailable_stream_is_a_temporary_error(client, js):
    await js.delete_stream("EVENTS")
    answer = await client.post("/events", headers=EVENT, content=b"text")
    assert (answer.status_code, answer.json()["code"]) == (503, "no-responders")
