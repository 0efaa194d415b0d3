"""Disturb servers and programs at random, one after the other."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from random import Random

from ce_nats.testing import NatsServer
from tests.support.linked_cluster import LinkedCluster

from .journal import STREAM
from .processes import Program

_POLL_SECONDS = 0.1
# Seconds between two disturbances, of an interruption of the network, and until a killed process is started again.
_BETWEEN = (3.0, 12.0)
_INTERRUPTION = (2.0, 12.0)
_DOWN = (0.0, 4.0)


class Chaos:
    """
    Disturbances, chosen with a seed. At most one server is down or isolated at any time.

    Args:
        cluster: The cluster.
        programs: The programs; those that are spared are not killed.
        seed: Seed of the choices.
        tick: Called while waiting, several times per second.

    Attributes:
        counts: Number of disturbances of each kind.
    """

    def __init__(
        self, cluster: LinkedCluster, programs: Sequence[Program], seed: int, tick: Callable[[], None]
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster, self._tick = cluster, tick
        self._programs = [program for program in programs if not program.is_spared]
        self._random = Random(seed)
        self._kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "kill of a program": (6 if self._programs else 0, self._kill_program),
            "kill of the leader of the stream": (2, lambda: self._kill_server(self._leader())),
            "kill of a server": (2, lambda: self._kill_server(self._server())),
            "rolling restart": (1, self._rolling_restart),
            "stalled network of a server": (2, lambda: self._isolate(self._cluster.links.stalled)),
            "cut network of a server": (2, lambda: self._isolate(self._cluster.links.cut)),
        }

    def run(self, until: float, ending: threading.Event) -> None:
        """Disturb until a time of ``time.monotonic()``, or until an event is set."""
        names, weights = list(self._kinds), [weight for weight, _ in self._kinds.values()]
        self._wait(*_BETWEEN)
        while time.monotonic() < until and not ending.is_set():
            (kind,) = self._random.choices(names, weights)
            self.counts[kind] += 1
            self._kinds[kind][1]()
            self._wait(*_BETWEEN)

    def heal(self) -> None:
        """Start all servers, and wait until they are a cluster."""
        for server in self._cluster.servers:
            server.start()
        self._cluster.wait_until_ready()

    def _wait(self, least: float, most: float) -> None:
        end = time.monotonic() + self._random.uniform(least, most)
        while time.monotonic() < end:
            self._tick()
            time.sleep(_POLL_SECONDS)

    def _kill_program(self) -> None:
        program = self._random.choice(self._programs)
        program.kill()
        self._wait(*_DOWN)
        program.start()

    def _kill_server(self, server: NatsServer) -> None:
        server.kill()
        self._wait(*_DOWN)
        server.restart()
        self._cluster.wait_until_ready()

    def _rolling_restart(self) -> None:
        for server in self._cluster.servers:
            server.restart()
            self._cluster.wait_until_ready()
            self._wait(0.5, 2.0)

    def _isolate(self, interruption: Callable[[int], AbstractContextManager[None]]) -> None:
        """Interrupt the network of a server, of the leader in half of the cases; maybe kill a program meanwhile."""
        server = self._leader() if self._random.random() < 0.5 else self._server()
        with interruption(self._cluster.servers.index(server)):
            self._wait(*_INTERRUPTION)
            if self._programs and self._random.random() < 0.3:
                self.counts["kill of a program"] += 1
                self._kill_program()
        self._cluster.wait_until_ready()

    def _leader(self) -> NatsServer:
        return self._cluster.leader(STREAM)

    def _server(self) -> NatsServer:
        return self._random.choice(self._cluster.servers)
