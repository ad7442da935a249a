"""Of the servers that may be picked, in which order does a request prefer them?

Joins what the packages below know separately: what the prompt is (`openai`), who holds how much of it (`prefix`), whom
its keys prefer (`affinity`), and what it would cost where (`scheduling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from extproc.affinity.bound import bounded
from extproc.affinity.conversations import Conversations, number_of
from extproc.affinity.ring import Ring
from extproc.affinity.stored import StoredResponses
from extproc.openai.understand import SESSION_FIELDS, understand
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.pool.reservation import Prompt
from extproc.pool.sample import LoadSample
from extproc.prefix.approximate import DEFAULT_MAX_BLOCKS, ApproximateIndex
from extproc.prefix.blocks import BLOCK_BYTES, UNITS_UP_TO
from extproc.prefix.turns import NOTHING, PromptBlocks, learn, match_prompt, prompt_blocks
from extproc.request import ApiKind, InferenceRequest, RawRequest
from extproc.scheduling.costs import Cost, first_token_s, least_loaded
from extproc.scheduling.pickers import cheapest, cheapest_s
from extproc.scheduling.profiles import By, Profile
from extproc.scheduling.tally import Tally
from extproc.scheduling.work import UNKNOWN, Work
from extproc.value import value

UNIT_TOKENS = 64  # what a unit of the prefix index stands for
TOKENS_UP_TO = tuple([float(units * UNIT_TOKENS) for units in UNITS_UP_TO])  # by how many leading blocks of a prompt
_TOKENS_PER_BYTE = UNIT_TOKENS / BLOCK_BYTES
# The key of `prefix-hash` is the chain up to this block: 256 tokens, past what all chats of an application begin with,
# and within what the shared part of a document is.
KEY_BLOCKS = 4


@value
class Placed:
    """One request's order of preference."""

    order: list[int]  # indices of the candidates, the first choice first
    by: By  # the way that decided
    request: InferenceRequest | None = None  # None: the profile does not read bodies
    blocks: PromptBlocks = NOTHING
    work: Work = UNKNOWN
    conversation: int | None = None  # the number of its session key; None: it has none, or it was not read
    loads: Sequence[float] = ()  # in flight by weight, by candidate; only for By.PREFIX and By.SESSION
    costs_s: Sequence[float] = ()  # by candidate; only for By.FIRST_TOKEN
    load_costs: Sequence[Cost] = ()  # by candidate; only for By.LOAD
    drawn_by: By | None = None  # whose key ordered equal servers, with By.FIRST_TOKEN; None: a lot
    # By.STORED decides the first alone; the others, and what is here of all, are by the way that the profile has.

    def uncached_tokens(self, member: Member) -> float | None:
        """Of the prompt, what that server must compute; None: the profile does not read prompts."""
        return None if self.request is None else self.work.uncached_at(member.slot)


