"""
Connection options of the data source, and connections.

Option names are those of nats-py in camel case; Spark accepts them in any case. Secrets do not appear in ``repr``,
plans, logs or error messages. Keys and credentials are files, which every worker must have at the same path.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..._settings import ConnectionSettings, read_settings
from ...errors import DeliveryError, EncodeError, ErrorCode, preview

if TYPE_CHECKING:
    from nats.aio.client import Client

CONNECTION_OPTIONS: Final = (
    "url",
    "name",
    "user",
    "password",
    "token",
    "nkeySeedFile",
    "credentialsFile",
    "tlsCaFile",
    "tlsCertFile",
    "tlsKeyFile",
    "tlsKeyPassword",
    "tlsHostname",
    "tlsHandshakeFirst",
    "inboxPrefix",
    "jetstreamDomain",
    "jetstreamPrefix",
    "connectTimeout",
    "requestTimeout",
    "retryTimeout",
)
# Options whose values are not changed, and the names of their settings.
_SETTINGS: Final = {
    "name": "name",
    "user": "user",
    "password": "password",
    "token": "token",
    "nkeySeedFile": "nkey_seed_file",
    "credentialsFile": "credentials_file",
    "tlsCaFile": "tls_ca_file",
    "tlsCertFile": "tls_cert_file",
    "tlsKeyFile": "tls_key_file",
    "tlsKeyPassword": "tls_key_password",
    "tlsHostname": "tls_hostname",
    "inboxPrefix": "inbox_prefix",
    "jetstreamDomain": "js_domain",
    "jetstreamPrefix": "js_api_prefix",
}
# Names in lower case that Spark's Kafka connector has for options of this one.
KAFKA_NAMES: Final = {
    "kafka.bootstrap.servers": "url",
    "subscribe": "stream",
    "assign": "stream",
    "subscribepattern": "streamPattern",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "startingoffsetsbytimestampstrategy": "startingTimestampStrategy",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "maxrecordsperpartition": "maxMessagesPerPartition",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "topic": "subject",
}
_NAMES: Final = {setting: option for option, setting in _SETTINGS.items()}


@dataclass(frozen=True)
class Connection(ConnectionSettings):
    """
    Settings of a connection. They are pickled and sent to workers, including secrets.

    Attributes:
        request_timeout: Seconds to wait for a response.
        retry_timeout: Seconds to retry without progress.
    """

    name: str | None = "ce-nats spark"
    request_timeout: float = 5.0
    retry_timeout: float = 30.0

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Connection:
        """
        Read the options of a data source.

        Raises:
            ValueError: An option is missing or malformed, or two options exclude each other. The text does not contain
                values that may be secret.
        """
        given = {name.lower(): value for name, value in options.items()}
        url = given.get("url", "").strip()
        if not url:
            raise ValueError("option url is missing: it must be nats://host:4222, or several URLs separated by commas")
        texts = {setting: given.get(option.lower()) or None for option, setting in _SETTINGS.items()}
        settings = {
            "servers": url,
            **texts,
            "tls_handshake_first": read_boolean(given, "tlsHandshakeFirst", default=False),
            "connect_timeout": read_seconds(given, "connectTimeout", cls.connect_timeout),
        }
        return cls(
            **read_settings(settings, _NAMES),
            request_timeout=read_seconds(given, "requestTimeout", cls.request_timeout),
            retry_timeout=read_seconds(given, "retryTimeout", cls.retry_timeout),
        )

    async def connect(self, client: Client, **options: Any) -> None:
        """
        Connect a client of nats-py, without automatic reconnects. Every server is tried at most twice.

        Raises:
            DeliveryError: ``connection-failed`` or ``authentication-failed``; without a cause, because the cause may
                contain secrets.
        """
        from ...aio._connect import establish

        try:
            await establish(client, self, allow_reconnect=False, **options)
        except EncodeError as error:  # for example, a file that this machine does not have
            text = f"cannot connect to {', '.join(self.servers)}: {error.message}"
        else:
            return
        raise DeliveryError(ErrorCode.CONNECTION_FAILED, text)


def check_names(options: Iterable[str], known: Iterable[str]) -> None:
    """
    Check that all options are known, because a misspelt option would otherwise be ignored.

    Raises:
        ValueError: An option is not known; the text has its name, and the most similar known name or, for an option of
            Spark's Kafka connector, its equivalent.
    """
    names = {name.lower(): name for name in known}
    for name in options:
        if name.lower() not in names:
            similar = difflib.get_close_matches(KAFKA_NAMES.get(name.lower(), name).lower(), names, n=1)
            hint = f"did you mean {names[similar[0]]}?" if similar else f"options are {', '.join(names.values())}"
            raise ValueError(f"unknown option {preview(name)}; {hint}")


def read_boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """
    Return the value of an option that must be ``true`` or ``false``, in any case.

    Raises:
        ValueError: The value is not valid.
    """
    value = options.get(name.lower(), str(default)).strip().lower()
    if value not in ("true", "false"):
        raise ValueError(f"option {name} must be true or false, got {preview(value)}")
    return value == "true"


def read_seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """
    Return the value of an option that must be a number of seconds above 0.

    Raises:
        ValueError: The value is not valid.
    """
    value = options.get(name.lower(), "")
    try:
        seconds = float(value) if value else default
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"option {name} must be a number of seconds above 0, got {preview(value)}")
    return seconds
