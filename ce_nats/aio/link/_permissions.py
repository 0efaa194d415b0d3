"""
Match errors for denied permissions to the operations that caused them.

A server reports a denied PUB or SUB only by an error with the subject: without this module a request waits until its
timeout, and an acknowledgement or a publish seems to have been sent.

nats-py converts error texts to lower case. The subject in its original case is read from nats-py's buffer; if that is
not possible, subjects are compared case-insensitively.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from nats.aio.client import Client

from ...errors import DeliveryError, ErrorCode
from ._client import request_inbox

# "nats: permissions violation for publish to "orders.paid"", "... for subscription to "a.*" using queue "q"".
_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription)[a-z ]* "((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r'\\(["\\])')


class Denial(NamedTuple):
    """
    Operation that the server refused because the user lacks permission.

    Attributes:
        operation: ``publish`` or ``subscription``.
        subject: Subject in the server's error, in lower case.
        original: The subject in its original case; ``""`` if that is unknown.
    """

    operation: str
    subject: str
    original: str = ""

    def is_publish(self, subject: str) -> bool:
        """Return whether publishing to a subject was denied."""
        return self.operation == "publish" and self._is_on(subject)

    def is_subscription(self, subject: str) -> bool:
        """Return whether subscribing to a subject was denied."""
        return self.operation == "subscription" and self._is_on(subject)

    def _is_on(self, subject: str) -> bool:
        return self.original == subject if self.original else self.subject == subject.lower()

    def error(self, subject: str = "") -> DeliveryError:
        """Return the error of the operation."""
        verb = "publish" if self.operation == "publish" else "subscribe"
        known = subject or self.original or self.subject
        return DeliveryError(ErrorCode.PERMISSION_DENIED, f"the server denies permission to {verb} to {known!r}")


# Returns True if it has handled the denial, so that error_cb is not called.
Listener: TypeAlias = Callable[[Denial], bool]


def find_denial(text: str, line: Callable[[], str]) -> tuple[Denial, str] | None:
    """
    Return the denial in the text of an error, and the text in its original case; None if it is of another kind.

    ``line`` returns the error as the server has sent it, or ``""``; it is only called for a denial.
    """
    found = _VIOLATION.search(text)
    if found is None:
        return None
    start, end = found.span(2)
    sent = f"nats: {line()}"
    # Some characters have a lower case of another length.
    original = sent[start:end] if sent.lower() == text and len(sent) == len(text) else ""
    denial = Denial(found[1], _unquoted(found[2]), _unquoted(original))
    return denial, f"{text[:start]}{original}{text[end:]}" if original else text


class Permissions:
    """
    Denied operations of a connection.

    Attributes:
        listeners: Functions that are called with each denial, in order.
    """

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self.listeners: dict[Listener, None] = {}
        # Denied publishes that no operation awaits, until flush() raises: the first one, and their number.
        self._first_denied: Denial | None = None
        self._number_denied = 0
        self._denied_inbox = ("", 0)

    def add(self, listener: Listener) -> None:
        """Call a listener with each denial, until it is removed."""
        self.listeners[listener] = None

    def remove(self, listener: Listener) -> None:
        """Remove a listener. Has no effect if it was not added."""
        self.listeners.pop(listener, None)

    def check_publishes(self) -> None:
        """
        Raise each denial of a publish that no operation awaits, once.

        Raises:
            DeliveryError: ``permission-denied``.
        """
        if self._first_denied is None:
            return
        error, further = self._first_denied.error(), self._number_denied - 1
        self._first_denied, self._number_denied = None, 0
        raise DeliveryError(error.code, f"{error.message} (and {further} more)") if further else error

    def check_inbox(self) -> None:
        """
        Raise if replies to requests cannot arrive, because the inbox is denied.

        Raises:
            DeliveryError: ``permission-denied``.
        """
        inbox, reconnects = self._denied_inbox
        if inbox and inbox == self.inbox.lower() and reconnects == self._nc.stats["reconnects"]:
            raise Denial("subscription", inbox).error(self.inbox)

    @property
    def inbox(self) -> str:
        """Subject that nats-py has subscribed to for replies to requests, or ``""``."""
        return request_inbox(self._nc)

    def notify(self, denial: Denial) -> bool:
        """Call listeners until one handles a denied publish; a denied subscription may concern several of them."""
        if denial.is_subscription(self.inbox):
            self._denied_inbox = (denial.subject, self._nc.stats["reconnects"])
        is_handled = False
        # The latest first: a request is part of the operation of an earlier listener.
        for listener in reversed(list(self.listeners)):
            is_handled |= listener(denial)
            if is_handled and denial.operation == "publish":
                break
        if not is_handled and denial.operation == "publish":
            self._first_denied = self._first_denied or denial
            self._number_denied += 1
        return is_handled


def _unquoted(subject: str) -> str:
    return _ESCAPE.sub(r"\1", subject)
