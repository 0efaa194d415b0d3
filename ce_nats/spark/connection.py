"""
Options of the data source that say how to connect, and connections made with them.

Names of options are those of nats-py in camel case; Spark takes them in any case. What is secret stays out of ``repr``,
of plans, of logs and of error messages: user names and passwords are taken out of URLs before anybody else sees those,
and errors from connecting are told again without their causes. Keys and credentials are files, which every worker must
have at the same path.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from ..errors import DeliveryError, ErrorCode, preview

if TYPE_CHECKING:
    import ssl

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
_SCHEMES: Final = ("nats", "tls", "ws", "wss")
_HIDDEN: Final = "***"


@dataclass(frozen=True)
class Connection:
    """
    How to connect. Travels to workers pickled, secrets included, as everything that a task needs does.

    Attributes:
        servers: URLs without user names and passwords.
        name: What the server's monitoring calls the connection.
        user: User name, or None.
        password: Password, or None.
        token: Token, or None.
        nkey_seed_file: File with the seed of an nkey.
        credentials_file: File with a JWT and a seed, as ``nsc`` writes them.
        tls_ca_file: Certificates to trust, PEM; by default the system's.
        tls_cert_file: Certificate of the client, PEM.
        tls_key_file: Its key, PEM; by default in ``tls_cert_file``.
        tls_key_password: Password of that key.
        tls_hostname: Name to look for in the server's certificate; by default that of the URL.
        tls_handshake_first: TLS begins before the server says anything.
        inbox_prefix: First tokens of the subjects that answers come to.
        api_prefix: First tokens of the subjects of JetStream's API.
        connect_timeout: Seconds to wait for a server, each time it is tried.
        request_timeout: Seconds to wait for an answer.
        retry_timeout: Seconds to try again without any progress.
    """

    servers: tuple[str, ...]
    name: str = "ce-nats spark"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_seed_file: str | None = None
    credentials_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_key_password: str | None = field(default=None, repr=False)
    tls_hostname: str | None = None
    tls_handshake_first: bool = False
    inbox_prefix: str | None = None
    api_prefix: str = "$JS.API"
    connect_timeout: float = 5.0
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

        def text(name: str) -> str | None:
            return given.get(name.lower()) or None

        servers, in_url = _read_servers(text("url"), text("servers"))
        user, password, token = text("user"), text("password"), text("token")
        if in_url and (user or password or token):
            raise ValueError("there is a user or a token in the URL, and in the options too")
        if in_url:
            user, password, token = in_url
        _check_together(user, password, token, text("nkeySeedFile"), text("credentialsFile"))
        if text("tlsKeyFile") and not text("tlsCertFile"):
            raise ValueError("option tlsKeyFile needs tlsCertFile")
        return cls(
            servers=servers,
            name=text("name") or cls.name,
            user=user,
            password=password,
            token=token,
            nkey_seed_file=text("nkeySeedFile"),
            credentials_file=text("credentialsFile"),
            tls_ca_file=text("tlsCaFile"),
            tls_cert_file=text("tlsCertFile"),
            tls_key_file=text("tlsKeyFile"),
            tls_key_password=text("tlsKeyPassword"),
            tls_hostname=text("tlsHostname"),
            tls_handshake_first=read_boolean(given, "tlsHandshakeFirst", default=False),
            inbox_prefix=text("inboxPrefix"),
            api_prefix=_read_api_prefix(text("jetstreamPrefix"), text("jetstreamDomain")),
            connect_timeout=read_seconds(given, "connectTimeout", cls.connect_timeout),
            request_timeout=read_seconds(given, "requestTimeout", cls.request_timeout),
            retry_timeout=read_seconds(given, "retryTimeout", cls.retry_timeout),
        )

    async def connect(self, client: Client, **options: Any) -> None:
        """
        Connect a client of nats-py. Every server is tried twice.

        Args:
            client: One that was never connected.
            options: Further ones of nats-py's ``connect()``.

        Raises:
            DeliveryError: ``delivery-failed``; without a cause, because that may hold what is secret.
        """
        import nats.errors

        seen: list[Exception] = []

        async def remember(error: Exception) -> None:
            seen.append(error)

        try:
            await client.connect(**{**self._nats_options(client), "error_cb": remember, **options})
            self._check_tls(client)
        except nats.errors.NoServersError as error:
            reason = self._told(seen[-1] if seen else error)
        except Exception as error:  # nkeys, ssl and websocket libraries have their own
            reason = self._told(error)
        else:
            return
        raise DeliveryError(ErrorCode.DELIVERY_FAILED, f"cannot connect to {', '.join(self.servers)}: {reason}")

    def _nats_options(self, client: Client) -> dict[str, Any]:
        given = {
            "name": self.name,
            "user": self.user,
            "password": self._guarded(client, self.password),
            "token": self._guarded(client, self.token),
            "nkeys_seed": self.nkey_seed_file,
            "user_credentials": self.credentials_file,
            "tls": self._ssl_context(),
            "tls_hostname": self.tls_hostname,
            "inbox_prefix": self.inbox_prefix,
        }
        return {
            "servers": list(self.servers),
            "allow_reconnect": False,
            # 0 would mean without end.
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0.1,
            "connect_timeout": self.connect_timeout,
            "tls_handshake_first": self.tls_handshake_first,
            **{name: value for name, value in given.items() if value is not None},
        }

    def _guarded(self, client: Client, secret: str | None) -> str | Callable[[], str] | None:
        """
        A secret that is only told to a server that speaks TLS, where TLS is wanted.

        nats-py turns to TLS where the server asks for it, whatever the URL says; a server that does not ask, or
        somebody in front of it, would get the password in the clear.
        """
        import nats.aio.client

        # nats-py takes callbacks for passwords from 2.16 on.
        if secret is None or not hasattr(nats.aio.client, "CredentialCallback"):
            return secret

        def give() -> str:
            self._check_tls(client)
            return secret

        return give

    def _check_tls(self, client: Client) -> None:
        import nats.errors

        named = any(server.startswith("tls:") for server in self.servers)
        wanted = named or self.tls_ca_file or self.tls_cert_file or self.tls_hostname
        # Of a web socket, and of a handshake that comes first, TLS is the outer layer.
        is_outside = self.tls_handshake_first or self.servers[0].startswith("ws")
        if wanted and not is_outside and not client._server_info.get("tls_required"):
            raise nats.errors.SecureConnWantedError

    def _ssl_context(self) -> ssl.SSLContext | None:
        if not (self.tls_ca_file or self.tls_cert_file):
            return None  # nats-py makes one where the server wants TLS
        import ssl

        for path in filter(None, (self.tls_ca_file, self.tls_cert_file, self.tls_key_file)):
            with open(path, "rb"):  # ssl's own error does not say which file is missing
                pass
        context = ssl.create_default_context(cafile=self.tls_ca_file)
        if self.tls_cert_file:
            # Without any password OpenSSL asks for one, and waits.
            context.load_cert_chain(self.tls_cert_file, self.tls_key_file, self.tls_key_password or "")
        return context

    def _told(self, error: Exception) -> str:
        """An error in words, without what is secret."""
        import nats.errors

        if isinstance(error, ModuleNotFoundError) and error.name == "nkeys":
            return "nkeySeedFile and credentialsFile need the package nkeys: pip install 'nats-py[nkeys]'"
        text = str(error) if isinstance(error, (nats.errors.Error, OSError, asyncio.TimeoutError, ImportError)) else ""
        for secret in (self.password, self.token, self.tls_key_password):
            if secret:
                text = text.replace(secret, _HIDDEN)
        return text or type(error).__name__


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


_Credentials = tuple["str | None", "str | None", "str | None"]


def _read_servers(url: str | None, servers: str | None) -> tuple[tuple[str, ...], _Credentials | None]:
    """URLs without credentials, and the credentials that were in them: user, password, token."""
    if url and servers:
        raise ValueError("url and servers are two names for one option")
    given = [part.strip() for part in (url or servers or "").split(",")]
    if given == [""]:
        raise ValueError("option url is missing: nats://host:4222, or several such with commas between them")
    parts = [_read_url(text, number) for number, text in enumerate(given, 1)]
    credentials = {_credentials(part) for part in parts} - {None}
    if len(credentials) > 1:
        raise ValueError("the URLs have different users or tokens")
    bare = tuple(part._replace(netloc=part.netloc.rpartition("@")[2]).geturl() for part in parts)
    return bare, credentials.pop() if credentials else None


def _read_url(text: str, number: int) -> SplitResult:
    # The text is never shown: a password with a slash in it looks like a path, one with a colon like a port.
    try:
        part = urlsplit(text if "://" in text else f"nats://{text}")
        usable = bool(part.hostname) and part.scheme in _SCHEMES and part.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in part.path + part.query + part.fragment or (part.path.strip("/") and part.scheme[0] != "w"):
        raise ValueError(
            f"URL {number} of option url is not of the form nats://host:port, with nats, tls, ws or wss in front "
            "(special characters of a password are percent-encoded)"
        )
    return part


def _credentials(part: SplitResult) -> _Credentials | None:
    if not part.username:
        return None
    name = unquote(part.username)
    return (None, None, name) if part.password is None else (name, unquote(part.password), None)


def _check_together(
    user: str | None, password: str | None, token: str | None, seed: str | None, credentials: str | None
) -> None:
    if (user is None) != (password is None):
        raise ValueError("options user and password go together")
    # nats-py would take the first of these and leave out the others. (A token beside a key is for auth callouts.)
    ways = {"user": user, "nkeySeedFile": seed, "credentialsFile": credentials}
    given = [name for name, value in ways.items() if value]
    if len(given) > 1 or (user and token):
        raise ValueError(f"{' and '.join(given if len(given) > 1 else ['user', 'token'])} are two ways to log in")


def _read_api_prefix(prefix: str | None, domain: str | None) -> str:
    if prefix and domain:
        raise ValueError("jetstreamPrefix and jetstreamDomain say the same in two ways")
    if domain:
        return f"$JS.{domain}.API"
    return prefix.rstrip(".") if prefix else "$JS.API"
