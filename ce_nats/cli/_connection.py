"""
Connections with the same options, environment variables and contexts as the ``nats`` command line.

An option takes precedence over its environment variable, and both over the context; see ``ce_nats._settings``.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, Final, get_type_hints

import typer
from nats.aio.client import Client
from nats.js import JetStreamContext

from .._numbers import MAX_SECONDS, is_number
from .._settings import ENVIRONMENT, ConnectionSettings, resolve
from ..aio._connect import disconnect, establish
from ._arguments import InputError

# Reconnect attempts, one second apart.
_MAX_RECONNECT_ATTEMPTS: Final = 60


@dataclass(frozen=True)
class Settings:
    """
    Settings of a connection.

    Attributes:
        connection: Servers and credentials.
        timeout: Seconds to wait for a response.
    """

    connection: ConnectionSettings
    timeout: float = 5.0


def _option(option: str, *short: str, sets: str, metavar: str, text: str) -> Any:
    variable = ENVIRONMENT.get(sets)
    return typer.Option(
        option, *short, envvar=variable, metavar=metavar, help=text, rich_help_panel="Connection", show_default=False
    )


@dataclass(frozen=True)
class _Options:
    """Options of the connection. Each attribute has the name of its setting."""

    servers: Annotated[
        str | None,
        _option("--server", "-s", sets="servers", metavar="URL", text="Server URL, or several separated by commas."),
    ] = None
    context: Annotated[
        str | None, _option("--context", sets="context", metavar="NAME", text="Context of the nats command line.")
    ] = None
    credentials_file: Annotated[
        str | None,
        _option("--creds", sets="credentials_file", metavar="FILE", text="Credentials file, with a JWT and a seed."),
    ] = None
    nkey_seed_file: Annotated[
        str | None, _option("--nkey", sets="nkey_seed_file", metavar="FILE", text="File with the seed of an nkey.")
    ] = None
    user: Annotated[
        str | None, _option("--user", sets="user", metavar="NAME", text="User name; without --password, a token.")
    ] = None
    password: Annotated[str | None, _option("--password", sets="password", metavar="TEXT", text="Password.")] = None
    tls_cert_file: Annotated[
        str | None,
        _option("--tlscert", sets="tls_cert_file", metavar="FILE", text="Client certificate, PEM."),
    ] = None
    tls_key_file: Annotated[
        str | None, _option("--tlskey", sets="tls_key_file", metavar="FILE", text="Key of the client certificate, PEM.")
    ] = None
    tls_ca_file: Annotated[
        str | None, _option("--tlsca", sets="tls_ca_file", metavar="FILE", text="CA certificates to trust, PEM.")
    ] = None
    js_domain: Annotated[
        str | None, _option("--js-domain", sets="js_domain", metavar="NAME", text="JetStream domain.")
    ] = None
    js_api_prefix: Annotated[
        str | None,
        _option(
            "--js-api-prefix", sets="js_api_prefix", metavar="SUBJECT", text="Subject prefix of the JetStream API."
        ),
    ] = None
    inbox_prefix: Annotated[
        str | None,
        _option("--inbox-prefix", sets="inbox_prefix", metavar="SUBJECT", text="Subject prefix of replies."),
    ] = None
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="Time limit for each request to the server.",
            rich_help_panel="Connection",
        ),
    ] = 5.0


_NAMES: Final = tuple(field.name for field in fields(_Options))
_OPTION_NAMES: Final = {
    "user": "--user",
    "password": "--password",
    "credentials_file": "--creds",
    "nkey_seed_file": "--nkey",
    "tls_cert_file": "--tlscert",
    "tls_key_file": "--tlskey",
    "js_domain": "--js-domain",
    "js_api_prefix": "--js-api-prefix",
    "inbox_prefix": "--inbox-prefix",
}


def with_connection(command: Callable[..., None], *, is_optional: bool = False) -> Callable[..., None]:
    """
    Add the options of a connection to a command.

    ``command``: The command. Its first parameter must be ``settings``: :class:`Settings`, or, if the connection is
    optional, a function that returns them.
    """
    # Not get_type_hints(), which before Python 3.11 adds Optional to the type of a parameter with the default None.
    own = [
        parameter
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if name != "settings"
    ]
    kinds = get_type_hints(_Options, include_extras=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(_Options, name), annotation=kinds[name])
        for name in _NAMES
    ]

    added.append(inspect.Parameter("line", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))

    @wraps(command)
    def run_with_settings(line: typer.Context, **given: Any) -> None:
        options = {name: given.pop(name) for name in _NAMES}
        timeout = options.pop("timeout")
        if not is_number(timeout, 0, MAX_SECONDS) or not timeout:
            raise InputError(f"--timeout must be a number of seconds above 0, got {timeout}")
        # resolve() reads the environment variables. The options have their names only to show them in --help.
        for name in options:
            source = line.get_parameter_source(name)
            if source is None or source.name != "COMMANDLINE":
                options[name] = None
        command((lambda: _settings(options, timeout)) if is_optional else _settings(options, timeout), **given)

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    run_with_settings.__signature__ = inspect.Signature([*keyword_only, *added])  # type: ignore[attr-defined]
    run_with_settings.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
    del run_with_settings.__wrapped__
    return run_with_settings


def settings_of(server: str | None, context: str | None, timeout: float) -> Settings:
    """
    Return the settings of a second server, from its URL or its context only.

    Raises:
        EncodeError: ``invalid-option``: the context does not exist or cannot be read, or the URL is not valid.
    """
    return _settings({"servers": server, "context": context}, timeout, environment=False)


def _settings(given: Mapping[str, Any], timeout: float, *, environment: bool = True) -> Settings:
    """
    Return settings from options; environment variables and a context replace missing options.

    Raises:
        EncodeError: ``invalid-option``: an option is not valid, or the context does not exist.
    """
    options = {"name": "ce-nats", **given}
    context = options.pop("context", None)
    found = resolve(options, context=context, environment=os.environ if environment else None, names=_OPTION_NAMES)
    return Settings(ConnectionSettings(**found), timeout)


@asynccontextmanager
async def open_connection(settings: Settings, **callbacks: Any) -> AsyncIterator[Client]:
    """
    Open a connection, which reconnects if it is lost.

    Raises:
        DeliveryError: ``connection-failed``, ``authentication-failed``.
        EncodeError: ``invalid-option``: an option, or a file that it names, is not valid.
    """
    nc = Client()

    async def closed() -> None:
        """Do nothing: the command itself reports the closed connection."""

    options = {
        "max_reconnect_attempts": _MAX_RECONNECT_ATTEMPTS,
        "reconnect_time_wait": 1,
        "closed_cb": closed,
        **callbacks,
    }
    await establish(nc, settings.connection, **options)
    try:
        yield nc
    finally:
        await disconnect(nc)


@asynccontextmanager
async def open_jetstream(settings: Settings, **callbacks: Any) -> AsyncIterator[tuple[Client, JetStreamContext]]:
    """Open a connection with :func:`open_connection`, and yield it with its JetStream context."""
    async with open_connection(settings, **callbacks) as nc:
        yield nc, nc.jetstream(timeout=settings.timeout, prefix=settings.connection.api_prefix)
