"""Connection settings: from arguments, URLs, environment variables and contexts of the nats command line."""

import pytest

from ce_nats._settings import ConnectionSettings, api_prefix, read_settings, resolve
from ce_nats.errors import CeNatsError, EncodeError, ErrorCode
from tests.support.contexts import context
from tests.support.tables import each

__all__ = ["context"]

SECRET = "S3cr3t"


def settled(given=None, **sources):
    return ConnectionSettings(**resolve(given or {}, **sources))


@each(
    ("servers", "urls"),
    [
        ("host", ("nats://host",)),
        ("host:4223", ("nats://host:4223",)),
        (" nats://one, tls://two:4443 ", ("nats://one", "tls://two:4443")),
        (["nats://one", "two:1,three:2"], ("nats://one", "nats://two:1", "nats://three:2")),
        (("wss://a/path",), ("wss://a/path",)),
        ("nats://[::1]:4222", ("nats://[::1]:4222",)),
    ],
)
def test_servers(servers, urls):
    assert ConnectionSettings(**read_settings({"servers": servers})).servers == urls


@each("scheme", ["http", "https", "HTTP", "amqp", "kafka", "redis+tls"])
def test_other_schemes_are_rejected_by_name(scheme):
    with pytest.raises(EncodeError) as info:
        read_settings({"servers": f"{scheme}://u:{SECRET}@host:4222"})
    assert info.value.code is ErrorCode.INVALID_OPTION
    assert info.value.message == (f"server URL must begin with nats://, tls://, ws:// or wss://, got {scheme}://...")
    with pytest.raises(EncodeError, match="server URL 2 must begin with"):
        read_settings({"servers": ["nats://host", f"{scheme}://host"]})


@each(
    ("given", "text"),
    [
        ({"servers": []}, "at least one URL"),
        ({"servers": ""}, "of the form"),
        ({"servers": "nats://a,"}, "server URL 2 must be of the form"),
        ({"servers": f"nats://u:{SECRET}/x@a"}, "of the form"),
        ({"servers": "nats://a,ws://b"}, "must be web sockets"),
        ({"servers": "ws://a", "tls_ca_file": "ca.pem"}, "must begin with wss://"),
        ({"servers": "ws://a,wss://b"}, "must begin with wss://"),
        ({"servers": f"nats://u:{SECRET}@a", "token": SECRET}, "in the URL or in the options, got both"),
        ({"user": "ada"}, "user and password must be given together"),
        (
            {"user": "ada", "password": SECRET, "credentials_file": "c"},
            "user and credentials_file must not be given together",
        ),
        ({"tls_key_file": "k"}, "tls_key_file must be given with tls_cert_file"),
        ({"connect_timeout": 0}, "connect_timeout must be a number of seconds above 0, got 0"),
        ({"connect_timeout": "5"}, "connect_timeout must be a number of seconds above 0, got '5'"),
        ({"js_domain": "a", "js_api_prefix": "b"}, "js_api_prefix and js_domain must not be given together"),
        ({"js_domain": "a.b"}, "js_domain must be a name without dots, got 'a.b'"),
        ({"js_api_prefix": "a.>"}, "js_api_prefix must be a subject without wildcards, got 'a.>'"),
        ({"js_api_prefix": "."}, "js_api_prefix must be a subject without wildcards, got '.'"),
    ],
)
def test_invalid_settings_are_rejected(given, text):
    with pytest.raises(EncodeError, match=text) as info:
        read_settings(given)
    assert info.value.code is ErrorCode.INVALID_OPTION
    assert SECRET not in str(info.value)


def test_servers_that_are_not_str_are_rejected():
    for servers in (4222, {"url": "nats://a"}, [b"nats://a"]):
        with pytest.raises(TypeError, match="servers must be a URL, or a list of URLs, got "):
            read_settings({"servers": servers})


@each(
    ("given", "wanted"),
    [
        ({}, False),
        ({"servers": "tls://a"}, True),
        ({"servers": "nats://a,tls://b"}, True),
        ({"servers": "wss://a"}, True),
        ({"tls_ca_file": "ca.pem"}, True),
        ({"tls_cert_file": "c.pem"}, True),
        ({"tls_hostname": "a"}, True),
        ({"tls_handshake_first": True}, True),
    ],
)
def test_settings_that_request_tls(given, wanted):
    assert ConnectionSettings(**read_settings(given)).wants_tls is wanted


