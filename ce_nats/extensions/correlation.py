"""
The Correlation extension of CloudEvents.

``correlationid`` is the same for all events of one transaction; ``causationid`` is the id of the event that directly
caused another event.
"""

from __future__ import annotations

from typing import Any

from ..codec.attributes import canonical
from ..codec.event import attributes_and_data
from ..errors import EncodeError, ErrorCode

__all__ = ["caused_by"]


def caused_by(cause: Any) -> dict[str, str]:
    """
    Return the correlation attributes for an event that another event caused.

        answer = CloudEvent({"source": "/shop", "type": "paid", **caused_by(order)})

    ``causationid`` is the cause's id; ``correlationid`` is the cause's ``correlationid``, omitted if it has none. No
    identifier is generated.

    Args:
        cause: Any event, received or created.

    Raises:
        EncodeError: ``invalid-message`` or ``missing-attribute`` if ``cause`` is not an event with an id.
    """
    attributes, _ = attributes_and_data(cause)
    identifier = attributes.get("id")
    if identifier is None or identifier == "":
        raise EncodeError(ErrorCode.MISSING_ATTRIBUTE, "the causing event must have an id", attribute="id")
    found = {"causationid": canonical(identifier, "id")}
    # "If present, MUST be a non-empty string"
    if attributes.get("correlationid") not in (None, ""):
        found["correlationid"] = canonical(attributes["correlationid"], "correlationid")
    return found
