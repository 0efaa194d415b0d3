"""
Connections, with the options, variables and contexts that the ``nats`` command line has.

An option comes first, then its environment variable, then the context: ``--context``, ``NATS_CONTEXT``, or the one that
``nats context select`` chose, which does not count where a server is named. Contexts are read from
``$XDG_CONFIG_HOME/nats/context/NAME.json``, by default below ``~/.config``.
"""

from __future__ import annotations

import inspect
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints
from urllib.parse import urlsplit

import nats
import nats.errors
import typer
from nats.aio.client import Client
from nats.js import JetStreamContext

from ..aio.streams import leave
from ..errors import DeliveryError, ErrorCode
from .files import InputError

__all__ = ["Settings", "connected", "open_connection", "settings_of", "with_connection"]

_DEFAULT_URL: Final = "nats://127.0.0.1:4222"
_CONNECT_SECONDS: Final = 5


def _option(*names: str, env: str | None = None, metavar: str, text: str) -> Any:
    return typer.Option(*names, envvar=env, metavar=metavar, help=text, rich_help_panel="Connection")


@dataclass(frozen=True)
class Settings:
    """How to connect: an attribute for each option."""

    server: Annotated[
        str | None, _option("--server", "-s", env="NATS_URL", metavar="URL", text="Servers, with commas between them.")
    ] = None
    context: Annotated[
        str | None, _option("--context", env="NATS_CONTEXT", metavar="NAME", text="Context of the nats command line.")
    ] = None
    creds: Annotated[
        str | None, _option("--creds", env="NATS_CREDS", metavar="FILE", text="Credentials: a JWT and a seed.")
    ] = None
    nkey: Annotated[str | None, _option("--nkey", env="NATS_NKEY", metavar="FILE", text="Seed of an nkey.")] = None
    user: Annotated[
        str | None, _option("--user", env="NATS_USER", metavar="NAME", text="User; without a password, a token.")
    ] = None
    password: Annotated[str | None, _option("--password", env="NATS_PASSWORD", metavar="TEXT", text="Password.")] = None
    tlscert: Annotated[
        str | None, _option("--tlscert", env="NATS_CERT", metavar="FILE", text="Certificate of the client, PEM.")
    ] = None
    tlskey: Annotated[str | None, _option("--tlskey", env="NATS_KEY", metavar="FILE", text="Its key, PEM.")] = None
    tlsca: Annotated[
        str | None, _option("--tlsca", env="NATS_CA", metavar="FILE", text="Certificates to trust, PEM.")
    ] = None
    domain: Annotated[str | None, _option("--js-domain", metavar="NAME", text="JetStream domain.")] = None
    inbox_prefix: Annotated[
        str | None, _option("--inbox-prefix", metavar="SUBJECT", text="First tokens of the subjects for answers.")
    ] = None
    timeout: Annotated[
        float, _option("--timeout", metavar="SECONDS", text="How long to wait for an answer of the server.")
    ] = 5.0


_NAMES: Final = tuple(field.name for field in fields(Settings))
# Fields of a context file that have another name here.
_IN_CONTEXT: Final = {"server": "url", "tlscert": "cert", "tlskey": "key", "tlsca": "ca", "domain": "jetstream_domain"}
_FILES: Final = ("creds", "nkey", "tlscert", "tlskey", "tlsca")


def with_connection(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of :class:`Settings` to a command, whose first argument is called ``settings``."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "settings"
    ]
    kinds = get_type_hints(Settings, include_extras=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(Settings, name), annotation=kinds[name])
        for name in _NAMES
    ]

    @wraps(command)
    def take_settings(**given: Any) -> None:
        settings = Settings(**{name: given.pop(name) for name in _NAMES})
        command(_completed(settings, os.environ), **given)

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    take_settings.__signature__ = inspect.Signature([*keyword_only, *added])  # type: ignore[attr-defined]
    take_settings.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
    del take_settings.__wrapped__
    return take_settings


def settings_of(server: str | None, context: str | None, timeout: float) -> Settings:
    """
    Settings of a second server, of which nothing is known but its URL or its context.

    Raises:
        InputError: There is no such context, or it cannot be read.
    """
    return _completed(Settings(server=server, context=context, timeout=timeout), os.environ)


