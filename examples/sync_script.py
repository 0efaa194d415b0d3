"""
A script without asyncio: publish the events of a file of JSON lines to a stream.

    pip install 'ce-nats[sync]'
    NATS_URL=nats://127.0.0.1:4222 python examples/sync_script.py events.jsonl --subject 'orders.{type}'

Each line is an event in JSON. Invalid events are printed with their line number, and the exit status is then 1; all
others are stored. A stream must listen on the subjects.
"""

import argparse
import os
import sys
from pathlib import Path

from ce_nats import CeNatsError, NatsMessage, PublishError, SubjectTemplate, from_nats_message, sync

URL = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("file", type=Path)
    parser.add_argument("--subject", required=True, help="a template with {attributes} of the event")
    arguments = parser.parse_args()

    template, refused = SubjectTemplate(arguments.subject), 0
    try:
        with sync.connect(URL) as nc, nc.publisher() as publisher, arguments.file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    event = from_nats_message(NatsMessage(data=line), mode="structured")
                    publisher.publish(event, template)
                except ValueError as error:  # EncodeError or DecodeError: this event is not valid
                    print(f"line {number}: {error}", file=sys.stderr)
                    refused += 1
            publisher.flush()
            print(publisher.acknowledged, "stored,", refused, "refused")
    except PublishError as error:
        for failure in error.failures:
            print(f"{failure.event.get_attributes()['id']}: {failure.error}", file=sys.stderr)
        return 3
    except CeNatsError as error:
        print(error, file=sys.stderr)
        return 3
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
