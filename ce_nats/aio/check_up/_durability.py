"""What a publisher requires of the stream that stores its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nats.aio.client import Client
from nats.js import JetStreamContext

from ..._numbers import check_count
from ...errors import DeliveryError, ErrorCode
from ...subjects import check_name, covers
from .._jetstream_api import StreamApi
from .._util.checks import check_client
from ..link._client import api_timeout
from ._check import checked_urls, describe_servers
from ._rules import Level, Needs, Stream, durability_findings


@dataclass(frozen=True)
class Durability:
    """
    Failures that acknowledged events must survive, for ``Publisher(require=)``.

        require = Durability("ORDERS", replicas=3, sync=True, monitor=["http://10.0.0.1:8222", ...])

    The stream must store its messages in files, and must not have ``persist_mode`` ``async``.

    Args:
        stream: Name of the stream.
        replicas: Least number of replicas.
        sync: Whether each server of the stream must sync each message (``sync_interval: always``). This needs
            ``monitor`` or ``system``: what is not known is refused.
        monitor: Monitoring URLs of the servers.
        system: A connection of a user of the system account, instead of ``monitor``.

    Raises:
        EncodeError: ``invalid-subject``: ``stream`` is not the name of a stream.
        ValueError: ``replicas`` is below 1, or ``monitor`` has something else than URLs.
        TypeError: ``system`` has another type.
    """

    stream: str
    replicas: int = 1
    sync: bool = False
    monitor: Sequence[str] = ()
    system: Client | None = None

    def __post_init__(self) -> None:
        check_name("stream", self.stream)
        check_count("replicas", self.replicas)
        checked_urls(self.monitor)
        if self.system is not None:
            check_client(self.system)


class RequiredStream:
    """A stream that has the required durability, and its subjects."""

    def __init__(self, name: str, subjects: Sequence[str]) -> None:
        self._name = name
        self._subjects = subjects

    @classmethod
    async def look_up(cls, js: JetStreamContext, require: Durability) -> RequiredStream:
        """
        Return the stream.

        Raises:
            DeliveryError: ``incompatible-config``: it has another durability, or that is not known; as :func:`check`
                does.
        """
        api = StreamApi.of(js)
        stream = Stream(*await api.description(require.stream))
        urls = checked_urls(require.monitor)
        servers = await describe_servers(api.nc, stream, urls, require.system, api_timeout(js))
        needs = Needs(replicas=require.replicas, sync=require.sync)
        found = [one for one in durability_findings(stream, needs, servers) if one.level is not Level.WARNING]
        if found:
            texts = "; ".join(one.text for one in found)
            raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, f"{stream.target}: required durability: {texts}")
        return cls(require.stream, stream.config.get("subjects") or [])

    def check(self, subject: str) -> None:
        """
        Check that this stream listens on a subject.

        Raises:
            DeliveryError: ``incompatible-config``.
        """
        if not any(covers(pattern, subject) for pattern in self._subjects):
            text = f"{subject}: it is not a subject of stream {self._name}, whose durability is required"
            raise DeliveryError(ErrorCode.INCOMPATIBLE_CONFIG, text)