def _completed(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """
    Settings with what the context says.

    Raises:
        InputError: There is no such context, or it cannot be read.
    """
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    directory = Path(home) / "nats"
    name = settings.context
    if name is None and settings.server is None:
        with suppress(OSError):
            name = (directory / "context.txt").read_text("utf-8").strip()
    if not name:
        return settings
    known = _read_context(directory / "context" / f"{name}.json", name)
    if settings.user is None and settings.password is None and known.get("token") and not known.get("user"):
        known["user"] = known["token"]
    missing: dict[str, Any] = {
        field: known[key]
        for field in _NAMES
        if getattr(settings, field) is None and (key := _IN_CONTEXT.get(field, field)) in known
    }
    for field in _FILES:
        if field in missing:
            missing[field] = os.path.expanduser(missing[field])
    return replace(settings, **missing)


def _read_context(path: Path, name: str) -> dict[str, str]:
    try:
        known = json.loads(path.read_text("utf-8"))
        return {key: value for key, value in known.items() if isinstance(value, str) and value}
    except OSError as error:
        raise InputError(f"there is no context {name!r}: {error}") from error
    except (ValueError, AttributeError) as error:
        raise InputError(f"context {name!r} is not a JSON object: {path}") from error


@asynccontextmanager
async def open_connection(settings: Settings, **callbacks: Any) -> AsyncIterator[Client]:
    """
    A connection that comes back by itself once it was there.

    Args:
        settings: How to connect.
        callbacks: nats-py's ``error_cb``, ``disconnected_cb``, ``reconnected_cb`` and ``closed_cb``; called once the
            connection is there.

    Raises:
        DeliveryError: ``delivery-failed``: no server can be reached, or none lets us in.
        InputError: Files or options make no sense.
    """
    seen: list[Exception] = []

    told = callbacks.pop("error_cb", None)

    async def remember(error: Exception) -> None:
        seen[:] = [error]
        if told is not None and is_there:
            await told(error)

    is_there = False

    nc = Client()
    servers = [part.strip() for part in (settings.server or _DEFAULT_URL).split(",")]
    options = _nats_options(settings)
    try:
        await nc.connect(
            servers=servers,
            name="ce-nats",
            connect_timeout=_CONNECT_SECONDS,
            # A server that is not there, or does not let us in, is no reason to wait for a minute, as nats-py does.
            # 0 attempts would be without end.
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            error_cb=remember,
            **options,
            **callbacks,
        )
    except nats.errors.NoServersError as error:
        await leave(nc)
        raise _unreachable(servers, seen[-1] if seen else error) from None
    except ModuleNotFoundError as error:
        raise InputError(f"keys and credentials need {error.name}: pip install 'ce-nats[cli]'") from None
    except Exception as error:  # nkeys, ssl and websocket libraries have their own
        await leave(nc)
        raise _unreachable(servers, error) from None
    nc.options.update(allow_reconnect=True, max_reconnect_attempts=60, reconnect_time_wait=1)
    is_there = True
    try:
        yield nc
    finally:
        await leave(nc)


@asynccontextmanager
async def connected(settings: Settings, **callbacks: Any) -> AsyncIterator[tuple[Client, JetStreamContext]]:
    """A connection as :func:`open_connection` gives it, and JetStream on it."""
    async with open_connection(settings, **callbacks) as nc:
        yield nc, nc.jetstream(timeout=settings.timeout, domain=settings.domain)


def _nats_options(settings: Settings) -> dict[str, Any]:
    if settings.tlskey and not settings.tlscert:
        raise InputError("--tlskey needs --tlscert")
    for name in _FILES:
        if path := getattr(settings, name):
            with open(path, "rb"):  # other libraries' errors do not say which file is missing
                pass
    options: dict[str, Any] = {}
    if settings.user and settings.password is None:
        options["token"] = settings.user
    elif settings.user:
        options["user"], options["password"] = settings.user, settings.password
    if settings.inbox_prefix:
        options["inbox_prefix"] = settings.inbox_prefix
    if settings.creds:
        options["user_credentials"] = settings.creds
    if settings.nkey:
        options["nkeys_seed"] = settings.nkey
    if settings.tlsca or settings.tlscert:
        try:
            options["tls"] = ssl.create_default_context(cafile=settings.tlsca)
            if settings.tlscert:
                options["tls"].load_cert_chain(settings.tlscert, settings.tlskey)
        except ssl.SSLError as error:
            raise InputError(f"certificates cannot be used: {error}") from error
    return options


def _unreachable(servers: list[str], error: Exception) -> DeliveryError:
    """What went wrong, without passwords that stand in URLs."""
    shown = ", ".join(urlsplit(server).netloc.rpartition("@")[2] or server.rpartition("@")[2] for server in servers)
    return DeliveryError(ErrorCode.DELIVERY_FAILED, f"cannot connect to {shown}: {str(error) or type(error).__name__}")
