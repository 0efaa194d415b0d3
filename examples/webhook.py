"""
A webhook that takes CloudEvents over HTTP, in binary and structured mode, and stores them in a JetStream stream.

    pip install ce-nats fastapi uvicorn
    NATS_URL=nats://127.0.0.1:4222 uvicorn --app-dir examples webhook:app

    curl -i http://127.0.0.1:8000/events -H 'ce-specversion: 1.0' -H 'ce-id: 1' -H 'ce-source: /shop' \
         -H 'ce-type: com.example.paid' -H 'Content-Type: application/json' -d '{"total": 12.5}'

A stream with the subjects events.> must exist (`await js.add_stream(name="EVENTS", subjects=["events.>"])`, or
`nats stream add`): without it, every request is answered with 503. The status is 202 if the
stream has stored the event, 400 if the request is not a valid event, and 503 if the event could not be stored and the
sender should retry. A duplicate is not stored again.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from ce_nats import CeNatsError, DecodedEvent, DeliveryError, NatsMessage, SubjectTemplate, aio, from_nats_message

URL = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
SUBJECT = SubjectTemplate("events.{type}")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with await aio.connect(URL) as nc:
        app.state.js = nc.jetstream()
        yield


app = FastAPI(lifespan=lifespan)


def from_http(headers: list[tuple[bytes, bytes]], body: bytes) -> DecodedEvent:
    """
    Return the event of a request, with the data unchanged.

    The HTTP binding has the same headers and escapes as the NATS binding, except that Content-Type is the
    datacontenttype in binary mode.

    Raises:
        DecodeError: The request is not a valid event.
    """
    pairs = [(name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in headers]
    is_binary = any(name.startswith("ce-") for name, _ in pairs)
    if is_binary:
        pairs = [("ce-datacontenttype" if name == "content-type" else name, value) for name, value in pairs]
    return from_nats_message(NatsMessage("", body, pairs), parse_data=False)


@app.post("/events")
async def receive(request: Request) -> JSONResponse:
    try:
        event = from_http(request.headers.raw, await request.body())
        ack = await aio.jetstream.publish(request.app.state.js, event, SUBJECT)
    except DeliveryError as error:
        return JSONResponse(problem(error), status_code=503)
    except CeNatsError as error:
        return JSONResponse(problem(error), status_code=400)
    return JSONResponse({"sequence": ack.seq, "duplicate": bool(ack.duplicate)}, status_code=202)


def problem(error: CeNatsError) -> dict[str, Any]:
    return {"code": str(error.code), "message": error.message, "attribute": error.attribute, "header": error.header}