def test_api_prefix():
    assert api_prefix(None, None) == "$JS.API"
    assert api_prefix("shop.api.", None) == "shop.api"
    assert api_prefix(None, "hub") == "$JS.hub.API"


def test_environment_and_context_are_not_used_by_default(context, monkeypatch):
    context(url="nats://selected", user="ada", password=SECRET, selected=True)
    monkeypatch.setenv("NATS_URL", "nats://variable")
    assert settled() == ConnectionSettings()
    assert settled(context="shop").servers == ("nats://selected",)


def test_arguments_precede_variables_and_context(context):
    context(url="nats://context", creds="/context.creds", inbox_prefix="_context", tls_first=True, selected=True)
    variables = {"NATS_URL": "nats://variable", "NATS_CA": "/variable.pem", "NATS_CREDS": ""}
    assert settled(environment={}).servers == ("nats://context",)
    assert settled(environment=variables) == ConnectionSettings(
        servers=("nats://variable",), tls_ca_file="/variable.pem"
    )  # the selected context is only used if no server is given
    found = settled({"servers": "nats://argument"}, environment={**variables, "NATS_CONTEXT": "shop"})
    assert found == ConnectionSettings(
        servers=("nats://argument",),
        credentials_file="/context.creds",
        inbox_prefix="_context",
        tls_ca_file="/variable.pem",
        tls_handshake_first=True,
    )


def test_only_one_authentication_method_is_used(context):
    """The first one that is given, without settings of other methods."""
    context(url=f"nats://eve:{SECRET}@context")
    found = settled(context="shop")
    assert (found.user, found.password, found.servers) == ("eve", SECRET, ("nats://context",))
    found = settled({"servers": "nats://argument"}, context="shop")
    assert (found.user, found.password) == (None, None)  # credentials in a URL are for its server
    found = settled({"credentials_file": "/own.creds"}, context="shop")
    assert (found.servers, found.credentials_file, found.user) == (("nats://context",), "/own.creds", None)

    context(user="eve", password=SECRET, token="t", creds="/c", nkey="/n")
    found = settled(context="shop")
    assert (found.user, found.token, found.credentials_file, found.nkey_seed_file) == ("eve", None, None, None)
    found = settled({"password": "own"}, context="shop")
    assert (found.user, found.password) == ("eve", "own")
    found = settled({"token": "own"}, context="shop")
    assert (found.user, found.password, found.token) == (None, None, "own")

    variables = {"NATS_USER": "ada", "NATS_PASSWORD": SECRET}
    found = settled({"nkey_seed_file": "/n"}, environment=variables)
    assert (found.user, found.password, found.nkey_seed_file) == (None, None, "/n")


def test_user_without_password(context):
    """It is a token if the environment or a context is used, as for the nats command line."""
    context(token="t0ken")
    assert settled({"user": "t0ken"}, environment={}).token == "t0ken"
    assert settled(environment={"NATS_PASSWORD": SECRET}) == ConnectionSettings()
    assert settled(context="shop").token == "t0ken"
    with pytest.raises(EncodeError, match="must be given together"):
        settled({"user": "t0ken"})


def test_jetstream_of_a_context(context):
    context(jetstream_api_prefix="shop.api")
    assert settled(context="shop").api_prefix == "shop.api"
    assert settled({"js_domain": "hub"}, context="shop").api_prefix == "$JS.hub.API"
    context(jetstream_api_prefix="shop.api", jetstream_domain="hub")
    with pytest.raises(EncodeError, match="must not be given together"):
        settled(context="shop")


def test_missing_and_invalid_contexts_are_errors(context, tmp_path):
    with pytest.raises(CeNatsError, match="context 'other' cannot be read"):
        settled(context="other")
    (tmp_path / "nats" / "context" / "bad.json").write_text("[]")
    with pytest.raises(CeNatsError, match="context 'bad' must be a JSON object"):
        settled(context="bad")


def test_secrets_are_hidden():
    settings = ConnectionSettings(password=f"{SECRET}1", token=f"{SECRET}2", tls_key_password=f"{SECRET}3")
    assert SECRET not in f"{settings!r} {settings} {[settings]}"
    assert settings.hidden(f"a {SECRET}1 b {SECRET}2 c {SECRET}3") == "a *** b *** c ***"
    assert ConnectionSettings(password="x").hidden("/x.pem: next") == "/***.pem: next"