class Placement:
    """How one pool's requests are placed, and what is remembered for it: who holds which prefixes, who has which stored
    responses, how long conversations get, and the ring."""

    def __init__(
        self,
        pool: Pool,
        *,
        max_blocks: int = DEFAULT_MAX_BLOCKS,
        session_headers: Sequence[str] = (),
        session_fields: Sequence[str] = SESSION_FIELDS,
    ) -> None:
        self._index = ApproximateIndex(max_blocks)
        self._untaught: tuple[int, PromptBlocks] | None = None  # what the last pick has yet to teach it, by slot
        self.stored: StoredResponses[Member] = StoredResponses()
        self.conversations = Conversations()
        self.tally = Tally()
        self._pool = pool
        self._ring = Ring()
        self._mask = 0  # of all members' slots
        self._session_headers = tuple(name.lower() for name in session_headers)
        self._session_fields = tuple(session_fields)
        self._members_changed(pool.members, ())
        pool.watch(self._members_changed)

    @property
    def index(self) -> ApproximateIndex:
        """Who holds what, by all picks there were."""
        self.settle()
        return self._index

    def settle(self) -> None:
        """Teach the index the last pick's prompt. Whoever looks at the index has that done before, so to do it sooner
        changes nothing but who waits for it."""
        if self._untaught is not None:
            slot, blocks = self._untaught
            self._untaught = None
            learn(self._index, slot, blocks)

    def observed(self, member: Member, before: LoadSample | None, sample: LoadSample, *, anew: bool) -> None:
        """A sample came: keep the index like the server's cache. `anew`: it was restarted since the one before."""
        if sample.block_size_tokens and sample.kv_blocks:
            tokens = sample.block_size_tokens * sample.kv_blocks * max(1, sample.engines)
            self.index.set_capacity(member.slot, tokens // UNIT_TOKENS)
        if before is None:
            return
        if anew:
            self.stored.forget((member,))
        if anew or sample.sleeping:
            self.index.forget(member.slot)
        elif before.generation_tokens is not None and sample.generation_tokens is not None:
            self.index.occupy(member.slot, int(sample.generation_tokens - before.generation_tokens) // UNIT_TOKENS)

    def read(self, raw: RawRequest) -> InferenceRequest:
        """What it asks for. Never raises."""
        return understand(raw, session_headers=self._session_headers, session_fields=self._session_fields)

    def cut(self, request: InferenceRequest) -> tuple[PromptBlocks, float]:
        """Its prompt's blocks, and how many tokens it should have."""
        blocks = prompt_blocks(request, model=request.model) if request.no_prompt is None else NOTHING
        return blocks, len(request.prompt) * _TOKENS_PER_BYTE

    def place(
        self,
        request: InferenceRequest | None,
        profile: Profile,
        candidates: Sequence[Member],
        count: int,
        now: float,
        rng: Random,
    ) -> Placed:
        """Order the best `count` of the candidates, of which there is at least one. `request` is None when it was not
        read; it must be when the profile reads bodies."""
        if request is None or not profile.reads_body:
            costs = least_loaded(candidates, now)
            return Placed(cheapest(costs, count, rng), By.LOAD, load_costs=costs)
        placed = self._by_ways(request, profile, candidates, count, now, rng)
        if request.response_id is not None and request.kind is ApiKind.RESPONSES:
            holder = self.stored.who(request.response_id, now)
            first = next((i for i, member in enumerate(candidates) if member is holder), None)
            if first is not None:  # it is neither unknown nor left out of the candidates
                order = [first, *(i for i in placed.order if i != first)][:count]
                placed = replace(placed, order=order, by=By.STORED)
        return placed

    def _by_ways(
        self,
        request: InferenceRequest,
        profile: Profile,
        candidates: Sequence[Member],
        count: int,
        now: float,
        rng: Random,
    ) -> Placed:
        """The order by the first way of the profile that has what it needs."""
        blocks, prompt_tokens = self.cut(request)
        held = match_prompt(self.index, blocks, self._mask, TOKENS_UP_TO) if blocks.hashes else {}
        conversation = None if request.session_key is None else number_of(request.session_key)
        to_come = 0.0 if conversation is None else self.conversations.to_come(conversation)
        work = Work(prompt_tokens, held, conversation is not None, to_come)
        for by in profile.ways:
            if by is By.FIRST_TOKEN and request.no_prompt is None:
                complete = len(candidates) == len(self._pool.members)
                costs_s = first_token_s(candidates, work, now, complete=complete)
                drawn_by, draw_key = _draw_key(conversation, blocks, work)
                order = cheapest_s(costs_s, candidates, count, rng, draw_key)
                return Placed(order, by, request, blocks, work, conversation, costs_s=costs_s, drawn_by=drawn_by)
            key = self._key(by, request, blocks)
            if key is not None:
                loads = [member.load for member in candidates]
                order = self._by_key(key, candidates, loads, count)
                return Placed(order, by, request, blocks, work, conversation, loads)
        costs = least_loaded(candidates, now)
        order = cheapest(costs, count, rng)
        return Placed(order, By.LOAD, request, blocks, work, conversation, load_costs=costs)

    def learn(self, placed: Placed, member: Member, now: float) -> None:
        """The request went there: the server will hold its prompt, and perhaps its response."""
        request, hashes = placed.request, placed.blocks.hashes
        self.tally.add(placed.by, request, blocks=len(hashes), work=placed.work, slot=member.slot)
        if hashes:
            self.settle()
            self._untaught = member.slot, placed.blocks
        if request is None:
            return
        if placed.conversation is not None:
            self.conversations.add(placed.conversation)
        if request.stores:
            if placed.by is By.STORED and request.response_id is not None:
                self.stored.put(request.response_id, member, now)  # who asks again and again is not forgotten
            if request.own_response_id is not None:
                self.stored.put(request.own_response_id, member, now)

    def learn_prompt(self, prompt: Prompt, member: Member) -> None:
        """Another server than the one it was picked for serves the request. The other may hold it, too: that is left
        to be forgotten in time."""
        if self._pool.member(member.address) is member:  # its slot is one of this pool's
            self.index.insert(member.slot, prompt.hashes, prompt.mark)

    def alone_tokens(self, member: Member) -> float:
        """About so many tokens does this member of the pool hold that no other does."""
        return self.index.alone(member.slot) * UNIT_TOKENS

    def _members_changed(self, added: Sequence[Member], removed: Sequence[Member]) -> None:
        for member in removed:
            self.index.remove(member.slot)
        if removed:
            self.stored.forget(removed)
        usual = self._usual_rate()  # of those that were here before
        for member in added:
            member.introduce(self.index.add_endpoint(), usual)
        self._mask = sum(1 << member.slot for member in self._pool.members)
        self._ring.update({str(member.address): member.endpoint.weight for member in self._pool.members})

    @staticmethod
    def _key(by: By, request: InferenceRequest, blocks: PromptBlocks) -> bytes | str | None:
        """What a way by consistent hashing goes by; None: the request has none, or the way is another."""
        if by is By.PREFIX and blocks.hashes:
            return blocks.hashes[min(KEY_BLOCKS, len(blocks.hashes)) - 1].to_bytes(8, "little")
        return request.session_key if by is By.SESSION else None

    def _by_key(self, key: bytes | str, candidates: Sequence[Member], loads: Sequence[float], count: int) -> list[int]:
        names = [member.endpoint.address.text for member in candidates]
        numbers = dict(zip(names, range(len(names)), strict=True))
        in_flight = dict(zip(names, loads, strict=True))
        return [numbers[name] for name in bounded(self._ring.preference(key), in_flight)[:count]]

    def _usual_rate(self) -> float | None:
        """The prior of a newcomer: what its pool mates do, by their median; None: there are none."""
        rates = sorted([member.prefill.rate for member in self._pool.members if member.slot >= 0])
        return rates[len(rates) // 2] if rates else None


def _draw_key(conversation: int | None, blocks: PromptBlocks, work: Work) -> tuple[By | None, int | None]:
    """What equal servers are ordered by: the conversation or user, else the prompt's first blocks.

    Only for a beginning: where all servers hold what all requests begin with, one order for all of them would have
    the same servers always filled first (256 simulated servers, W3: mean 324 ms against 243).
    """
    if not work.begins_something:
        return None, None
    if conversation is not None:
        return By.SESSION, conversation
    hashes = blocks.hashes
    return (By.PREFIX, hashes[min(KEY_BLOCKS, len(hashes)) - 1]) if hashes else (None, None)


def restarted(before: LoadSample, sample: LoadSample) -> bool:
    """Whether another process answers than before, by its start time or by counters that began anew."""
    if before.process_start_s is not None and sample.process_start_s is not None:
        return before.process_start_s != sample.process_start_s
    return any(
        old is not None and new is not None and new < old
        for old, new in (
            (before.prompt_tokens, sample.prompt_tokens),
            (before.generation_tokens, sample.generation_tokens),
            (before.prefix_queries_tokens, sample.prefix_queries_tokens),
        )
    )
