"""What does one Envoy want to be told on its stream, and what has it been told?

The state-of-the-world protocol, without a stream: requests in, answers out.

* Its first request names what it wants. A `version_info` in it is of an earlier stream, perhaps to another process: it
  tells that Envoy holds something, and never that it need not be answered.
* Each answer has a nonce. The request that repeats it accepts the answer, or refuses it with `error_detail`. What is
  refused is not sent again before it has changed. A request with an older nonce crossed with an answer: it is passed
  over, since the one that follows says the same and more.
* Whatever it did not want before, it is told, although it has not changed.
* A cluster waits (is "warming") until it is told of. So a name that nobody knows here is answered with no hosts, except
  where Envoy may hold hosts under it from before: it keeps them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from xxhash import xxh3_64_hexdigest

from extproc.pb.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from extproc.server.assignment import TYPE_URL, Assignment, nobody

_EVERYTHING = "*"


class UnknownTypeError(ValueError):
    """Envoy asks for another type of resource."""


class Subscription:
    """One stream."""

    def __init__(self) -> None:
        self.node = ""  # node.id of Envoy
        self.cluster = ""  # node.cluster of Envoy
        self.names: frozenset[str] = frozenset()  # asked for
        self.accepted: str | None = None  # the version of the last answer that Envoy took; None: none yet
        self.refusal: str | None = None  # why it refused the last one; None: it did not
        self.sent: str | None = None  # the version of the last answer; None: none yet
        self._asked = False
        self._all = False
        self._held: frozenset[str] = frozenset()  # Envoy may have hosts for these from before
        self._told: dict[str, str] = {}  # versions, by name
        self._answers = 0

    @property
    def nonce(self) -> str:
        return str(self._answers) if self._answers else ""

    def receive(self, request: DiscoveryRequest) -> bool:
        """Take in a request; false when it is an old one, which is passed over.

        Raises:
            UnknownTypeError: as its docstring says.
        """
        if request.type_url not in ("", TYPE_URL):
            raise UnknownTypeError(f"only {TYPE_URL} is served here, not {request.type_url}")
        if self._asked and request.response_nonce not in ("", self.nonce):
            return False
        if request.node.id:
            self.node, self.cluster = request.node.id, request.node.cluster
        names = frozenset(request.resource_names)
        if not self._asked:
            self._held = names if request.version_info else frozenset()
        self._all = _EVERYTHING in names or (not names and (self._all or not self._asked) and not self.names)
        self._asked = True
        for name in self.names - names:
            self._told.pop(name, None)
        self._held &= names
        self.names = names
        if self._answers and request.response_nonce:
            self.refusal = request.error_detail.message if request.HasField("error_detail") else None
            if self.refusal is None:
                self.accepted = request.version_info
        return True

    def wanted(self, pools: Collection[str]) -> list[str]:
        """The names to be answered."""
        return sorted((self.names - {_EVERYTHING}).union(pools) if self._all else self.names)

    def answer(
        self, known: Mapping[str, Assignment], unsure: Collection[str] = (), *, overdue: bool = False
    ) -> bytes | None:
        """The next DiscoveryResponse; None: there is nothing new to say.

        `unsure`: names whose members are not known yet. They are not answered, except, once `overdue`, to an Envoy that
        holds nothing under them: it may be waiting to start.
        """
        if not self._asked:
            return None
        resources: dict[str, Assignment] = {}
        for name in self.wanted(known):
            found = known.get(name)
            if found is not None:
                resources[name] = found
            elif name not in self._held and (overdue or name not in unsure):
                resources[name] = nobody(name)
        told = {name: found.version for name, found in resources.items()}
        if told.items() <= self._told.items():
            return None
        self._told.update(told)
        self._answers += 1
        versions = list(told.values())
        self.sent = versions[0] if len(versions) == 1 else xxh3_64_hexdigest("".join(versions).encode())
        response = DiscoveryResponse(version_info=self.sent, type_url=TYPE_URL, nonce=self.nonce)
        for found in resources.values():
            response.resources.add(type_url=TYPE_URL, value=found.resource)
        return response.SerializeToString()
