"""
Connection settings: addresses, credentials and TLS, from arguments, environment variables and contexts.

Secrets do not appear in ``repr`` or in errors: users, passwords and tokens are removed from URLs before the URLs are
used. No network I/O: ``ce_nats.aio.connect`` makes connections with these settings.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from ._numbers import MAX_SECONDS, is_number
from .errors import EncodeError, ErrorCode, preview
from .subjects import check_pattern, is_literal

Secret: TypeAlias = str | Callable[[], str]

DEFAULT_URL: Final = "nats://127.0.0.1:4222"
DEFAULT_PREFIX: Final = "$JS.API"

# Environment variables of the nats command line, by the setting.
ENVIRONMENT: Final = {
    "servers": "NATS_URL",
    "context": "NATS_CONTEXT",
    "credentials_file": "NATS_CREDS",
    "nkey_seed_file": "NATS_NKEY",
    "user": "NATS_USER",
    "password": "NATS_PASSWORD",
    "tls_cert_file": "NATS_CERT",
    "tls_key_file": "NATS_KEY",
    "tls_ca_file": "NATS_CA",
}
# Fields of a context, by the setting.
_CONTEXT: Final = {
    "servers": "url",
    "credentials_file": "creds",
    "nkey_seed_file": "nkey",
    "user": "user",
    "password": "password",
    "token": "token",
    "tls_cert_file": "cert",
    "tls_key_file": "key",
    "tls_ca_file": "ca",
    "tls_handshake_first": "tls_first",
    "inbox_prefix": "inbox_prefix",
    "js_domain": "jetstream_domain",
    "js_api_prefix": "jetstream_api_prefix",
}
_FILES: Final = ("credentials_file", "nkey_seed_file", "tls_cert_file", "tls_key_file", "tls_ca_file")
# Authentication method of each setting.
_AUTH_METHODS: Final = {
    "user": "user",
    "password": "user",
    "token": "token",
    "credentials_file": "credentials_file",
    "nkey_seed_file": "nkey_seed_file",
}
_JETSTREAM: Final = ("js_domain", "js_api_prefix")
_SCHEMES: Final = ("nats", "tls", "ws", "wss")
_LONG_SECRET: Final = 4  # characters
_SCHEME: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]{0,15})://")


@dataclass(frozen=True)
class ConnectionSettings:
    """
    Settings of a connection, checked by :func:`read_settings`.

    Attributes:
        servers: URLs without user names and passwords.
        name: Name of the connection in the server's monitoring.
        user: User name, or None.
        password: Password, or None.
        token: Token, or None.
        nkey_seed_file: File with the seed of an nkey.
        credentials_file: File with a JWT and a seed, as ``nsc`` writes them.
        tls_ca_file: Trusted CA certificates, PEM; by default the system's.
        tls_cert_file: Certificate of the client, PEM.
        tls_key_file: Private key of the client, PEM; by default in ``tls_cert_file``.
        tls_key_password: Password of the private key.
        tls_hostname: Host name that the server's certificate must have; by default that of the URL.
        tls_handshake_first: Start the TLS handshake before the server sends INFO.
        inbox_prefix: First tokens of reply subjects (inboxes).
        api_prefix: First tokens of the subjects of JetStream's API.
        connect_timeout: Seconds to wait for a server, in each attempt.
    """

    servers: tuple[str, ...] = (DEFAULT_URL,)
    name: str | None = None
    user: Secret | None = None
    password: Secret | None = field(default=None, repr=False)
    token: Secret | None = field(default=None, repr=False)
    nkey_seed_file: str | None = None
    credentials_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_key_password: str | None = field(default=None, repr=False)
    tls_hostname: str | None = None
    tls_handshake_first: bool = False
    inbox_prefix: str | None = None
    api_prefix: str = DEFAULT_PREFIX
    connect_timeout: float = 5.0

    @property
    def wants_tls(self) -> bool:
        """Whether the connection must use TLS."""
        named = any(server.startswith(("tls:", "wss:")) for server in self.servers)
        return named or bool(self.tls_ca_file or self.tls_cert_file or self.tls_hostname or self.tls_handshake_first)

    def hidden(self, text: str) -> str:
        """Return a text with the secrets of these settings replaced by ``***``."""
        for secret in (self.password, self.token, self.tls_key_password):
            if secret and isinstance(secret, str):
                # A short secret occurs in other words by chance, so it is replaced as a whole word only.
                before, after = ("", "") if len(secret) >= _LONG_SECRET else (r"(?<!\w)", r"(?!\w)")
                text = re.sub(f"{before}{re.escape(secret)}{after}", "***", text)
        return text


def resolve(
    given: Mapping[str, Any],
    *,
    context: str | None = None,
    environment: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """
    Merge settings from arguments, environment variables and a context of the ``nats`` command line, in this order.

    The context is the one given, or that of ``NATS_CONTEXT``, or the one chosen with ``nats context select``; the last
    is ignored if a server is given. It is read from ``$XDG_CONFIG_HOME/nats/context/NAME.json``, by default below
    ``~/.config``. Credentials are not mixed: if one source sets an authentication method, other methods of later
    sources are ignored, so that the token of a context is not sent together with the user of an argument. A user in a
    URL is not sent to the servers of another source.

    Returns arguments of :class:`ConnectionSettings`.

    Raises:
        EncodeError: ``invalid-option``: as for :func:`read_settings`, and if the context does not exist or cannot be
            read.
    """
    levels = [dict(given)]
    if environment is not None:
        levels.append({name: environment.get(variable) for name, variable in ENVIRONMENT.items() if name != "context"})
        context = context or environment.get(ENVIRONMENT["context"])
    directory = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "nats"
    if not context and environment is not None and not any(level.get("servers") for level in levels):
        with suppress(OSError):
            context = (directory / "context.txt").read_text("utf-8").strip()
    if context:
        levels.append(_read_context(directory / "context" / f"{context}.json", context))
    merged: dict[str, Any] = {}
    for level in levels:
        _add(merged, {name: value for name, value in level.items() if value})
    if len(levels) > 1:
        _read_user_alone(merged, given)
    return read_settings(merged, names)


def _add(merged: dict[str, Any], later: dict[str, Any]) -> None:
    """Add the settings of a later source that the earlier ones do not override."""
    if "servers" in merged:
        later.pop("servers", None)
    if any(name in merged for name in _JETSTREAM):
        later = {name: value for name, value in later.items() if name not in _JETSTREAM}
    methods = {_AUTH_METHODS[name] for name in merged if name in _AUTH_METHODS}
    for name, value in _with_bare_servers(later).items():
        if not methods or _AUTH_METHODS.get(name) in (None, *methods):
            merged.setdefault(name, value)


def _read_user_alone(merged: dict[str, Any], given: Mapping[str, Any]) -> None:
    """As the nats command line does, use a user without a password as token, and ignore a password without a user."""
    if "user" in merged and "password" not in merged:
        merged["token"] = merged.pop("user")
    elif "user" not in merged and not given.get("password"):
        merged.pop("password", None)


def read_settings(given: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """
    Check settings and return the arguments of :class:`ConnectionSettings`.

    Raises:
        EncodeError: ``invalid-option``: a setting is malformed, or two contradict each other. The text does not contain
            values that may be secret.
        TypeError: ``servers`` is not text.
    """
    known = names or {}
    checked = _with_bare_servers({name: value for name, value in given.items() if value is not None})
    _check_together(checked, known)
    prefix = api_prefix(checked.pop("js_api_prefix", None), checked.pop("js_domain", None), known)
    if checked.get("inbox_prefix") and not _is_prefix(checked["inbox_prefix"]):
        name = _name("inbox_prefix", known)
        raise invalid(f"{name} must be a subject without wildcards, got {preview(checked['inbox_prefix'])}")
    if checked.get("tls_key_file") and not checked.get("tls_cert_file"):
        raise invalid(f"{_name('tls_key_file', known)} must be given with {_name('tls_cert_file', known)}")
    for name in _FILES:
        if name in checked:
            checked[name] = os.fspath(checked[name])
    seconds = checked.get("connect_timeout", 1)
    if not is_number(seconds, 0, MAX_SECONDS) or not seconds > 0:
        raise invalid(f"connect_timeout must be a number of seconds above 0, got {preview(seconds)}")
    settings = {"servers": (DEFAULT_URL,), **checked, "api_prefix": prefix}
    if ConnectionSettings(**settings).wants_tls and any(url.startswith("ws:") for url in settings["servers"]):
        raise invalid("server URLs must begin with wss:// for web sockets with TLS, got ws://")
    return settings


def api_prefix(prefix: str | None, domain: str | None, names: Mapping[str, str] | None = None) -> str:
    """
    Return the first tokens of the subjects of JetStream's API.

    Raises:
        EncodeError: ``invalid-option``: both are given, or one is malformed.
    """
    known = names or {}
    if prefix and domain:
        raise invalid(f"{_name('js_api_prefix', known)} and {_name('js_domain', known)} must not be given together")
    name, value = ("js_domain", domain) if domain else ("js_api_prefix", prefix)
    if not value:
        return DEFAULT_PREFIX
    text = value.rstrip(".")
    if not _is_prefix(text) or (domain and "." in text):
        kind = "a name without dots" if domain else "a subject without wildcards"
        raise invalid(f"{_name(name, known)} must be {kind}, got {preview(value)}")
    return f"$JS.{text}.API" if domain else text


def _is_prefix(text: str) -> bool:
    try:
        check_pattern(text)
    except EncodeError:
        return False
    return is_literal(text)


def invalid(text: str) -> EncodeError:
    """Return the error for an invalid option."""
    return EncodeError(ErrorCode.INVALID_OPTION, text)


def _name(name: str, names: Mapping[str, str]) -> str:
    return names.get(name, name)


def _read_context(path: Path, context: str) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text("utf-8"))
        found = {name: known.get(key) for name, key in _CONTEXT.items()}
    except OSError as error:
        raise invalid(f"context {context!r} cannot be read: {error}") from error
    except (ValueError, AttributeError) as error:
        raise invalid(f"context {context!r} must be a JSON object: {path}") from error
    texts: dict[str, Any] = {name: value for name, value in found.items() if isinstance(value, str) and value}
    # The nats command line uses the first of these.
    methods = [name for name in ("user", "credentials_file", "nkey_seed_file") if name in texts]
    for name in [*methods[1:], *(["token"] if methods[:1] == ["user"] else [])]:
        texts.pop(name, None)
    for name in _FILES:
        if name in texts:
            texts[name] = os.path.expanduser(texts[name])
    return {**texts, "tls_handshake_first": found["tls_handshake_first"] is True}


def _with_bare_servers(given: dict[str, Any]) -> dict[str, Any]:
    """Move credentials from the URLs to separate settings."""
    if "servers" not in given:
        return given
    parts = _read_servers(given["servers"])
    found = [credentials for part in parts if (credentials := _credentials(part))]
    if any(credentials != found[0] for credentials in found):
        raise invalid("all server URLs must have the same user or token, got different users or tokens")
    bare = tuple(part._replace(netloc=part.netloc.rpartition("@")[2]).geturl() for part in parts)
    if found and any(given.get(name) for name in ("user", "password", "token")):
        raise invalid("a user or a token must be given in the URL or in the options, got both")
    return {**given, "servers": bare, **(found[0] if found else {})}


def _read_servers(servers: Any) -> list[SplitResult]:
    if isinstance(servers, str):
        servers = [servers]
    if not isinstance(servers, Sequence) or not all(isinstance(text, str) for text in servers):
        raise TypeError(f"servers must be a URL, or a list of URLs, got {type(servers).__name__}")
    texts = [part.strip() for text in servers for part in text.split(",")]
    parts = [_read_url(text, f" {number}" if len(texts) > 1 else "") for number, text in enumerate(texts, 1)]
    if not parts:
        raise invalid("servers must be at least one URL, got none")
    if len({part.scheme.startswith("ws") for part in parts}) > 1:
        raise invalid("either all server URLs or none must be web sockets (ws://, wss://), got both")
    return parts


def _read_url(text: str, number: str) -> SplitResult:
    # Errors never contain the text: a password may contain a slash, like a path, or a colon, like a port.
    scheme = _SCHEME.match(text)
    if scheme and scheme[1].lower() not in _SCHEMES:
        raise invalid(f"server URL{number} must begin with nats://, tls://, ws:// or wss://, got {scheme[1]}://...")
    try:
        part = urlsplit(text if "://" in text else f"nats://{text}")
        usable = bool(part.hostname) and part.scheme in _SCHEMES and part.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in part.path + part.query + part.fragment or (part.path.strip("/") and part.scheme[0] != "w"):
        raise invalid(
            f"server URL{number} must be of the form nats://host:port, with the scheme nats, tls, ws or wss "
            "(special characters in a password must be percent-encoded)"
        )
    return part


def _credentials(part: SplitResult) -> dict[str, str]:
    if not part.username:
        return {}
    name = unquote(part.username)
    return {"token": name} if part.password is None else {"user": name, "password": unquote(part.password)}


def _check_together(given: Mapping[str, Any], names: Mapping[str, str]) -> None:
    user, password, token = (_name(name, names) for name in ("user", "password", "token"))
    if bool(given.get("user")) != bool(given.get("password")):
        raise invalid(f"{user} and {password} must be given together")
    # nats-py would use the first of these and ignore the others. (A token together with a key is for auth callouts.)
    methods = [_name(name, names) for name in ("user", "nkey_seed_file", "credentials_file") if given.get(name)]
    if given.get("user") and given.get("token"):
        methods = [user, token]
    if len(methods) > 1:
        raise invalid(f"{' and '.join(methods)} must not be given together: each is an authentication method")
