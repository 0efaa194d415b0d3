"""
Make connections, for programs, the command line and Spark alike.

nats-py connects; this module adds what it does not guarantee. With TLS requested, nothing is written to a server that
does not offer it, on reconnects neither. The first connection fails within seconds, with an error of one line, and
errors and logs contain no secrets.
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

from .._settings import ConnectionSettings, Secret, invalid, resolve
from ..errors import DeliveryError, ErrorCode, preview
from ._foreign_subjects import remember_api_prefix
from ._natspy import TlsTransport, intercept_connects, reconnect_after, transport_of, use_transport
from ._permissions import PAYLOAD_VIOLATION, ConnectionWatch
from ._util.opening import opening
from ._util.pausing import random_number

_log: Final = logging.getLogger(__name__)

Callback: TypeAlias = Callable[[], Awaitable[None]]
ErrorCallback: TypeAlias = Callable[[Exception], Awaitable[None]]

_RECONNECT_ATTEMPTS: Final = 60
_RECONNECT_SECONDS: Final = 2.0
# Each connection waits longer by a random part of this, so that those of one server do not all come back at one moment.
_RECONNECT_JITTER_SECONDS: Final = 0.5
# Between two attempts at one server, while there was no connection yet.
_RETRY_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 2.0
_CALLBACKS: Final = ("error_cb", "disconnected_cb", "reconnected_cb", "closed_cb")
_CLOSED_BY_PEER: Final = (BrokenPipeError, ConnectionResetError, nats.errors.UnexpectedEOF)
_OPTIONS: Final = frozenset(inspect.signature(Client.connect).parameters) - {"self", "servers"}
# Both stand in a file of credentials; nats-py looks for the first without end where it is missing.
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

    The first connection is attempted twice per server at most. A connection that is lost later is restored by nats-py;
    loss, reconnect and final close are logged in a line each, unless a callback is given. It is also restored if the
    server closes it because of a message above a ``max_payload`` that was lowered meanwhile.

    With TLS requested, by a URL (``tls://``, ``wss://``) or any option that begins with ``tls``, nothing is sent to a
    server that does not offer it, on reconnects neither.

    Args:
        servers: A URL, several with commas between them, or a list: ``nats://``, ``tls://``, ``ws://`` or ``wss://``,
            a host, and a port unless that is 4222. A user and password, or a token, may stand in front of the host,
            with special characters percent-encoded; all servers get the same. By default ``nats://127.0.0.1:4222``.
        context: Name of a context of the ``nats`` command line, for what is not given here.
        environment: True reads the variables of the ``nats`` command line (``NATS_URL``, ``NATS_CREDS`` and so on)
            for what is not given here, and then at the context: ``context``, ``NATS_CONTEXT``, or the selected one
            where no server is named. A user without a password is a token then.
        user: User name, or a function that gives it. With ``password``.
        password: Password, or a function that gives it.
        token: Token, or a function that gives it.
        user_credentials: File with a JWT and a seed; or another form that nats-py accepts.
        nkeys_seed: File with the seed of an nkey.
        tls_ca_file: Certificates to trust, PEM; by default the system's.
        tls_cert_file: Certificate of the client, PEM.
        tls_key_file: Its key, PEM; by default in ``tls_cert_file``.
        tls_key_password: Password of that key.
        tls_hostname: Name that the server's certificate must have; by default that of the URL.
        tls_handshake_first: Begin with TLS, before the server's INFO.
        name: Name of the connection in the server's monitoring.
        inbox_prefix: First tokens of the subjects that answers come to.
        connect_timeout: Seconds to wait for each server.
        max_reconnect_attempts: Attempts at each server before a connection that was lost is closed for good, 2 to
            2.5 seconds after one another (each connection has an interval of its own) unless ``reconnect_time_wait``
            says otherwise: two minutes, by default. None, or -1, never gives up; 0 does not try.
        error_cb: Called with errors that no operation raises: a denied permission, messages dropped because they are
            not read fast enough, failed reconnects. The four callbacks are asynchronous functions.
        disconnected_cb: Called when the connection is lost or closed.
        reconnected_cb: Called when it is back.
        closed_cb: Called when it is closed, by the program or for good after a loss.
        options: Further ones of ``nats.connect()``, by their names there: ``tls``, ``ping_interval``, ``no_echo`` ...

    Returns:
        A connection of nats-py, if awaited. ``async with`` makes the connection, without ``await`` too, and closes it.

    Raises:
        EncodeError: ``invalid-option``: an argument, a variable, a context or a file is not valid. Nothing was sent.
        DeliveryError: ``connection-failed``: no server can be reached, or it has no TLS; ``authentication-failed``.
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
    Connect a client of nats-py as :func:`connect` does; where that fails, the client is closed.

    Args:
        client: One that was never connected.
        settings: How to connect.
        allow_reconnect: False closes a connection that is lost, and logs nothing.
        max_reconnect_attempts: As for :func:`connect`.
        reconnect_time_wait: Seconds between two attempts at one server; None for 2 to 2.5.
        options: Further ones of nats-py's ``connect()``, callbacks included.

    Raises:
        EncodeError: As :func:`connect` does.
        DeliveryError: As :func:`connect` does; without a cause, which could contain secrets.
        TypeError: As :func:`connect` does.
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
        # Without reconnects nats-py would not try the next server where one is reachable and refuses.
        "allow_reconnect": True,
        "max_reconnect_attempts": 1,  # 0 would be without end
        "reconnect_time_wait": _RETRY_SECONDS,
    }
    remember_api_prefix(client, settings.api_prefix)
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
    except Exception as error:  # nkeys, ssl and web socket libraries have their own
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
        # The server closes the connection after a refusal, which may be an error of a write or a read, too.
        reasons = [reason for reason in reasons if not isinstance(reason, _CLOSED_BY_PEER)]
    text = "; ".join(dict.fromkeys(_text(settings, reason) for reason in reasons))
    raise DeliveryError(code, f"cannot connect to {', '.join(settings.servers)}: {text}")


async def disconnect(nc: Client) -> None:
    """Close a connection, in whatever state it is, and in two seconds at most; nothing is raised."""
    # nats-py waits until everything is written, or TLS shut down, which may be never.
    with suppress(Exception):
        await asyncio.wait_for(nc.close(), _CLOSE_SECONDS)


class _Callbacks:
    """
    nats-py's callbacks: they gather failures of the first connection, and later log what has no callback.

    Args:
        client: Of nats-py.
        settings: Of the connection; they know what must not be shown in errors.
        options: The caller's callbacks are taken out of it.
        is_logged: False logs nothing.

    Attributes:
        functions: By nats-py's names.
        failures: Of the first connection.
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
        """Called when a connection is established, the first or a later one."""
        url = self._client.connected_url
        self._server = url.netloc if url else ", ".join(self._settings.servers)
        ConnectionWatch.of(self._client)
        self._is_connected, self._is_lost, self._last_error = True, False, ""

    async def _error_cb(self, error: Exception) -> None:
        if not self._is_connected:
            self.failures.append(error)
        elif self._given["error_cb"] is not None:
            await self._given["error_cb"](error)
        else:
            previous, self._last_error = self._last_error, _text(self._settings, error)
            # A loss, and each attempt that finds no server, is an error too.
            is_loss = isinstance(error, (OSError, asyncio.TimeoutError, nats.errors.UnexpectedEOF))
            self._log(logging.DEBUG if is_loss or previous == self._last_error else logging.WARNING, self._last_error)

    async def _disconnected_cb(self) -> None:
        if not self._is_connected:
            return
        is_lost = not self._client.is_closed
        if self._given["disconnected_cb"] is not None:
            await self._given["disconnected_cb"]()
        elif is_lost:
            self._log(logging.WARNING, "the connection is lost, trying to reconnect")
        self._is_lost |= is_lost

    async def _reconnected_cb(self) -> None:
        self.note_connection()
        if self._given["reconnected_cb"] is not None:
            await self._given["reconnected_cb"]()
        else:
            self._log(logging.WARNING, "the connection is back")

    async def _closed_cb(self) -> None:
        if not self._is_connected:
            return
        loss = ConnectionWatch.of(self._client).loss
        if self._given["closed_cb"] is not None:
            await self._given["closed_cb"]()
        elif self._is_lost:
            self._log(logging.ERROR, f"the connection did not come back, and is closed: {self._last_error or loss}")
        elif loss is not None and (text := _text(self._settings, loss)) != self._last_error:
            self._log(logging.ERROR, f"the connection is closed: {text}")

    def _log(self, level: int, text: str) -> None:
        if self._is_logged:
            _log.log(level, "%s: %s", self._server, text)


