"""Who is in one pool, and how loaded is each of them?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from extproc.endpoint import Address, Endpoint
from extproc.pool.member import Member
from extproc.pool.reservation import Reservation
from extproc.pool.sample import LoadSample


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """What a new endpoint set changed."""

    added: tuple[Endpoint, ...]
    removed: tuple[Endpoint, ...]
    updated: tuple[Endpoint, ...]  # same address, other options


# Given those that came and those that left.
Watcher = Callable[[Sequence[Member], Sequence[Member]], None]


class Pool:
    """The members of one Envoy cluster. Not thread-safe: one event loop owns it."""

    def __init__(self, name: str, *, stale_after_s: float) -> None:
        self.name = name
        self.members: tuple[Member, ...] = ()  # replaced as a whole when membership changes
        self._stale_after_s = stale_after_s
        self._by_address: dict[Address, Member] = {}
        self._leaving: list[Member] = []  # gone, with requests still in flight
        self._watchers: list[Watcher] = []

    def member(self, address: Address | None) -> Member | None:
        return self._by_address.get(address) if address is not None else None

    def set_endpoints(self, endpoints: Iterable[Endpoint]) -> MembershipChange:
        """Make the pool exactly these. Of several with one address the first counts."""
        wanted: dict[Address, Endpoint] = {}
        for endpoint in endpoints:
            wanted.setdefault(endpoint.address, endpoint)
        removed = [member for address, member in self._by_address.items() if address not in wanted]
        added, updated = [], []
        members: dict[Address, Member] = {}
        for address, endpoint in wanted.items():
            member = self._by_address.get(address)
            if member is None:
                added.append(endpoint)
                member = Member(endpoint, stale_after_s=self._stale_after_s)
            elif member.endpoint != endpoint:
                updated.append(endpoint)
                member.endpoint = endpoint
            members[address] = member
        for member in removed:
            member.gone = True
        self._leaving = [m for m in (*self._leaving, *removed) if m.in_flight]
        self._by_address = members
        self.members = tuple(members.values())
        for watcher in self._watchers:
            watcher([members[endpoint.address] for endpoint in added], removed)
        return MembershipChange(tuple(added), tuple(m.endpoint for m in removed), tuple(updated))

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` called after each change of the members."""
        self._watchers.append(watcher)

    @property
    def leaving(self) -> tuple[Member, ...]:
        """Servers that left the pool while requests of ours still run on them."""
        self._leaving = [m for m in self._leaving if m.in_flight]
        return tuple(self._leaving)

    def observe(self, address: Address, sample: LoadSample) -> list[Reservation]:
        """Take in a sample; see `Member.observe`. Unknown addresses are ignored: the scrape outlived the member."""
        member = self._by_address.get(address)
        return member.observe(sample) if member else []

    def scrape_failed(self, address: Address, error: str, now: float, *, answered: bool, refused: bool) -> None:
        """Take in a failed scrape; see `Health.scrape_failed`."""
        member = self._by_address.get(address)
        if member:
            member.health.scrape_failed(error, now, answered=answered, refused=refused)

    def has_usable_sample(self, now: float) -> bool:
        return any(member.fresh_sample(now) is not None for member in self.members)
