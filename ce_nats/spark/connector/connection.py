"""
Options of the data source that say how to connect, and connections made with them.

Names of options are those of nats-py in camel case; Spark takes them in any case. What is secret stays out of ``repr``,
of plans, of logs and of error messages. Keys and credentials are files, which every worker must have at the same path.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...errors import DeliveryError, EncodeError, ErrorCode, preview
from ...settings import ConnectionSettings, read_settings

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["CONNECTION_OPTIONS", "Connection", "check_names", "read_boolean", "read_seconds"]

CONNECTION_OPTIONS: Final = (
    "url",
    "servers",
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
# What the options set that are nothing but passed on.
_SETS: Final = {
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
_NAMES: Final = {setting: option for option, setting in _SETS.items()}


@dataclass(frozen=True)
class Connection(ConnectionSettings):
    """
    How to connect. Travels to workers pickled, secrets included, as everything that a task needs does.

    Attributes:
        request_timeout: Seconds to wait for an answer.
        retry_timeout: Seconds to try again without any progress.
    """

    name: str | None = "ce-nats spark"
    request_timeout: float = 5.0
    retry_timeout: float = 30.0

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Connection:
        """
        Read the options of a data source.

        Args:
            options: Names in any case; those that are none of a connection's are left alone.

        Raises:
            ValueError: An option is missing, or malformed, or two contradict one another. Values are not shown where
                they may be secret.
        """
        given = {name.lower(): value for name, value in options.items()}
        url, servers = given.get("url", "").strip(), given.get("servers", "").strip()
        if url and servers:
            raise ValueError("url and servers are two names for one option")
        if not (url or servers):
            raise ValueError("option url is missing: nats://host:4222, or several such with commas between them")
        texts = {setting: given.get(option.lower()) or None for option, setting in _SETS.items()}
        settings = {
            "servers": url or servers,
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
        Connect a client of nats-py, which does not reconnect. Every server is tried twice at most.

        Args:
            client: One that was never connected.
            options: Further ones of nats-py's ``connect()``.

        Raises:
            DeliveryError: ``connection-failed`` or ``authentication-failed``; without a cause, because that may hold
                what is secret.
        """
        from ...aio.connect import establish

        try:
            await establish(client, self, allow_reconnect=False, **options)
        except EncodeError as error:  # a file is not on this machine, say
            text = f"cannot connect to {', '.join(self.servers)}: {error.message}"
        else:
            return
        raise DeliveryError(ErrorCode.CONNECTION_FAILED, text)


def check_names(options: Iterable[str], known: Iterable[str]) -> None:
    """
    Refuse options that nobody reads, because a misspelt one would change what is read without a word.

    Raises:
        ValueError: Names it, and the one that is most like it.
    """
    spelt = {name.lower(): name for name in known}
    for name in options:
        if name.lower() not in spelt:
            like = difflib.get_close_matches(name.lower(), spelt, n=1)
            hint = f"; is it {spelt[like[0]]}?" if like else f"; there are {', '.join(spelt.values())}"
            raise ValueError(f"there is no option {preview(name)}{hint}")


def read_boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """
    An option that is ``true`` or ``false``, in any case.

    Args:
        options: Names in lower case.
        name: As it is documented.
        default: Where it is not given.

    Raises:
        ValueError: It is something else.
    """
    value = options.get(name.lower(), str(default)).strip().lower()
    if value not in ("true", "false"):
        raise ValueError(f"option {name} is true or false, not {preview(value)}")
    return value == "true"


def read_seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """
    An option that is a number of seconds above 0.

    Raises:
        ValueError: It is something else.
    """
    value = options.get(name.lower(), "")
    try:
        seconds = float(value) if value else default
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"option {name} is a number of seconds, not {preview(value)}")
    return seconds