# --- TLS -------------------------------------------------------------------------------------------------------------


class _NoTlsError(nats.errors.SecureConnWantedError):
    def __str__(self) -> str:
        return "secure connection not available: TLS is asked for, and the server does not offer it"


class _Transport(TlsTransport):
    """
    nats-py's transport, which writes nothing before TLS is established where TLS is requested.

    Args:
        wants_tls: Whether TLS is requested.
    """

    def __init__(self, *, wants_tls: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wants_tls = wants_tls
        self._has_failed = False

    def __bool__(self) -> bool:
        return True  # nats-py replaces a transport that is false, as this one would be before it has connected

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
        if not self._has_failed:  # after a failed handshake this would wait without end
            await super().wait_closed()  # type: ignore[no-untyped-call]

    def write(self, payload: bytes) -> None:
        if not self._may_write:
            self.close()  # type: ignore[no-untyped-call]
            raise _NoTlsError
        super().write(payload)  # type: ignore[no-untyped-call]

    def writelines(self, payload: list[bytes]) -> None:
        # nats-py writes what waits in its buffer when it closes, to whatever it was connecting to.
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
    Keep a client from talking to a server without TLS, where TLS is requested.

    nats-py uses TLS where the server requires it, whatever the URL says, and continues without TLS where it does not: a
    server without TLS, or an attacker in front of one that has it, would get everything in plain text.
    """

    def choose_transport(server: Srv) -> None:
        # Web sockets have TLS outside, and none of these; but servers that they learn of may be reached by TCP.
        if not server.uri.scheme.startswith("ws") and not isinstance(transport_of(client), _Transport):
            use_transport(client, _Transport(wants_tls=wants_tls))

    def require_tls(info: dict[str, Any], is_first: bool) -> None:
        if wants_tls and is_first and info.get("tls_available"):
            info["tls_required"] = True

    intercept_connects(client, before_connect=choose_transport, before_info=require_tls)


def _ssl_context(settings: ConnectionSettings) -> ssl.SSLContext | None:
    if not (settings.tls_ca_file or settings.tls_cert_file):
        return None  # nats-py makes one where the server wants TLS
    context = ssl.create_default_context(cafile=settings.tls_ca_file)
    if settings.tls_cert_file:
        # Without any password OpenSSL asks for one, and waits.
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file, settings.tls_key_password or "")
    return context


# --- nats-py's options -----------------------------------------------------------------------------------------------


def _nats_options(settings: ConnectionSettings, options: dict[str, Any]) -> dict[str, Any]:
    """
    Options of nats-py's ``connect()``.

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
            with open(path, "rb"):  # other libraries' errors do not say which file is missing
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
    except Exception:  # those of base64, too
        return False
    return True


def _check_package(name: str, who: str) -> None:
    if importlib.util.find_spec(name) is None:
        extra = f"'nats-py[{name}]'"
        raise invalid(f"{who} the package {name}: pip install {extra}")


def _is_authorization(error: Exception) -> bool:
    return isinstance(error, nats.errors.Error) and "authorization" in str(error).lower()


def _text(settings: ConnectionSettings, error: Exception) -> str:
    """The text of an error, without secrets."""
    text = str(error) if isinstance(error, (nats.errors.Error, OSError, ImportError)) else ""
    if isinstance(error, asyncio.TimeoutError):
        text = str(error) or "no answer in time"
    if _is_authorization(error):
        text = f"the server refuses the credentials ({text})"
    return settings.hidden(text) or type(error).__name__
