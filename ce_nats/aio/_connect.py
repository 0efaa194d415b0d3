"""
Connect to servers, for programs, the command line and Spark.

nats-py makes the connection; this module adds guarantees. If TLS is requested, nothing is written to a server that does
not offer it, also on reconnects. A failed first connection raises an error of one line within seconds. Errors and log
lines contain no secrets.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias
from urllib.parse import ParseResult

import nats.errors
from nats.aio.client import Client, Srv

from .._numbers import is_integer
from .._settings import ConnectionSettings, Secret, invalid, resolve
from ..errors import DeliveryError, ErrorCode, preview
from ._util.opening import opening
from ._util.pausing import random_number
from .link._connecting import (
    TlsTransport,
    end_reconnecting,
    intercept_connects,
    reconnect_after,
    transport_of,
    use_transport,
)
from .link._link import PAYLOAD_VIOLATION, Link

_log: Final = logging.getLogger(__name__)

Callback: TypeAlias = Callable[[], Awaitable[None]]
ErrorCallback: TypeAlias = Callable[[Exception], Awaitable[None]]

_RECONNECT_ATTEMPTS: Final = 60
_RECONNECT_SECONDS: Final = 2.0
# Each connection waits longer by a random part of this, so that the clients of a server do not all reconnect at once.
_RECONNECT_JITTER_SECONDS: Final = 0.5
# Between two attempts at one server, before the first connection.
_RETRY_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 2.0
_CALLBACKS: Final = ("error_cb", "disconnected_cb", "reconnected_cb", "closed_cb")
_CLOSED_BY_PEER: Final = (BrokenPipeError, ConnectionResetError, nats.errors.UnexpectedEOF)
_OPTIONS: Final = frozenset(inspect.signature(Client.connect).parameters) - {"self", "servers"}
# A credentials file contains both. If the first is missing, nats-py searches for it in an endless loop.
_IN_CREDENTIALS: Final = (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")


@opening
async def connect(
    servers: str | Sequence[str] | None = None,
    *,
    context: str | None = None,
    environment: bool = False,
    user: Secret | None = None,
    password: Secret | None = None,
    token: Secret | None = None,
    user_credentials: Any = None,
    nkeys_seed: str | os.PathLike[str] | None = None,
    tls_ca_file: str | os.PathLike[str] | None = None,
    tls_cert_file: str | os.PathLike[str] | None = None,
    tls_key_file: str | os.PathLike[str] | None = None,
    tls_key_password: str | None = None,
    tls_hostname: str | None = None,
    tls_handshake_first: bool = False,
    name: str | None = None,
    inbox_prefix: str | None = None,
    connect_timeout: float = 5.0,
    max_reconnect_attempts: int | None = _RECONNECT_ATTEMPTS,
    error_cb: ErrorCallback | None = None,
    disconnected_cb: Callback | None = None,
    reconnected_cb: Callback | None = None,
    closed_cb: Callback | None = None,
    **options: Any,
) -> Client:
    """
    Connect to a server.

        async with connect("tls://nats.example.com", user_credentials="app.creds") as nc:
            await publish(nc, event, "orders.paid")

    The first connection is attempted at most twice per server. nats-py restores a connection that is lost later; loss,
    reconnect and permanent close are logged in one line each, unless there is a callback. The connection is also
    restored if the server closes it because of a message above a ``max_payload`` that was lowered in the meantime.

    If TLS is requested, by a URL (``tls://``, ``wss://``) or by an option that begins with ``tls``, nothing is sent to
    a server that does not offer it, also on reconnects.

    Args:
        servers: A URL, several URLs separated by commas, or a list: ``nats://``, ``tls://``, ``ws://`` or ``wss://``,
            a host, and a port unless it is 4222. User and password, or a token, may precede the host, with special
            characters percent-encoded; all servers get the same. By default ``nats://127.0.0.1:4222``.
        context: Name of a context of the ``nats`` command line, for settings that are not arguments.
        environment: True reads settings that are not arguments from the variables of the ``nats`` command line
            (``NATS_URL``, ``NATS_CREDS`` and so on), and then from the context: ``context``, ``NATS_CONTEXT``, or the
            selected one if no server is named. A user without a password is then a token.
        user: User name, or a function that returns it. With ``password``.
        password: Password, or a function that returns it.
        token: Token, or a function that returns it.
        user_credentials: File with a JWT and a seed, or another form that nats-py accepts.
        nkeys_seed: File with the seed of an nkey.
        tls_ca_file: Trusted certificates, PEM; by default those of the system.
        tls_cert_file: Certificate of the client, PEM.
        tls_key_file: Key of the certificate, PEM; by default in ``tls_cert_file``.
        tls_key_password: Password of the key.
        tls_hostname: Name that the certificate of the server must have; by default the host of the URL.
        tls_handshake_first: Begin with the TLS handshake, before the server's INFO.
        name: Name of the connection in the monitoring of the server.
        inbox_prefix: First tokens of the subjects of inboxes.
        connect_timeout: Seconds to wait for each server.
        max_reconnect_attempts: Attempts at each server before a lost connection is closed permanently, at intervals of
            ``reconnect_time_wait`` seconds, by default a random time from 2 to 2.5 seconds for each connection: two
            minutes in all. None or -1 sets no limit; 0 does not reconnect.
        error_cb: Called with errors that no operation raises: a denied permission, messages dropped because they are
            not read fast enough, failed reconnects. The four callbacks are asynchronous functions.
        disconnected_cb: Called when the connection is lost or closed.
        reconnected_cb: Called after a reconnect.
        closed_cb: Called when the connection is closed, by the program or permanently after a loss.
        options: Other arguments of ``nats.connect()``: ``tls``, ``ping_interval``, ``no_echo`` ...

    Returns:
        A connection of nats-py, if awaited. ``async with`` connects, with or without ``await``, and closes the
        connection.

    Raises:
        EncodeError: ``invalid-option``: an argument, a variable, a context or a file is not valid. Nothing was sent.
        DeliveryError: ``connection-failed``: no server can be reached, or none offers TLS; ``authentication-failed``.
        TypeError: An option does not exist, or a callback is not an asynchronous function.
    """
    given = {
        "servers": servers,
        "name": name,
        "user": user,
        "password": password,
        "token": token,
        "nkey_seed_file": nkeys_seed,
        "tls_ca_file": tls_ca_file,
        "tls_cert_file": tls_cert_file,
        "tls_key_file": tls_key_file,
        "tls_key_password": tls_key_password,
        "tls_hostname": tls_hostname,
        "tls_handshake_first": tls_handshake_first,
        "inbox_prefix": inbox_prefix,
        "connect_timeout": connect_timeout,
    }
    if isinstance(user_credentials, (str, os.PathLike)):
        given["credentials_file"] = user_credentials
    elif user_credentials is not None:
        options["user_credentials"] = user_credentials
    names = {"nkey_seed_file": "nkeys_seed", "credentials_file": "user_credentials"}
    if max_reconnect_attempts is not None and not is_integer(max_reconnect_attempts):
        raise invalid(f"max_reconnect_attempts must be an integer or None, got {preview(max_reconnect_attempts)}")
    variables = os.environ if environment else None
    settings = ConnectionSettings(**resolve(given, context=context, environment=variables, names=names))
    client = Client()
    await establish(
        client,
        settings,
        max_reconnect_attempts=max_reconnect_attempts,
        error_cb=error_cb,
        disconnected_cb=disconnected_cb,
        reconnected_cb=reconnected_cb,
        closed_cb=closed_cb,
        **options,
    )
    return client


async def establish(
    client: Client,
    settings: ConnectionSettings,
    *,
    allow_reconnect: bool = True,
    max_reconnect_attempts: int | None = _RECONNECT_ATTEMPTS,
    reconnect_time_wait: float | None = None,
    **options: Any,
) -> None:
    """
    Connect a client of nats-py as :func:`connect` does; the client is closed if that fails.

    Raises:
        DeliveryError: As :func:`connect` does; without a cause, which could contain secrets.
    """
    for option in options.keys() - _OPTIONS:
        raise TypeError(f"connect() has no option {option!r}")
    if reconnect_time_wait is None:
        reconnect_time_wait = _RECONNECT_SECONDS + random_number() * _RECONNECT_JITTER_SECONDS
    later = {
        "allow_reconnect": allow_reconnect and max_reconnect_attempts != 0,
        "max_reconnect_attempts": -1 if max_reconnect_attempts is None else max_reconnect_attempts,
        "reconnect_time_wait": reconnect_time_wait,
    }
    callbacks = _Callbacks(client, settings, options, is_logged=bool(later["allow_reconnect"]))
    known = {
        **_nats_options(settings, options),
        **options,
        **callbacks.functions,
        # Without reconnects nats-py does not try the next server after one that is reachable and refuses.
        "allow_reconnect": True,
        "max_reconnect_attempts": 1,  # 0 sets no limit
        "reconnect_time_wait": _RETRY_SECONDS,
    }
    link = Link.of(client)
    link.api_prefixes.add(settings.api_prefix)
    link.context_prefix = settings.api_prefix
    _demand_tls(client, wants_tls=settings.wants_tls or bool(options.get("tls")))
    reconnect_after(client, PAYLOAD_VIOLATION)

    async def run() -> None:
        await client.connect(**known)
        client.options.update(later)
        callbacks.note_connection()

    seconds = settings.connect_timeout * len(settings.servers)
    try:
        await asyncio.wait_for(run(), seconds)
    except asyncio.TimeoutError:
        reasons = [*callbacks.failures, asyncio.TimeoutError(f"no answer in {seconds:g} seconds")]
    except nats.errors.NoServersError as error:
        reasons = callbacks.failures or [error]
    except Exception as error:  # nkeys, ssl and the web socket library raise others
        reasons = [error]
    except BaseException:
        await disconnect(client)
        raise
    else:
        return
    await disconnect(client)
    code = ErrorCode.CONNECTION_FAILED
    if any(map(_is_authorization, reasons)):
        code = ErrorCode.AUTHENTICATION_FAILED
        # The server closes the connection after a refusal, which may also cause an error of a write or a read.
        reasons = [reason for reason in reasons if not isinstance(reason, _CLOSED_BY_PEER)]
    text = "; ".join(dict.fromkeys(_text(settings, reason) for reason in reasons))
    raise DeliveryError(code, f"cannot connect to {', '.join(settings.servers)}: {text}")


async def disconnect(nc: Client) -> None:
    """Close a connection in any state, within two seconds. Never raises."""
    # nats-py waits until everything is written and TLS is shut down, which may never happen.
    with suppress(Exception):
        await asyncio.wait_for(nc.close(), _CLOSE_SECONDS)
    with suppress(Exception):
        await asyncio.wait_for(end_reconnecting(nc), _CLOSE_SECONDS)


class _Callbacks:
    """
    Collect failures of the first connection; later call the user's callbacks, and log if there are none.

    Attributes:
        functions: Callbacks for nats-py, by argument name.
        failures: Errors of the first connection.
    """

    def __init__(
        self, client: Client, settings: ConnectionSettings, options: dict[str, Any], *, is_logged: bool
    ) -> None:
        self.failures: list[Exception] = []
        self.functions = {name: getattr(self, f"_{name}") for name in _CALLBACKS}
        self._client = client
        self._settings = settings
        self._is_logged = is_logged
        self._given = {name: options.pop(name, None) for name in _CALLBACKS}
        for name, callback in self._given.items():
            if callback is not None and not inspect.iscoroutinefunction(callback):
                raise TypeError(f"{name} must be an asynchronous function (async def), got {preview(callback)}")
        self._is_connected = self._is_lost = False
        self._server = self._last_error = ""

    def note_connection(self) -> None:
        """Note that the connection was established, the first time or by a reconnect."""
        url = self._client.connected_url
        self._server = url.netloc if url else ", ".join(self._settings.servers)
        Link.of(self._client)
        self._is_connected, self._is_lost, self._last_error = True, False, ""

    async def _error_cb(self, error: Exception) -> None:
        if not self._is_connected:
            self.failures.append(error)
        elif self._given["error_cb"] is not None:
            await self._given["error_cb"](error)
        else:
            previous, self._last_error = self._last_error, _text(self._settings, error)
            # nats-py also reports a loss, and each failed attempt to reconnect.
            is_loss = isinstance(error, (OSError, asyncio.TimeoutError, nats.errors.UnexpectedEOF))
            self._log(logging.DEBUG if is_loss or previous == self._last_error else logging.WARNING, self._last_error)

    async def _disconnected_cb(self) -> None:
        if not self._is_connected:
            return
        is_lost = not self._client.is_closed
        if self._given["disconnected_cb"] is not None:
            await self._given["disconnected_cb"]()
        elif is_lost:
            self._log(logging.WARNING, "connection lost; reconnecting")
        self._is_lost |= is_lost

    async def _reconnected_cb(self) -> None:
        self.note_connection()
        if self._given["reconnected_cb"] is not None:
            await self._given["reconnected_cb"]()
        else:
            self._log(logging.WARNING, "reconnected")

    async def _closed_cb(self) -> None:
        if not self._is_connected:
            return
        loss = Link.of(self._client).ending.loss
        if self._given["closed_cb"] is not None:
            await self._given["closed_cb"]()
        elif self._is_lost:
            self._log(logging.ERROR, f"reconnecting failed; connection closed: {self._last_error or loss}")
        elif loss is not None and (text := _text(self._settings, loss)) != self._last_error:
            self._log(logging.ERROR, f"connection closed: {text}")

    def _log(self, level: int, text: str) -> None:
        if self._is_logged:
            _log.log(level, "%s: %s", self._server, text)


# --- TLS -------------------------------------------------------------------------------------------------------------


class _NoTlsError(nats.errors.SecureConnWantedError):
    def __str__(self) -> str:
        return "secure connection not available: TLS is requested, and the server does not offer it"


class _Transport(TlsTransport):
    """nats-py's transport that writes nothing before TLS is established, if TLS is requested."""

    def __init__(self, *, wants_tls: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wants_tls = wants_tls
        self._has_failed = False

    def __bool__(self) -> bool:
        return True  # nats-py replaces a falsy transport, and the base class is falsy before it has connected

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self._has_failed = False
        await super().connect(uri, buffer_size, connect_timeout)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        try:
            await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        except BaseException:
            self._has_failed = True
            raise

    async def wait_closed(self) -> None:
        if not self._has_failed:  # after a failed handshake this would wait forever
            await super().wait_closed()  # type: ignore[no-untyped-call]

    def write(self, payload: bytes) -> None:
        if not self._may_write:
            self.close()  # type: ignore[no-untyped-call]
            raise _NoTlsError
        super().write(payload)  # type: ignore[no-untyped-call]

    def writelines(self, payload: list[bytes]) -> None:
        # When nats-py closes, it writes its buffer to the server that it was connecting to.
        if self._may_write:
            super().writelines(payload)  # type: ignore[no-untyped-call]

    async def drain(self) -> None:
        if self._may_write:
            await super().drain()  # type: ignore[no-untyped-call]

    @property
    def _may_write(self) -> bool:
        return not self._wants_tls or self.has_tls


def _demand_tls(client: Client, *, wants_tls: bool) -> None:
    """
    Keep a client from sending data to a server without TLS, if TLS is requested.

    nats-py uses TLS if the server requires it, whatever the URL, and otherwise continues without TLS: a server without
    TLS, or an attacker between client and server, would get all data unencrypted.
    """

    def choose_transport(server: Srv) -> None:
        # Web sockets use another transport, with its own TLS. Servers that they discover may be reached over TCP.
        if not server.uri.scheme.startswith("ws") and not isinstance(transport_of(client), _Transport):
            use_transport(client, _Transport(wants_tls=wants_tls))

    def require_tls(info: dict[str, Any], is_first: bool) -> None:
        if wants_tls and is_first and info.get("tls_available"):
            info["tls_required"] = True

    intercept_connects(client, before_connect=choose_transport, before_info=require_tls)


def _ssl_context(settings: ConnectionSettings) -> ssl.SSLContext | None:
    if not (settings.tls_ca_file or settings.tls_cert_file):
        return None  # nats-py creates one if the server requires TLS
    context = ssl.create_default_context(cafile=settings.tls_ca_file)
    if settings.tls_cert_file:
        # Without a password OpenSSL prompts for one on the terminal.
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file, settings.tls_key_password or "")
    return context


# --- nats-py's options -----------------------------------------------------------------------------------------------


def _nats_options(settings: ConnectionSettings, options: dict[str, Any]) -> dict[str, Any]:
    """
    Return arguments of nats-py's ``connect()``.

    Raises:
        EncodeError: ``invalid-option``: a file cannot be used, or a package is missing.
    """
    needs_keys = settings.nkey_seed_file or settings.credentials_file
    if needs_keys or any(options.get(name) for name in ("user_credentials", "nkeys_seed_str")):
        _check_package("nkeys", "keys and credentials need")
    if settings.servers[0].startswith("ws"):
        _check_package("aiohttp", "web sockets need")
    _check_files(settings)
    try:
        context = _ssl_context(settings)
    except OSError as error:  # ssl.SSLError is one
        raise invalid(f"certificates cannot be used: {settings.hidden(str(error))}") from None
    if context is not None and options.get("tls"):
        raise invalid("tls must not be given together with files of certificates")
    given = {
        "name": settings.name,
        "user": settings.user,
        "password": settings.password,
        "token": settings.token,
        "nkeys_seed": settings.nkey_seed_file,
        "user_credentials": settings.credentials_file,
        "tls": context,
        "tls_hostname": settings.tls_hostname,
        "inbox_prefix": settings.inbox_prefix,
    }
    return {
        "servers": list(settings.servers),
        "connect_timeout": settings.connect_timeout,
        "tls_handshake_first": settings.tls_handshake_first,
        **{name: value for name, value in given.items() if value is not None},
    }


def _check_files(settings: ConnectionSettings) -> None:
    files = (settings.tls_ca_file, settings.tls_cert_file, settings.tls_key_file, settings.nkey_seed_file)
    try:
        for path in filter(None, files):
            with open(path, "rb"):  # errors of other libraries do not name the missing file
                pass
        if settings.nkey_seed_file:
            with open(settings.nkey_seed_file, "rb") as file:
                if not _is_seed(file.read()):
                    raise invalid(f"{settings.nkey_seed_file!r} must be a file with the seed of an nkey")
        if settings.credentials_file:
            with open(settings.credentials_file, "rb") as file:
                content = file.read()
            seed = content.partition(_IN_CREDENTIALS[1])[2].splitlines()[1:2]
            if not all(marker in content for marker in _IN_CREDENTIALS) or not _is_seed(b"".join(seed)):
                raise invalid(f"{settings.credentials_file!r} must be a file of credentials with a JWT and a seed")
    except OSError as error:
        raise invalid(settings.hidden(str(error))) from None


def _is_seed(text: bytes) -> bool:
    import nkeys

    try:
        nkeys.from_seed(bytearray(text.strip())).wipe()
    except Exception:  # of nkeys or base64
        return False
    return True


def _check_package(name: str, who: str) -> None:
    if importlib.util.find_spec(name) is None:
        extra = f"'nats-py[{name}]'"
        raise invalid(f"{who} the package {name}: pip install {extra}")


def _is_authorization(error: Exception) -> bool:
    return isinstance(error, nats.errors.Error) and "authorization" in str(error).lower()


def _text(settings: ConnectionSettings, error: Exception) -> str:
    """Return the text of an error, without secrets."""
    text = str(error) if isinstance(error, (nats.errors.Error, OSError, ImportError)) else ""
    if isinstance(error, asyncio.TimeoutError):
        text = str(error) or "no answer in time"
    if _is_authorization(error):
        text = f"authentication rejected by the server ({text})"
    return settings.hidden(text) or type(error).__name__
