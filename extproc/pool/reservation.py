"""Which place on which server does a picked request hold, until when?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from extproc.decision import Completion, Outcome, Pick
from extproc.pool.member import Member
from extproc.pool.prefill import Prefill


class Prompt(Protocol):
    """What a prefix index takes to remember a prompt."""

    @property
    def hashes(self) -> Sequence[int]: ...
    @property
    def mark(self) -> int | None: ...


class Reservation:
    """One picked request's charge on one server.

    It is bound to the `Member` object, not to the address: when a server leaves and another comes to its address, the
    old charges end on the old object and the new one starts at zero. Closing twice does nothing.
    """

    __slots__ = (
        "charged_at_s",
        "completion",
        "conversation",
        "detached",
        "ended_at_s",
        "judged",
        "left",
        "max_tokens",
        "member",
        "outcome",
        "path",
        "pick",
        "picked_at_s",
        "pool",
        "prefill",
        "prompt",
        "response_id",
    )

    def __init__(
        self,
        pick: Pick,
        member: Member,
        pool: str,
        path: str,
        now: float,
        uncached_tokens: float | None = None,
        held_ratio: float = 0.0,
    ) -> None:
        """`uncached_tokens`: of its prompt, those that the server must compute; None: no account is kept of prompts.

        `held_ratio`: the part of its prompt that the server holds, 0 to 1.
        """
        self.pick = pick
        self.member = member
        self.pool = pool
        self.path = path
        self.picked_at_s = now
        self.charged_at_s = now  # when it was charged to the present member
        self.detached = False  # our stream is closed while the request runs on
        self.ended_at_s: float | None = None  # None: in flight
        self.outcome: Outcome | None = None  # None: in flight
        self.completion: Completion | None = None  # what was told of it last; None: nothing
        self.prefill: Prefill | None = None  # None: its prompt is not accounted for
        self.prompt: Prompt | None = None  # for whoever serves it; None: unknown, or nobody can be told any more
        self.left: tuple[Member, ...] = ()  # those it was on before `member`
        self.judged: tuple[Member, ...] = ()  # servers whose failure at this request has counted already
        self.conversation: int | None = None  # the number of its session key; None: it has none
        self.max_tokens: int | None = None  # upper bound on what is generated; None: not known
        self.response_id: str | None = None  # of the response that the server keeps; None: not known, or none
        if uncached_tokens is not None:
            self.prefill = member.prefill.add(uncached_tokens, now, held_ratio)
        member.charge(self)

    @property
    def open(self) -> bool:
        return self.ended_at_s is None

    def move(self, member: Member, now: float) -> None:
        """The request runs, or has run, on another server than the one it was picked for (a retry).

        The stream's end usually comes before the log entry that tells of the move; how the request went must then
        still be told of the server that served it.
        """
        if member is self.member:
            return
        self.member.trials.pop(self, None)
        if self.open:
            if self.prefill is not None:
                self.member.prefill.end(self.prefill, now)
            self.member.discharge(self)
            if self.prefill is not None:
                self.prefill = member.prefill.add(self.prefill.tokens, now)
            self.charged_at_s = now
            member.charge(self)
        self.left += (self.member,)
        self.member = member

    def close(self, outcome: Outcome, now: float) -> bool:
        """End the charge; false when it had ended before (the outcome may still be made more precise)."""
        if outcome is not Outcome.UNKNOWN or self.outcome is None:
            self.outcome = outcome
        if not self.open:
            return False
        self.ended_at_s = now
        if self.prefill is not None:
            self.member.prefill.end(self.prefill, now)
        self.member.discharge(self)
        return True
