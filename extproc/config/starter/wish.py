"""What is to stand in front of which servers, and does it fit together?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from extproc.config.problems import suggest
from extproc.config.settings import WORKER_PORTS_APART
from extproc.config.starter.place import Place
from extproc.scheduling.profiles import PROFILES


class Shape(StrEnum):
    """What Envoy sends of a request, and when (docs/envoy.md)."""

    BODY_FIRST = "body-first"
    HEADERS_THEN_BODY = "headers-then-body"
    FULL_DUPLEX = "full-duplex"


_LAST_PORT = 65535
USUAL = {
    "listen": Place("0.0.0.0", 8080),
    "grpc": Place("127.0.0.1", 9002),
    "admin": Place("127.0.0.1", 9003),
    "envoy-admin": Place("127.0.0.1", 9901),
}
"""The ports that are opened, by the name of the option that moves them."""


class WishError(ValueError):
    """Something that cannot be; `option` is the one to change, without dashes."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True, slots=True)
class Wish:
    """All that a starting configuration depends on. Raises WishError for what does not fit together."""

    servers: tuple[Place, ...]  # empty: not known yet
    ports: Mapping[str, Place]  # with the keys of USUAL
    profile: str | None = None  # None: the shipped one
    shape: Shape = Shape.BODY_FIRST
    models: tuple[str, ...] = ()  # that each server serves, as far as they do not tell it themselves
    api_key_file: str | None = None  # of the servers
    max_servers: int | None = None  # set: the pool is told how many servers it should have
    servers_file: str | None = None  # set: the servers stand there, and are followed
    workers: int = 1  # processes of extproc that answer Envoy

    def __post_init__(self) -> None:
        if self.profile is not None and self.profile not in PROFILES:
            raise WishError("profile", f'unknown "{self.profile}"; {suggest(self.profile, PROFILES)}')
        if self.max_servers is not None and self.max_servers < len(self.servers):
            raise WishError("autoscale", f"{self.max_servers} is less than the {len(self.servers)} servers given")
        if self.servers_file is not None and self.shape is not Shape.BODY_FIRST:
            raise WishError("servers-file", f"goes with --shape {Shape.BODY_FIRST} only; leave one of both out")
        opened = [*self.ports.items(), *(("grpc", place) for place in self.worker_places[1:])]
        for (name, one), (other, two) in combinations(opened, 2):
            if one.clashes(two):
                raise WishError(name, f"{one.text} is the port of --{other} too; choose another for one of them")
        for name, place in opened:
            for each in self.servers:
                if place.clashes(each):
                    raise WishError(name, f"{place.text} is the port of server {each.text}; choose another")
        if self.worker_places[-1].port > _LAST_PORT:
            raise WishError("grpc", f"leaves no ports for {self.workers} workers, {WORKER_PORTS_APART} apart")

    @property
    def worker_places(self) -> tuple[Place, ...]:
        """Where each worker listens."""
        first = self.ports["grpc"]
        return tuple(Place(first.host, first.port + WORKER_PORTS_APART * number) for number in range(self.workers))

    @property
    def by_name(self) -> bool:
        """A server at least has a DNS name."""
        return any(each.is_name for each in self.servers)


def settle(servers: tuple[Place, ...], given: Mapping[str, Place]) -> tuple[dict[str, Place], list[str]]:
    """All ports: those given, and for the others the usual one, or the next above it that neither a server on this
    machine nor another port has; and in words which were moved."""
    ports = dict(given)
    moved = []
    for name, usual in USUAL.items():
        if name in given:
            continue
        place = usual
        while any(place.clashes(other) for other in (*servers, *ports.values())):
            place = Place(place.host, place.port + 1)
        if place != usual:
            moved.append(f"--{name} is {place.text}: port {usual.port} is in use above")
        ports[name] = place
    return {name: ports[name] for name in USUAL}, moved
