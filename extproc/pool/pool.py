"""Who is in one pool, and how loaded is each of them?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from extproc.endpoint import Address, Endpoint
from extproc.pool.drains import Drains
from extproc.pool.first_tokens import FirstTokenCounts
from extproc.pool.member import Member
from extproc.pool.reservation import Reservation
from extproc.pool.sample import LoadSample
from extproc.pool.starting import StartTimes, start_s
from extproc.pool.warm_up import Company


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """What a new endpoint set changed."""

    added: tuple[Endpoint, ...]
    removed: tuple[Endpoint, ...]
    updated: tuple[Endpoint, ...]  # same address, other options


MODELS_STALE_AFTER_S = 30.0  # three of the intervals at which servers are asked for them
_MOST_REMEMBERED = 4096  # names with their servers; all of them are names that servers gave

# Given those that came and those that left.
Watcher = Callable[[Sequence[Member], Sequence[Member]], None]


class Pool:
    """The members of one Envoy cluster. Not thread-safe: one event loop owns it."""

    def __init__(
        self,
        name: str,
        *,
        stale_after_s: float,
        models_stale_after_s: float = MODELS_STALE_AFTER_S,
        probed: bool = False,
        unix_s: float | None = None,
    ) -> None:
        """`models_stale_after_s`: a server that cannot be asked for its models any more is believed for so long.
        `probed`: somebody asks servers for their /health. `unix_s`: the time of day at 0 of the clock; see `starting`.
        """
        self.name = name
        self.members: tuple[Member, ...] = ()  # replaced as a whole when membership changes
        self.drains = Drains()
        self.starts = StartTimes()
        self.first_tokens = FirstTokenCounts()
        self.known = False  # its source has said who they are; nobody, perhaps
        self.mixed = False  # not all members are known to serve the same: a pick must look at the request's model
        self._all_unknown = True  # of no member it is known what it serves
        self._models_stale_after_s = models_stale_after_s
        self._serving: dict[str, tuple[Member, ...]] = {}  # by model; only names that a member is known to serve
        self._stale_after_s = stale_after_s
        self._probed = probed
        self._unix_s = unix_s
        self._company = Company()
        self._by_address: dict[Address, Member] = {}
        self._leaving: list[Member] = []  # gone, with requests still in flight
        self._watchers: list[Watcher] = []

    def member(self, address: Address | None) -> Member | None:
        return self._by_address.get(address) if address is not None else None

    def set_endpoints(self, endpoints: Iterable[Endpoint]) -> MembershipChange:
        """Make the pool exactly these. Of several with one address the first counts.

        An address whose `uid` is another one than before has another server behind it: the old one has left.
        """
        self.known = True
        wanted: dict[Address, Endpoint] = {}
        for endpoint in endpoints:
            wanted.setdefault(endpoint.address, endpoint)
        stay = {
            address: member
            for address, member in self._by_address.items()
            if address in wanted and wanted[address].uid == member.endpoint.uid
        }
        removed = [member for address, member in self._by_address.items() if address not in stay]
        added, updated, returned = [], [], []
        members: dict[Address, Member] = {}
        for address, endpoint in wanted.items():
            member = stay.get(address)
            if member is None:
                added.append(endpoint)
                member = Member(endpoint, stale_after_s=self._stale_after_s, probed=self._probed, company=self._company)
            elif member.endpoint != endpoint:
                updated.append(endpoint)
                member.endpoint = endpoint
                if member.heed_endpoint() is not None:
                    returned.append(member)
                member.restand()
            members[address] = member
            member.judge_models()
        for member in removed:
            member.gone = True
        self._leaving = [m for m in (*self._leaving, *removed) if m.in_flight]
        self._by_address = members
        self.members = tuple(members.values())
        self._company.members = len(self.members)
        self._company.warming = sum(member.warm_up.warming for member in self.members)
        self._company.changed()
        self._models_changed()
        self.drains.membership(self.members, removed, returned)
        for watcher in self._watchers:
            watcher([members[endpoint.address] for endpoint in added], removed)
        return MembershipChange(tuple(added), tuple(m.endpoint for m in removed), tuple(updated))

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` called after each change of the members."""
        self._watchers.append(watcher)

    @property
    def all_ready(self) -> bool:
        """Whether nothing is held against any of the members, and nobody wants one to get no new requests."""
        ready = self._company.all_ready
        if ready is None:
            ready = self._company.all_ready = all(each.health.sound and each.out is None for each in self.members)
        return ready

    @property
    def leaving(self) -> tuple[Member, ...]:
        """Servers that left the pool while requests of ours still run on them."""
        self._leaving = [m for m in self._leaving if m.in_flight]
        return tuple(self._leaving)

    def observe(self, address: Address, sample: LoadSample) -> list[Reservation]:
        """Take in a sample; see `Member.observe`. Unknown addresses are ignored: the scrape outlived the member."""
        member = self._by_address.get(address)
        if member is None:
            return []
        before = member.sample
        if before is not None:
            self.first_tokens.add(before.ttft, sample.ttft)
        presumed = member.observe(sample)
        self._note_start(member)
        return presumed

    def _note_start(self, member: Member) -> None:
        """If it has come to serve since it was asked for the first time, keep how long that took, once."""
        if member.start_s is None:
            member.start_s = start_s(member.health, member.sample, self._unix_s)
            if member.start_s is not None:
                self.starts.add(member.start_s)

    def scrape_failed(self, address: Address, error: str, now: float, *, answered: bool, refused: bool) -> None:
        """Take in a failed scrape; see `Health.scrape_failed`."""
        member = self._by_address.get(address)
        if member:
            member.health.scrape_failed(error, now, answered=answered, refused=refused)

    def to_probe(self, now: float) -> list[Endpoint]:
        """Whose /health should be asked for; see `Health.to_probe`."""
        return [member.endpoint for member in self.members if member.health.to_probe(now)]

    def members_serving(self, model: str) -> tuple[Member, ...]:
        """Those that serve it, or of which that is not known; `members` itself if these are all."""
        if self._all_unknown:
            return self.members
        found = self._serving.get(model)
        return self._find_serving(model) if found is None else found

    def told_models(self, address: Address, models: frozenset[str], at_s: float) -> None:
        """A server says what it serves; it was asked at `at_s`."""
        member = self._by_address.get(address)
        if member is not None and at_s > member.models_at_s:
            member.told_models, member.models_at_s, member.models_error = models, at_s, None
            self._rejudge(member)

    def doubt_models(self, address: Address) -> None:
        """A server may serve something else by now: what it said before is no ground to refuse a request."""
        member = self._by_address.get(address)
        if member is not None:
            member.models_at_s = float("-inf")

    def models_failed(self, address: Address, error: str, at_s: float, *, refused: bool = False) -> None:
        """A server did not say what it serves; what it said before is believed for `models_stale_after_s`.

        `refused`: nobody listens there. Then nothing can have been loaded either, and what it said before still holds.
        """
        member = self._by_address.get(address)
        if member is None:
            return
        member.models_error = error
        if refused and member.told_models is not None:
            member.models_at_s = max(member.models_at_s, at_s)
        if member.told_models is not None and at_s - member.models_at_s > self._models_stale_after_s:
            member.told_models = None
            self._rejudge(member)

    def _rejudge(self, member: Member) -> None:
        if member.judge_models():
            self._models_changed()

    def _models_changed(self) -> None:
        self._serving.clear()
        different = {member.models for member in self.members}
        self.mixed = len(different) > 1
        self._all_unknown = different <= {None}

    def _find_serving(self, model: str) -> tuple[Member, ...]:
        found = tuple([m for m in self.members if m.models is None or model in m.models])
        if len(found) == len(self.members):
            found = self.members
        if any(m.models is not None for m in found):  # else the name is only the client's: it gets no room here
            if len(self._serving) >= _MOST_REMEMBERED:
                self._serving.clear()
            self._serving[model] = found
        return found

    def can_pick(self, now: float) -> bool:
        """Whether a pick would not be blind: a server is seen to serve, and its load is known."""
        return any(member.health.reached and member.fresh_sample(now) is not None for member in self.members)
