"""What does one process have to tell the others of its requests, and what does it make of what they tell?

Every process holds the picks of all in its own router, and applies to them what any of them hears. So all have the same
charges, the same judgement of the servers and the same index, but for what is on the way. For each pick one process
answers: the one that made it, or who took it over when that died. It alone says when the charge ends.

No order is relied on, and no message:

* A pick that was told twice is held once; one that is told after its end is learned and not held.
* What tells of a pick that is not known does nothing; what the log tells is kept until it is.
* Now and then who answers for picks says which of them are open (`Census`): an end that was lost is made up for.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from extproc.decision import Completion, Pick
from extproc.endpoint import Address
from extproc.pool.member import Member
from extproc.pool.reservation import Reservation
from extproc.prefix.turns import PromptBlocks
from extproc.router import Router
from extproc.workers.messages import Answered, Census, Completed, Ended, Message, Picked, Stored, Taught

WINDOW = 4096  # numbers of picks that are told apart; what comes later than so many others counts as known
TAUGHT_BLOCKS = 250_000  # of the prompts that are kept for processes to come: 2 MB
EARLY = 1024  # picks that are not known yet of which something is kept
LAST_CENSUSES = 60  # of a process that died, once none of its picks is open


class Numbers:
    """Which of the numbers from 1 on were there? The last ones exactly, with all that is long past taken for there."""

    __slots__ = ("_above", "_below")

    def __init__(self) -> None:
        self._below = 1  # all below were there
        self._above: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number < self._below or number in self._above

    def add(self, number: int) -> bool:
        """False: it was there before."""
        if number in self:
            return False
        above = self._above
        above.add(number)
        if len(above) > WINDOW:
            self._below = sorted(above)[WINDOW // 2]
            self._above = above = {each for each in above if each >= self._below}
        while self._below in above:
            above.remove(self._below)
            self._below += 1
        return True


class _Process:
    """What is known of the picks of one process."""

    def __init__(self) -> None:
        self.open: dict[int, Reservation] = {}  # by number
        self.picked = Numbers()
        self.ended = Numbers()


class Sharing:
    """One process's part; a `Witness` of its router. Times are of the monotonic clock, in seconds."""

    def __init__(
        self, router: Router, *, keep_taught: bool = False, on_news: Callable[[], None] = lambda: None
    ) -> None:
        """`keep_taught`: remember prompts, for processes that start later. `on_news`: called when there is something to
        tell again, after there was nothing."""
        self._router = router
        self._own: dict[str, dict[int, Reservation]] = {router.id_prefix: {}}  # open, that we answer for, by prefix
        self._last = 0  # number of our own last pick
        self._lingering: dict[str, int] = {}  # censuses still to be taken of those that died, by prefix
        self._others: dict[str, _Process] = {}  # by prefix
        self._out: list[Message] = []
        self._on_news = on_news
        self._lag_s = 0.0
        self._early: OrderedDict[str, list[Completion]] = OrderedDict()  # by pick id
        self._taught: deque[Taught] | None = deque() if keep_taught else None
        self._taught_blocks = 0
        router.testify(self)

    # What happens here; as of `Witness`.

    def picked(self, reservation: Reservation, held_ratio: float) -> None:
        prefix, number = _split(reservation.pick.pick_id)
        self._own[prefix][number] = reservation
        self._last = number
        self._say(_told(reservation, held_ratio))

    def ended(self, reservation: Reservation) -> None:
        prefix, number = _split(reservation.pick.pick_id)
        own = self._own.get(prefix)
        if own is None:
            self._others[prefix].open.pop(number, None)
        elif own.pop(number, None) is not None:
            self._say(Ended(reservation.pick.pick_id))

    def completed(self, completion: Completion) -> None:
        self._keep_early(completion)
        self._say(Completed(completion))

    def answered(self, pick_id: str, served: Address | None, status: int | None) -> None:
        self._say(Answered(pick_id, served, status))

    def stored(self, pick_id: str, response_id: str) -> None:
        self._say(Stored(pick_id, response_id))

    # What is to be told.

    @property
    def waiting(self) -> int:
        """Messages that `take` would give."""
        return len(self._out)

    def take(self) -> list[Message]:
        """What has happened since the last time."""
        out, self._out = self._out, []
        return out

    def census(self) -> list[Message]:
        """Which picks that we answer for are open. To be told again and again, after what `take` gives."""
        out: list[Message] = []
        for prefix, numbers in list(self._own.items()):
            if prefix == self._router.id_prefix:
                if self._last:
                    out.append(Census(prefix, self._last, tuple(numbers)))
                continue
            out.append(Census(prefix, None, tuple(numbers)))
            if not numbers:
                self._lingering[prefix] -= 1
                if not self._lingering[prefix]:
                    del self._own[prefix], self._lingering[prefix]
                    self._others[prefix] = _Process()
        return out

    def everything(self) -> list[Message]:
        """What a process that starts now has to know: what servers were taught, and every open pick."""
        taught: list[Message] = list(self._taught or ())
        every = [*self._own.values(), *(other.open for other in self._others.values())]
        return taught + [_told(reservation, taught=False) for open_ in every for reservation in open_.values()]

    def _say(self, message: Message) -> None:
        self._out.append(message)
        if len(self._out) == 1:
            self._on_news()

    def lag_s(self) -> float:
        """From a pick elsewhere to our hearing of it: the longest since the last time that this was asked."""
        lag_s, self._lag_s = self._lag_s, 0.0
        return lag_s

    # What others tell.

    def apply(self, messages: Iterable[Message], now: float) -> None:
        """Take in what another process told."""
        router = self._router
        for each in messages:
            match each:
                case Picked():
                    self._picked_elsewhere(each, now)
                case Taught():
                    self._taught_elsewhere(each)
                case Ended():
                    prefix, number = _split(each.pick_id)
                    self._end(prefix, number, now)
                case Completed():
                    self._keep_early(each.completion)
                    router.completed_elsewhere(each.completion, now)
                case Answered():
                    router.answered_elsewhere(each.pick_id, each.served, each.status, now)
                case Stored():
                    router.stored_elsewhere(each.pick_id, each.response_id, now)
                case Census():
                    self._counted(each, now)

    def died(self, prefix: str) -> int:
        """The process whose picks have these ids is gone: answer for those of its picks that are open. How many.

        Its requests run on, in Envoy: as if we had ended their streams, only the access log or the server's own word
        tells of their ends.
        """
        numbers = self._others.pop(prefix, _Process()).open
        self._own[prefix] = numbers
        self._lingering[prefix] = LAST_CENSUSES
        for reservation in numbers.values():
            self._router.detach(reservation.pick.pick_id)
        return len(numbers)

    def _keep_early(self, completion: Completion) -> None:
        """What the log tells of a pick that we have not heard of yet is to be taken in when we do."""
        if completion.pick_id is None:
            return
        prefix, number = _split(completion.pick_id)
        other = self._others.get(prefix)
        if prefix in self._own or (other is not None and number in other.picked):
            return
        self._early.setdefault(completion.pick_id, []).append(completion)
        if len(self._early) > EARLY:
            self._early.popitem(last=False)

    def _picked_elsewhere(self, told: Picked, now: float) -> None:
        prefix, number = _split(told.pick_id)
        if prefix in self._own:
            return  # our own, or told by one that we know to be dead
        other = self._others.setdefault(prefix, _Process())
        self._lag_s = max(self._lag_s, now - told.at_s)
        if not other.picked.add(number):
            return
        self._remember(told)
        if self._member(told.pool, told.hosts[0], told.uid) is None:
            return
        pick = Pick(
            told.pick_id,
            told.hosts[0],
            told.hosts[1:],
            ",".join([host.text for host in told.hosts]),
            told.stores,
        )
        reservation = self._router.picked_elsewhere(
            told.pool,
            pick,
            path=told.path,
            at_s=told.at_s,
            uncached_tokens=told.uncached_tokens,
            held_ratio=told.held_ratio,
            prompt=PromptBlocks(told.hashes, told.mark, None, 0) if told.hashes else None,
            conversation=told.conversation,
            max_tokens=told.max_tokens,
            response_id=told.response_id,
            charged=number not in other.ended,
        )
        early = self._early.pop(told.pick_id, ())
        if reservation is not None:
            other.open[number] = reservation
            for completion in early:
                self._router.completed_elsewhere(completion, now)

    def _remember(self, told: Picked) -> None:
        if self._taught is None or not told.hashes:
            return
        self._taught.append(Taught(told.pool, told.hosts[0], told.uid, told.hashes, told.mark))
        self._taught_blocks += len(told.hashes)
        while self._taught_blocks > TAUGHT_BLOCKS:
            self._taught_blocks -= len(self._taught.popleft().hashes)

    def _taught_elsewhere(self, told: Taught) -> None:
        member = self._member(told.pool, told.address, told.uid)
        if member is not None:
            prompt = PromptBlocks(told.hashes, told.mark, None, 0)
            self._router.placements[told.pool].learn_prompt(prompt, member)

    def _member(self, pool: str, address: Address, uid: str | None) -> Member | None:
        """None: another server, or none, is there by now."""
        plan = self._router.plans.get(pool)
        member = None if plan is None else plan.pool.member(address)
        return member if member is not None and member.endpoint.uid == uid else None

    def _end(self, prefix: str, number: int, now: float) -> None:
        if prefix in self._own:
            return
        other = self._others.setdefault(prefix, _Process())
        other.ended.add(number)
        reservation = other.open.get(number)
        if reservation is not None:
            self._router.ended_elsewhere(reservation, now)  # which tells us, as a witness

    def _counted(self, census: Census, now: float) -> None:
        if census.prefix in self._own:
            return
        known = self._others.get(census.prefix)
        if known is None:
            return
        still = set(census.numbers)
        for number in list(known.open):
            if number not in still and (census.upto is None or number <= census.upto):
                self._end(census.prefix, number, now)


def _told(reservation: Reservation, held_ratio: float = 0.0, *, taught: bool = True) -> Picked:
    """`taught`: with its prompt."""
    pick, member = reservation.pick, reservation.member
    hosts = (pick.address, *pick.fallbacks)
    if member.address != pick.address:  # it has moved since
        hosts = (member.address, *(host for host in hosts if host != member.address))
    prompt = reservation.prompt if taught else None
    return Picked(
        pick.pick_id,
        reservation.pool,
        hosts,
        member.endpoint.uid,
        reservation.path,
        reservation.picked_at_s,
        None if reservation.prefill is None else reservation.prefill.tokens,
        held_ratio,
        reservation.conversation,
        reservation.max_tokens,
        reservation.response_id,
        pick.stores,
        () if prompt is None else prompt.hashes,
        None if prompt is None else prompt.mark,
    )


def _split(pick_id: str) -> tuple[str, int]:
    """Which process made it, and its number there; 0: none of ours has made it."""
    prefix, dash, number = pick_id.rpartition("-")
    try:
        return prefix + dash, int(number, 16)
    except ValueError:
        return pick_id, 0
