"""How many requests may a server have at once that has hardly begun any yet?

A server that has just come up is empty, so every rule finds it the best: without a bound a burst of hundreds goes there
while an engine's first requests are its slowest, and all of them wait for what only the first had to wait for. So it
begins with `FIRST` at once. Each that has had its first token (the count of vLLM's histogram, over the engine's life)
allows two more, as each acknowledgement does for a connection that starts slowly: sample by sample 8, 24, 72. After
`ENOUGH` it is as any other. What counts is the engine's life, not ours: servers that were up before us are warm, one
that was restarted is not.

The bound keeps from a newcomer what others can take meanwhile. Where more than half of a pool warms up there are no
such others, and no bound: it would drive a fleet's first prompts to servers that hold nothing of them (simulated, W1h
from a cold start: mean time to first token 378 ms with a bound, 150 ms without).
"""

from __future__ import annotations

from extproc.pool.sample import LoadSample

FIRST = 8  # prompts of a thousand tokens: what an engine computes in a step or two
ENOUGH = 64


class Company:
    """The members of a pool, to one of them."""

    __slots__ = ("all_ready", "members", "warming")

    def __init__(self) -> None:
        self.members = 0
        self.warming = 0  # of those
        self.all_ready: bool | None = None  # see `Pool.all_ready`; None: something has changed since that was known

    @property
    def can_take_over(self) -> bool:
        return 2 * self.warming <= self.members

    def changed(self) -> None:
        """One of them is sound, or wanted, that was not, or is so no more."""
        self.all_ready = None


class WarmUp:
    """One server's bound."""

    __slots__ = ("_begun", "_company", "_ended", "_most")

    def __init__(self, company: Company | None = None) -> None:
        """`company` None: others are there and warm."""
        self._company = company
        self._most: int | None = None  # requests in flight, where others can take over; None: it is warm
        self._begun = 0.0  # by the last sample
        self._ended = 0  # of ours, since it began anew: what has ended needs no first token (an embedding has none)

    @property
    def warming(self) -> bool:
        return self._most is not None

    @property
    def most(self) -> int | None:
        """Requests in flight that it may have; None: there is no bound."""
        return self._most if self._company is None or self._company.can_take_over else None

    def observe(self, sample: LoadSample) -> None:
        """A page that does not tell what was begun sets no bound."""
        before = self.warming
        self._most = self._allowed(sample)
        if self._company is not None:
            self._company.warming += self.warming - before

    def _allowed(self, sample: LoadSample) -> int | None:
        if sample.ttft is None:
            return None
        begun = sample.ttft.count
        if begun < self._begun:  # another process
            self._ended = 0
        self._begun = begun
        done = max(int(begun), self._ended)
        return None if done >= ENOUGH else FIRST + 2 * done

    def ended(self) -> None:
        """One of our requests there is over."""
        self._ended += 1
